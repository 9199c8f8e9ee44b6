-- Rows of a layer of an ONNX graph that are the same in all runs.
--
--   rows(layer, longer) -> those of Q, those of K; false or nil where inputs leave them open
--     longer    the axes of values in runs of other lengths, of gen/onnx/layers.lua
--   add(graph, layers, given)     gives each layer such rows as keys, and refuses others that are given

local graph_layers = require "onnx.layers"
local wording = require "base.wording"

local M = {}

function M.rows(layer, longer)
  local found = layer.found
  if found then
    local scores = longer[found.softmax.inputs[1]] or {}
    local q, k = scores[#scores - 1], scores[#scores]
    return q == found.extents.q and q, k == found.extents.k and k
  end
  local function rows(value)
    local dims = layer:axes(value)
    return dims and dims[#dims == 4 and layer.by_head and 3 or 2] or nil
  end
  return rows(layer.args.q), rows(layer.args.k or layer.args.q)
end

function M.add(graph, layers, given)
  local longer = graph_layers.longer(graph, given)
  for _, layer in ipairs(layers) do
    local seq, seq_kv = M.rows(layer, longer)
    if given.cache then seq_kv = nil end -- it is what the cache holds
    for key, rows in pairs { seq = seq or nil, seq_kv = seq_kv or nil } do
      if given[key] and given[key] ~= tostring(rows) then
        local name, count = wording.short(layer.name), wording.counted(rows, "row")
        error({ message = ("layer %s: %s = %s: the graph has %s there in all runs; leave %s out, or take other " ..
          "layers by --only"):format(name, key, given[key], count, key) }, 0)
      end
      local told = given[key] or key == "seq_kv" and rows == seq
      if not told then table.insert(layer.keys, ("%s=%d"):format(key, rows)) end
    end
  end
end

return M
