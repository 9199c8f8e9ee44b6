-- The nodes of a layer in an ONNX graph.
--
--   own(graph, layer, maker) -> nodes of the file, in their order; only the output of the layer needs them
--     layer    { inputs } of gen/onnx/layers.lua, which are not followed further back
--     maker    the node that makes its output
--   is_made_of(graph, value, other, layer) -> whether a value is made of another one, behind the inputs of a layer;
--                                             without another one, whether of an input of the graph

local M = {}

-- The nodes that nothing but the output needs, up to the inputs.
local function own_nodes(graph, layer, maker)
  local stop, own, list = {}, {}, {}
  for _, key in ipairs { "q", "k", "v", "past_k", "past_v" } do
    if layer.inputs[key] then stop[layer.inputs[key]] = true end
  end
  for _, mask in ipairs(layer.inputs.masks) do stop[mask.value] = true end
  local function needed(node)
    for _, output in ipairs(node.outputs) do
      if graph.outputs[output] or stop[output] then return true end
      for _, user in ipairs(graph.users[output] or {}) do
        if not own[user] then return true end
      end
    end
    return false
  end
  own[maker], list[1] = true, maker
  local waiting = { maker }
  while #waiting > 0 do
    local node = table.remove(waiting)
    for _, input in ipairs(node.inputs) do
      local maker = graph.makers[input]
      if maker and not own[maker] and not stop[input] and not needed(maker) then
        own[maker] = true
        list[#list + 1], waiting[#waiting + 1] = maker, maker
      end
    end
  end
  return own
end

-- Nodes of the file among these, in their order: one with a body if nothing else reads its outputs.
local function in_order(graph, own)
  local list, last = {}, nil
  local function is_own(node)
    for _, output in ipairs(node.outputs) do
      if output ~= "" and not own[graph.makers[output]] then return false end
    end
    return true
  end
  for _, node in ipairs(graph.nodes) do
    local outer = node.within
    if own[node] and not outer or outer and outer ~= last and is_own(outer) then list[#list + 1] = outer or node end
    last = outer
  end
  return list
end

function M.own(graph, layer, maker) return in_order(graph, own_nodes(graph, layer, maker)) end

function M.is_made_of(graph, value, other, layer)
  local seen, waiting = { [value] = true, [""] = true }, { value }
  for _, key in ipairs(layer and { "q", "k", "v" } or {}) do seen[layer.inputs[key] or ""] = true end
  while #waiting > 0 do
    local name = table.remove(waiting)
    local maker = graph.makers[name]
    if name == other or not other and not maker and not graph.tensors[name] then return true end
    local shape_alone = maker and (maker.op == "Shape" or maker.op == "Size")
    for _, input in ipairs(maker and not shape_alone and maker.uses or {}) do
      if not seen[input] then seen[input], waiting[#waiting + 1] = true, input end
    end
  end
  return false
end

return M
