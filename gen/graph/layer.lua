-- What surrounds attention in a layer, as stages before and after those of attention (graph/init.lua):
--
--   x1 = norm1(x)              with norm = pre or sandwich, x being a row of Q
--   y = attention(x1)
--   y = norm1b(y)              with norm = sandwich
--   y = x + gain1 * y          with residual: an epilogue of the output's product, or of norm1b
--   y = norm1(y)               with norm = post
--   u = norm2(y), or y         with norm = pre, sandwich or ffn; with parallel u = x1
--   h = act(u W1 + b1)         with ffn
--   h = h * (u W3 + b3)        with ffn_gate: an epilogue of the product W3
--   f = h W2 + b2
--   f = norm2b(f)              with norm = sandwich
--   z = y + gain2 * f          an epilogue of the product W2, or of norm2b
--   z = norm2(z)               with norm = post
--
-- gain1 and gain2 are packed into the last weights of their branch: `branch_gain` of a stage names the matrix.

local graph = require "graph.init"
local layouts = require "graph.layout"
local tensors = require "graph.tensor"

local M = {}

-- A norm by its number, which its matrices have in their names. Those of a branch, 1b and 2b, have no biases.
local function norm(cfg, number, fields)
  local name = "norm" .. number
  local biased = cfg.norm_kind == "layer" and math.type(number) == "integer"
  return graph.moving(graph.with({ name = name, kind = "norm", phase = name, as_given = true,
    norm = { norm = cfg.norm_kind, eps = cfg.layer_eps }, gains = name, biases = biased and name .. "_bias" or nil,
    packs = name }, fields))
end

-- Rows of so many numbers in the workspace.
local function rows(name, width) return tensors.rows(name, layouts.with(layouts.rows(width), { exact = true })) end

local function in_front(cfg, list, normed)
  local out, of_keys = {}, false
  for _, stage in ipairs(list) do
    local reads = stage.a and stage.a.at == "input" and stage.a.name == "q"
    of_keys = of_keys or reads and stage.name ~= "queries" and stage.name ~= "output"
    out[#out + 1] = (reads or stage.passes) and graph.with(stage, { a = normed, context = stage.passes and normed })
      or stage
  end
  table.insert(out, 1, norm(cfg, 1, { a = tensors.input("q", cfg.d_model), c = normed, cols = cfg.d_model,
                                      of_keys = of_keys }))
  return out
end

-- The list with more stages at its end. The stage that made Y now makes the rows `name` in the workspace, and the new
-- ones make Y from these. stages(made, y): the new stages.
local function behind(cfg, list, name, stages)
  local last, made = list[#list], rows(name, cfg.y_width)
  local doc = last.doc and graph.with(last.doc, { c = "the rows " .. name })
  return graph.edited(list, { [last] = { graph.with(last, { c = made, doc = doc }),
                                         table.unpack(stages(made, last.c)) } })
end

-- add: a tensor that is added to the normalized rows; gain: the matrix that scales these before.
local function norm_behind(cfg, list, number, name, add, gain)
  return behind(cfg, list, name, function(made, y)
    return { norm(cfg, number, { a = made, c = y, cols = cfg.y_width, add = add, branch_gain = gain }) }
  end)
end

-- A product of the feed-forward, by the number of its matrix.
local function product(cfg, number, fields)
  local weights, bias = "w" .. number, "b" .. number
  return graph.product(graph.with({
    phase = fields.name, title = fields.name, nest = "groups", rows = cfg.seq, heads = 1, feeds = true,
    weights = graph.matrix(weights, { steps = fields.steps }),
    bias = { section = bias, text = bias, terms = { { a = bias } } } }, fields))
end

-- normed: what attention reads, if a norm makes it.
local function feed_forward(cfg, list, normed)
  return behind(cfg, list, "attended", function(made, y)
    local width, ffn, stages, in_branch = cfg.y_width, cfg.ffn, {}, cfg.norm == "sandwich"
    local read, between = normed or made, rows("intermediate", ffn)
    if (normed or cfg.norm == "ffn") and not cfg.parallel then
      read = rows("normed2", width)
      stages[1] = norm(cfg, 2, { a = made, c = read, cols = width })
    end
    local function up(number, name, fields)
      stages[#stages + 1] = product(cfg, number, graph.with({ name = name, a = read, c = between, steps = width,
        cols = ffn, doc = { a = "rows of the layer", c = "intermediate rows" } }, fields))
    end
    if cfg.ffn_gate then
      local gate = rows("gate", ffn)
      up(1, "gate", { c = gate, activate = cfg.ffn_act, doc = { a = "rows of the layer", c = "the gate" } })
      up(3, "up", { times = gate })
    else
      up(1, "up", { activate = cfg.ffn_act })
    end
    local fed = in_branch and rows("fed", width) or y
    stages[#stages + 1] = product(cfg, 2, { name = "down", a = between, c = fed, steps = ffn, cols = width,
      add = not in_branch and made or nil, branch_gain = not in_branch and "gain2" or nil,
      doc = { a = "intermediate rows", c = in_branch and "the branch" or "Y" } })
    if in_branch then
      stages[#stages + 1] = norm(cfg, "2b", { a = fed, c = y, cols = width, add = made, branch_gain = "gain2" })
    end
    return stages
  end)
end

-- The list of a layer around the list of its attention.
function M.around(cfg, list)
  local output, post = graph.output(list), cfg.norm == "post"
  local x = cfg.residual and tensors.input("q", cfg.d_model) or nil
  local gain = x and cfg.out_act == "none" and "gain1" or nil
  local normed = (cfg.norm == "pre" or cfg.norm == "sandwich") and rows("normed", cfg.d_model) or nil
  if cfg.norm == "sandwich" then
    list = norm_behind(cfg, list, "1b", "branch", x, gain)
  elseif x then
    list = graph.edited(list, { [output] = { graph.with(output, { add = x, branch_gain = gain }) } })
  end
  if normed then list = in_front(cfg, list, normed) end
  if post then list = norm_behind(cfg, list, 1, "summed") end
  if cfg.ffn > 0 then list = feed_forward(cfg, list, normed) end
  return post and cfg.ffn > 0 and norm_behind(cfg, list, 2, "layer") or list
end

return M
