-- What is around attention in a layer of an ONNX graph: norms, the residual connection and the feed-forward. They are
-- proposed by the nodes, and then proved: the graph is evaluated on drawn rows, and so is the formula of docs/layer.md.
--
--   norm(find, norm, width) -> { kind, eps, out, gains, bias = numbers or nil } of one of gen/onnx/norms.lua
--   normed(run, norm, x)       its formula
--   numbers_of(find, run, matrix)     a value of the numbers of a matrix of a layer of gen/onnx/layers.lua
--   prove(find, sources, value, formula)   raises a text where a graph makes other numbers of drawn ones than a formula
--   activation_of(find, list, h, halves, width) -> act, which half it acts on, of products and the value h behind them
--   of(find, x, y) -> layer; raises a text that says why there is none
--     find    of gen/onnx/layers.lua
--     x, y    the values that attention reads, and its result
--   surround(find, layer) -> the same of a layer of gen/onnx/operators.lua, which gets its keys, weights and values
--     layer   { from, to = values of rows that it reads and makes, keys = { key = value }, weights = as a layer of
--               gen/onnx/layers.lua has them; bo is added to that of attention }

local constants = require "onnx.constants"
local evaluate = require "onnx.evaluate"
local graph_parts = require "onnx.parts"
local indices = require "onnx.indices"
local layers = require "model.layers"
local meanings = require "onnx.meanings_of_layers"
local proposal = require "onnx.proposal"
local rows = require "onnx.rows"
local values = require "onnx.values"
local wording = require "base.wording"

local M = {}

local refuse = proposal.refuse
local origin = rows.origin

local function named(value) return wording.short(value) end

-- ---- evaluation ----

-- Whether the graph makes of drawn numbers for some values what a formula says: of (run, numbers ...) -> value. Nil and
-- the largest difference, or why not.
function M.differs(find, sources, value, formula)
  local run, leaves, drawn, feeds = rows.run(find), {}, {}, {}
  for i, source in ipairs(sources) do
    local shape = find.elements.shapes[source]
    local width = shape[#shape]
    local count = indices.count(shape)
    leaves[source] = true
    drawn[i] = values.value(rows.drawn(run, i, count // width, width, find.sizes), { count // width, width })
    feeds[source] = { at = drawn[i].at, integer = false }
  end
  local plan, why = evaluate.plan(find.graph, find.elements.shapes, { value }, leaves)
  if not plan then return why end
  for _, input in ipairs(plan.inputs) do
    if not leaves[input] then return ("%s depends on %s"):format(named(value), named(input)) end
  end
  local made
  made, why = evaluate.run(plan, run.arrays, feeds, constants.of)
  if not made then return why end
  local wanted = formula(run, table.unpack(drawn))
  local largest = run:largest(wanted)
  local off = run.arrays.difference(made[value].at, wanted.at)
  if off <= rows.near(find) * largest then return nil, off end
  return ("%s is not what is proposed: drawn numbers differ by %.1e of the largest"):format(named(value), off / largest)
end

local MOST = 1 << 29 -- multiplications with which all rows are proved, and not only some of them

-- Whether a graph makes values of others with few multiplications.
local function is_cheap(find, sources, value)
  local leaves = {}
  for _, source in ipairs(sources) do leaves[source] = true end
  local plan = evaluate.plan(find.graph, find.elements.shapes, { value }, leaves)
  return plan ~= nil and plan.products <= MOST and plan.numbers <= MOST
end

-- Refuses a value that differs in runs of several lengths.
function M.prove(find, sources, value, formula)
  for _, other in ipairs { find.few(), find.least(), find.single(), is_cheap(find, sources, value) and find or nil } do
    local why = M.differs(other, sources, value, formula)
    if why then refuse("%s", why) end
  end
end

-- ---- norms ----

function M.norm(find, norm, width)
  local made = { kind = norm.kind, eps = norm.eps, out = norm.out }
  made.gains = norm.gains and rows.vector(find, norm.gains, width)
  made.bias = norm.bias and rows.vector(find, norm.bias, width)
  return made
end

function M.normed(run, norm, x)
  local function vector(list) return list and values.value(run.arrays.numbers(list), { #list }) end
  local gains = vector(norm.gains) or run:constant(1.0)
  return meanings.norms[norm.kind](run, x, gains, vector(norm.bias), norm.eps)
end

-- The norm of a value, once it is proved.
function M.proved_norm(find, value, norm, width)
  local made = M.norm(find, norm, width)
  M.prove(find, { value }, norm.out, function(run, x) return M.normed(run, made, x) end)
  return made
end

-- ---- the feed-forward ----

local ACTS = { "gelu", "gelu_tanh", "relu", "silu", "quick_gelu", "relu2", "tanh" }

-- Columns of the products that an activation reads: of two products, or of the halves of one.
local function halves_of(list, width)
  local first = list[1]
  if #list == 2 then return { { first }, { list[2] } } end
  if first.product.columns == 2 * width then return { { first, 0 }, { first, width } } end
  return { { first } }
end

-- The columns of half a product, or nil: all.
local function columns_of(half, width)
  if not half[2] then return nil end
  local columns = {}
  for i = 1, width do columns[i] = half[2] + i - 1 end
  return columns
end

-- What stands between the products of the feed-forward: the act, and which half it acts on.
function M.activation_of(find, list, h, halves, width)
  local sources = {}
  for i, each in ipairs(list) do sources[i] = each.out end
  local best -- for graphs of f16, several may be near
  for turn = 1, #halves do
    for _, act in ipairs(ACTS) do
      local function formula(run, ...)
        local drawn, parts = { ... }, {}
        for i, half in ipairs(halves) do
          local all = drawn[half[1] == list[1] and 1 or 2]
          parts[i] = half[2] and run:moved(all, { all.shape[1], width }, { all.shape[2], 1 }, half[2]) or all
        end
        local y = meanings.activations[act](run, parts[turn])
        return #halves == 2 and run:apply("mul", y, parts[3 - turn]) or y
      end
      local why, off = M.differs(find.few(), sources, h, formula)
      if not why and (not best or off < best.off) then best = { act = act, turn = turn, off = off } end
    end
  end
  if best then return best.act, best.turn end
  refuse("%s is no activation of %s that is known: %s", named(h), named(sources[1]), table.concat(ACTS, ", "))
end

-- The products between u and the value f that is added to the rows.
local function feed_forward(find, u, f)
  local last = rows.projection(find, f)
  local list = rows.projections(find, u)
  if not last or #list == 0 or #list > 2 then
    refuse("no feed-forward of one hidden layer is between %s and %s", named(u), named(f))
  end
  local h, width = last.product.x, last.product.width
  local halves = halves_of(list, width)
  local act, turn = M.activation_of(find, list, h, halves, width)
  local made, gated = { act = act, width = width, gate = #halves == 2, out = last }, { turn, 3 - turn }
  for i = 1, #halves do
    local half = halves[gated[i]]
    local columns, bias = columns_of(half, width), half[1].bias
    made[i] = { weight = proposal.matrix_of(half[1].product, columns),
                bias = bias and half[2] and table.move(bias, half[2] + 1, half[2] + width, 1, {}) or bias }
  end
  return made
end

-- ---- a layer ----

-- Gives a layer the norm of this number.
local function add_norm(find, layer, number, norm, width)
  if not norm or norm.kind == "l2" then refuse("rows made of %s have no norm", named(layer.from)) end
  local made, keys, own = M.norm(find, norm, width), layer.keys, layer.weights
  if keys.norm_kind and (keys.norm_kind ~= made.kind or keys.layer_eps ~= constants.short(made.eps)) then
    refuse("the norms around %s are of two kinds", named(layer.from))
  end
  keys.norm_kind, keys.layer_eps = made.kind, constants.short(made.eps)
  own["norm" .. number], own[("norm%s_bias"):format(number)] = made.gains, made.bias
  return made
end

-- What is added to the rows of what attention makes: this itself, or a norm of it.
local function normed_branch(find, layer, norms, y, width)
  local norm = not rows.sums(find, y)[1] and rows.norm_of(find, y)
  if not norm then return y end
  norms["1b"] = add_norm(find, layer, "1b", norm, width)
  return norms["1b"].out
end

-- What a feed-forward makes, of what is added to the rows.
local function before_norm(find, layer, norms, value, width)
  local norm = norms["1b"] and find.row_norms[origin(find, value)]
  if norms["1b"] and not (norm and layer.keys.norm == "pre") then
    refuse("norms of what attention makes are beside one before it and two of the feed-forward")
  end
  if not norm then return value end
  layer.keys.norm, norms["2b"] = "sandwich", add_norm(find, layer, "2b", norm, width)
  return norm.x
end

local function add_feed_forward(layer, made)
  local keys, own = layer.keys, layer.weights
  keys.ffn, keys.ffn_act, keys.ffn_gate = made.width, made.act, made.gate or nil
  own.w1, own.b1, own.w2, own.b2 = made[1].weight, made[1].bias, proposal.matrix_of(made.out.product), made.out.bias
  if made.gate then own.w3, own.b3 = made[2].weight, made[2].bias end
end

-- The only sum that reads a value beside another one.
local function sum_of(find, value, what)
  local all = rows.sums(find, value)
  if #all == 1 then return all[1] end
  refuse("%s is %s by %d nodes", named(value), what, #all)
end

-- Adds the row of a sum to a bias of the layer.
local function add_row(layer, sum, bias, gain)
  local own = layer.weights
  if not sum.row then return end
  if own[gain] or layer.keys.norm == "sandwich" then
    refuse("a bias is behind the gains of %s", named(sum.out))
  end
  local all = {}
  for i, x in ipairs(sum.row) do all[i] = x + (own[bias] and own[bias][i] or 0.0) end
  own[bias] = all
end

-- The numbers of a matrix in double, as they are packed.
function M.numbers_of(find, run, of)
  local part = graph_parts.matrix({ in_out = true }, "", of, { of.width, #of.columns })
  local memory = find.graph.tools.floats(part)
  local wide = run.arrays.widened(memory)
  memory:free()
  return values.value(wide, { of.width, #of.columns })
end

-- What the layer makes of the rows that it reads, and of what attention makes.
local function formula_of(find, layer, norms)
  local own, keys = layer.weights, layer.keys
  return function(run, x, y)
    local function vector(list) return values.value(run.arrays.numbers(list), { #list }) end
    local function scaled(v, by) return by and run:apply("mul", v, vector(by)) or v end
    local function product(v, number)
      local made, bias = run:product(v, M.numbers_of(find, run, own["w" .. number])), own["b" .. number]
      return bias and run:apply("add", made, vector(bias)) or made
    end
    local function branch(v, number) return norms[number] and M.normed(run, norms[number], v) or v end
    local sum = run:apply("add", x, scaled(branch(y, "1b"), own.gain1))
    if own.bo then sum = run:apply("add", sum, vector(own.bo)) end
    if keys.norm == "post" then sum = M.normed(run, norms[1], sum) end
    local u = keys.norm == "post" and sum or M.normed(run, norms[2], sum)
    local h = meanings.activations[keys.ffn_act](run, product(u, 1))
    if keys.ffn_gate then h = run:apply("mul", h, product(u, 3)) end
    local made = run:apply("add", sum, scaled(branch(product(h, 2), "2b"), own.gain2))
    return keys.norm == "post" and M.normed(run, norms[2], made) or made
  end
end

function M.of(find, x, y)
  local shape = find.elements.shapes[y]
  local width = shape[#shape]
  local layer, norms = { keys = { residual = true }, weights = {} }, {}
  local scaled
  scaled, layer.weights.gain1 = rows.scaled(find, normed_branch(find, layer, norms, y, width))
  local sum = sum_of(find, scaled, "added to the rows before attention")
  local before = find.row_norms[origin(find, x)]
  local as_it_is = origin(find, sum.other) == origin(find, x)
  layer.keys.norm = not as_it_is and "pre" or #rows.sums(find, sum.out) > 0 and "ffn" or "post"
  layer.from = as_it_is and origin(find, x) or before and origin(find, before.x)
  if not layer.from or origin(find, sum.other) ~= layer.from then
    refuse("%s is added to %s, which is not what attention reads", named(y), named(sum.other))
  end
  if layer.keys.norm == "pre" then
    norms[1] = add_norm(find, layer, 1, before, width)
    before.out = origin(find, x)
    M.proved_norm(find, layer.from, before, width)
  end
  local norm = rows.norm_of(find, sum.out)
  local stream, u
  if layer.keys.norm == "post" then
    norms[1] = add_norm(find, layer, 1, norm, width)
    stream, u = norms[1].out, norms[1].out
  else
    norms[2] = add_norm(find, layer, 2, norm, width)
    stream, u = sum.out, norms[2].out
  end
  local behind = sum_of(find, stream, "added to what a feed-forward makes")
  local f
  f, layer.weights.gain2 = rows.scaled_before(find, behind.other)
  f = before_norm(find, layer, norms, f, width)
  add_feed_forward(layer, feed_forward(find, u, f))
  add_row(layer, sum, "bo", "gain1")
  add_row(layer, behind, "b2", "gain2")
  layer.to = behind.out
  if layer.keys.norm == "post" then
    norms[2] = add_norm(find, layer, 2, rows.norm_of(find, layer.to), width)
    layer.to = norms[2].out
  end
  M.prove(find, { layer.from, y }, layer.to, formula_of(find, layer, norms))
  return layer
end

function M.surround(find, layer)
  local found = layer.found or refuse("an operator of attention is not read%s; write the file without fusing it",
    layer.unwritten and ", for " .. layer.unwritten or "")
  if found.inputs.k or found.inputs.v then refuse("it is no self-attention") end
  if next(found.swapped) then refuse("its rows lie as [rows][batch]") end
  local made = M.of(find, found.inputs.q, found.output)
  local bias = found.weights.bo
  for matrix, of in pairs(made.weights) do found.weights[matrix] = of end
  for i, x in ipairs(made.weights.bo and bias or {}) do found.weights.bo[i] = found.weights.bo[i] + x end
  for _, word in ipairs(layers.key_list(made.keys)) do layer.keys[#layer.keys + 1] = word end
  found.inputs.q, found.output, found.node = made.from, made.to, find.graph.makers[made.to]
  return made
end

return M
