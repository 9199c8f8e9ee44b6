-- Replaces nodes of an ONNX graph by the graphs within them: the branch of an If that is taken, functions of the model,
-- and the body of Attention of ai.onnx; where graph.of_parts says so, also those of gen/onnx/plain_layers.lua.
--
--   opened(graph) -> a graph with lists of its own, for walk
--   walk(graph, elements, take)    calls take(node) in order, with nodes of bodies in the place of their node. Then
--                                  nodes and users are those of the whole.
--     graph.taken                  { name of a value = true }: the first output of each If whose branch is known
--   left(graph) -> { name =, why = } of each node whose bodies have attention and are not taken
--   why(graph, node) -> why its bodies are not taken, as words behind its name; or nil
--
-- elements: of gen/onnx/elements.lua, by which conditions are known.

local file = require "onnx.file"
local plain_attention = require "onnx.plain_attention"
local plain_layers = require "onnx.plain_layers"
local wording = require "base.wording"

local M = {}

local MOST = 1 << 18 -- nodes of all bodies

function M.opened(graph)
  local own = { nodes = graph.nodes, taken = {}, whys = {} }
  for _, list in ipairs { "makers", "tensors", "values", "inner" } do
    own[list] = {}
    for name, value in pairs(graph[list]) do own[list][name] = value end
  end
  return setmetatable(own, { __index = graph })
end

-- The nodes that stand for a node, or nil.
local function expanded(graph, node, elements)
  local place = graph.functions[file.function_key(node.domain, node.op, node.overload)]
  if place then return file.function_body(graph, node, place) end
  if node.op == "Attention" and node.domain == "" then
    local raw = plain_attention.body(graph, node, elements.shapes)
    return raw and file.nodes_of(graph, node, raw)
  end
  local parts = graph.of_parts and plain_layers.body(node, elements.shapes)
  if parts then return file.nodes_of(graph, node, parts) end
  if node.op ~= "If" or node.domain ~= "" then return nil end
  local condition = elements:scalar(node.inputs[1] or "")
  if not condition then
    graph.whys[node] = ("whose condition, %s, depends on inputs"):format(wording.short(node.inputs[1] or ""))
    return nil
  end
  local branch = condition ~= 0 and "then_branch" or "else_branch"
  place = node.attributes[branch]
  if type(place) ~= "table" or not place.bytes or #node.outputs == 0 then return nil end
  graph.taken[("%s %s"):format(branch, node.outputs[1])] = true
  return file.body(graph, node, place)
end

function M.walk(graph, elements, take)
  local nodes, count = {}, 0
  local function visit(list)
    for _, node in ipairs(list) do
      local inner = expanded(graph, node, elements)
      if inner then
        count = count + #inner
        if count > MOST then error({ message = ("%s: bodies have more than %d nodes"):format(graph.path, MOST) }, 0) end
        visit(inner)
      else
        nodes[#nodes + 1] = node
        take(node)
      end
    end
  end
  visit(graph.nodes)
  graph.nodes, graph.users = nodes, file.users_of(nodes)
end

function M.why(graph, node)
  return graph.whys[node] or node.inner > 0 and "whose body is not read" or nil
end

function M.left(graph)
  local left = {}
  for _, node in ipairs(graph.nodes) do
    if node.inner > 0 then
      left[#left + 1] = { name = node.name, why = ("is %s, %s, with %s of attention"):format(
        node.op, M.why(graph, node), wording.counted(node.inner, "node")) }
    end
  end
  return left
end

return M
