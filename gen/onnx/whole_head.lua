-- The head of an encoder in an ONNX graph: one or two products behind what is taken of the last rows, with an
-- activation between them, and perhaps a norm in front of each. Constants that the last product is multiplied by belong
-- to its weights. A head is proposed by the nodes, and then proved on drawn numbers.
--
-- of(find, whole, value, output) returns the head, or nil where the value is made in another way.
--
-- of_columns(find, whole, names) does so where what makes some of these outputs are the columns of one product. The
-- head then has columns = { value = its number from 0 }.
--
--     whole      of gen/onnx/whole.lua
--     output     of the graph, which is the value or made of it alone
--     head       { value = of the graph, name = logits or embedding, said = words about the result, steps = list,
--                rows = first, mean, all or asked }
--     step       { matrix = of gen/onnx/proposal.lua, product = of gen/onnx/products.lua, depth, width }, and where it
--                has them norm = of gen/onnx/whole_layers.lua, bias = numbers, act, by = factors of the columns of the
--                matrix

local indices = require "onnx.indices"
local meanings = require "onnx.meanings_of_layers"
local options = require "options.init"
local proposal = require "onnx.proposal"
local rows = require "onnx.rows"
local values = require "onnx.values"
local whole_layers = require "onnx.whole_layers"
local whole_outputs = require "onnx.whole_outputs"
local whole_tail = require "onnx.whole_tail"
local wording = require "base.wording"

local M = {}

local origin, refuse = rows.origin, proposal.refuse

local HOPS = 12 -- nodes of an activation

-- The product that a value is made of by other nodes than products, or nil.
local function product_before(find, value)
  local waiting, hops = { value }, 0
  while waiting[1] and hops < HOPS do
    local name = origin(find, table.remove(waiting, 1))
    local found = name ~= value and rows.projection(find, name)
    if found then return found end
    hops = hops + 1
    for _, input in ipairs((find.graph.makers[name] or { inputs = {} }).inputs) do waiting[#waiting + 1] = input end
  end
end

-- What a product with its bias is, once it is proved; with a factor it makes `out`.
local function proved(find, found, factor, out)
  local product, all = found.product, (factor or 1) * (found.product.factor or 1)
  local step = { product = product, bias = found.bias, depth = product.width, width = product.columns }
  if not whole_tail.fits(all) then refuse("weights are not multiplied by %g", all) end
  if all ~= 1 then
    step.by = {}
    for i = 1, step.width do step.by[i] = all end
  end
  if factor and step.bias then
    step.bias = {}
    for i, x in ipairs(found.bias) do step.bias[i] = factor * x end
  end
  step.matrix = proposal.matrix_of(product, nil, step.by)
  whole_layers.prove(find, { product.x }, out or found.out, function(run, x)
    local y = run:product(x, whole_layers.numbers_of(find, run, step.matrix))
    return step.bias and run:apply("add", y, values.value(run.arrays.numbers(step.bias), { step.width })) or y
  end)
  return step
end

-- Refuses an activation that is another one of large numbers. The rows of a head are few.
local LARGE = { 20 }
local function check_large(find, h, y, act)
  local why = whole_layers.differs(setmetatable({ sizes = LARGE }, { __index = find.few() }), { h }, y,
    function(run, x) return meanings.activations[act](run, x) end)
  if why then refuse("%s", why) end
end

-- What is taken of the rows as the input of a product, perhaps behind a norm of it, which the product's step gets; or
-- nil and what is not taken.
local function taken_by(find, whole, step, x)
  local function taken(value) return value == whole.rows and "all" or whole_outputs.taken(find, whole, value) end
  local from = origin(find, x)
  local kind, norm = taken(from), find.row_norms[from]
  if kind or not norm or norm.kind == "l2" then return kind, from end
  local before = origin(find, norm.x)
  step.norm = whole_layers.proved_norm(find, before, setmetatable({ out = from }, { __index = norm }), step.depth)
  return taken(before), before
end

local MOST = options.list.y_width.max

-- Whether a head gives scores of all ids in each row, of an encoder behind another product, or of a decoder in its last
-- row. Other products have as many columns as a kernel.
local function is_of_words(whole, kind, steps)
  local count = whole.decodes and 1 or 2
  local of_rows = kind == "all" or kind == "last"
  local is_it = #steps == count and of_rows and whole.ids and steps[count].width == whole.ids.words.rows
  if whole.decodes and not is_it then refuse("a decoder's head has a score for each id") end
  for i = 1, is_it and count - 1 or #steps do
    if steps[i].width > MOST then refuse("it has more than %d columns", MOST) end
  end
  return is_it
end

local function head_of(find, whole, value, output)
  local from, factor = whole_tail.unscaled(find, value)
  local last = rows.projection(find, from, true) or refuse("no product makes it")
  local steps, kind = { proved(find, last, factor, value) }, nil
  kind, from = taken_by(find, whole, steps[1], last.product.x)
  if not kind then
    local first = product_before(find, from) or refuse("nothing is taken of the rows")
    table.insert(steps, 1, proved(find, first))
    steps[1].act = whole_layers.activation_of(find, { first }, from, { { first } }, steps[1].width)
    check_large(find, first.out, from, steps[1].act)
    kind = taken_by(find, whole, steps[1], first.product.x)
  end
  if not kind then refuse("nothing is taken of the rows") end
  kind = is_of_words(whole, kind, steps) and "asked" or kind
  return { value = origin(find, value), rows = kind, steps = steps,
           name = kind ~= "asked" and output:lower():find "embed" and "embedding" or "logits",
           said = (value == output and "output %s of the graph" or "what makes output %s of the graph")
             :format(wording.short(output)) }
end

function M.of(...) return (indices.attempt(head_of, ...)) end

-- Which column of a product a value is, from 0; or nil.
local function column_of(find, product, value)
  for column = 0, product.columns - 1 do
    local is_it = indices.attempt(function()
      whole_layers.prove(find, { product.out }, value, function(run, x)
        return run:moved(x, { x.shape[1], 1 }, { product.columns, 1 }, column)
      end)
      return true
    end)
    if is_it then return column end
  end
end

-- The columns that values are, { value = number }, if these are all those of a product; or nil. Exporters may take a
-- column more than once.
local function columns_of(find, product, list)
  local columns, known, count = {}, {}, 0
  for _, value in ipairs(#list >= product.columns and list or {}) do
    local column = column_of(find, product, value)
    if not column then return nil end
    if not known[column] then known[column], count = true, count + 1 end
    columns[value] = column
  end
  return count == product.columns and columns or nil
end

-- The values that outputs are made of by functions which are left to the caller, by the product that makes them: { out,
-- columns = their number, values = list, names = { value = name of an output } }.
local function groups_of(find, whole, names)
  local groups, list = {}, {}
  for _, name in ipairs(names) do
    local behind = whole_tail.behind(find, whole, name)
    local value = origin(find, behind[1] and behind[#behind].x or name)
    local found = indices.attempt(product_before, find, value)
    local of = found and (groups[found.out] or { out = whole_tail.scaled(find, found.out), names = {}, values = {},
                                                 columns = found.product.columns })
    if of and not groups[found.out] then groups[found.out], list[#list + 1] = of, of end
    if of and not of.names[value] then of.values[#of.values + 1] = value end
    if of then of.names[value] = not behind[1] and name or of.names[value] or name end
  end
  return list
end

-- Words about the columns of a head, by the outputs that they are, or else by those made of them.
local function said_of(find, product, columns)
  local said, are_outputs, count = {}, {}, 0
  for _, value in ipairs(product.values) do
    local name, at = product.names[value], columns[value] + 1
    local is_output = origin(find, name) == value
    if is_output and not are_outputs[at] then are_outputs[at], count = true, count + 1 end
    if is_output or not said[at] then said[at] = wording.short(name) end
  end
  return ("%soutput%s %s of the graph"):format(count == product.columns and "" or "what makes ",
    #said > 1 and "s" or "", table.concat(said, " and "))
end

function M.of_columns(find, whole, names)
  for _, product in ipairs(groups_of(find, whole, names)) do
    local columns = columns_of(find, product, product.values)
    local head = columns and M.of(find, whole, product.out, product.names[product.values[1]])
    if head then
      head.columns, head.said = columns, said_of(find, product, columns)
      return head
    end
  end
end

return M
