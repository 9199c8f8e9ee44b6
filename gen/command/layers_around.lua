-- `model --layers` of an ONNX file: kernels of whole layers, with the norms, the residual connection and the
-- feed-forward that the graph has around its attention.

local graph_norms = require "onnx.norms"
local indices = require "onnx.indices"
local whole_layers = require "onnx.whole_layers"

local M = {}

-- A layer with something else around it is a kernel of attention alone, and its note says why.
local function surround(find, all)
  find.row_norms = graph_norms.of(find.elements, true)
  for _, layer in ipairs(all) do
    local _, why = indices.attempt(whole_layers.surround, find, layer)
    if why then table.insert(layer.notes, "attention alone: " .. why) end
  end
end

function M.begin(model)
  if not model.graph then
    error({ message = ("%s: --layers is for ONNX files; --whole takes all layers of a folder or a GGUF file")
      :format(model.path) }, 0)
  end
  local layers_of = model.layers
  model.graph.of_parts = true
  function model.layers(self, given)
    local all, left, find = layers_of(self, given)
    surround(find, all)
    return all, left
  end
end

return M
