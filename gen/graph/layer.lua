-- What is around attention in a layer, as stages in front of those of attention and behind them (graph/init.lua):
--
--   x1 = norm1(x)      with norm = pre, x being a row of Q
--   y = attention(x1)
--   y = x + y          with residual: an epilogue of the output's product
--   y = norm1(y)       with norm = post

local graph = require "graph.init"
local layouts = require "graph.layout"
local tensors = require "graph.tensor"

local M = {}

local function norm(cfg, fields)
  return graph.moving(graph.with({ name = "norm1", kind = "norm", norm = { norm = cfg.norm_kind, eps = cfg.layer_eps },
    gains = "norm1", biases = cfg.norm_kind == "layer" and "norm1_bias" or nil, packs = "norm1" }, fields))
end

-- Rows of so many numbers in the workspace.
local function rows(name, width) return tensors.rows(name, layouts.rows(width)) end

local function in_front(cfg, list)
  local normed, out, of_keys = rows("normed", cfg.d_model), {}, false
  for _, stage in ipairs(list) do
    local reads = stage.a and stage.a.at == "input" and stage.a.name == "q"
    of_keys = of_keys or reads and stage.name ~= "queries"
    out[#out + 1] = reads and graph.with(stage, { a = normed }) or stage
  end
  table.insert(out, 1, norm(cfg, { a = tensors.input("q", cfg.d_model), c = normed, cols = cfg.d_model,
                                   of_keys = of_keys }))
  return out
end

local function behind(cfg, list)
  local output = graph.output(list)
  local attended = rows("attended", cfg.y_width)
  return graph.edited(list, { [output] = {
    graph.with(output, { c = attended, doc = graph.with(output.doc, { c = "the rows to norm" }) }),
    norm(cfg, { a = attended, c = output.c, cols = cfg.y_width }) } })
end

-- The list of a layer around the list of its attention.
function M.around(cfg, list)
  local output = graph.output(list)
  if cfg.residual then
    list = graph.edited(list, { [output] = { graph.with(output, { add = tensors.input("q", cfg.d_model) }) } })
  end
  if cfg.norm == "pre" then return in_front(cfg, list) end
  return cfg.norm == "post" and behind(cfg, list) or list
end

return M
