-- What stands behind the head of an encoder in an ONNX graph, and is left to the caller: functions of the logits or the
-- embedding alone that are known by name, such as a Softmax over the classes.
--
--   before(find, value) -> the value that such functions are of, and a list of these from the graph's output on, each
--                          { node, words with %s for what it is of }. Where there are none, or where they take other
--                          axes, these are the value itself and an empty list.
--   is_end(find, node) -> whether it is such an operator, over any axes, and nothing but others of them and the caller
--                         reads its result

local indices = require "onnx.indices"
local meanings = require "onnx.meanings"
local rows = require "onnx.rows"
local whole_layers = require "onnx.whole_layers"

local M = {}

local origin = rows.origin

-- What operators make of rows of scores; the attribute of ArgMax says it of what axis it is.
local NAMED = {
  ArgMax = false,
  LogSoftmax = function(run, x) return run:apply("log", run:softmax(x, { [2] = true })) end,
  Sigmoid = function(run, x) return meanings.rows.Sigmoid(run, nil, x) end,
  Softmax = function(run, x) return run:softmax(x, { [2] = true }) end,
}

local LEAST = 1e-6 -- that a length may be replaced by, because rows are longer

local function divided(run, x)
  local squares = run:reduced("sum", run:apply("mul", x, x), { [2] = true })
  return run:apply("div", x, run:apply("sqrt", squares))
end

-- The function that makes a value, { node, x = what it is of, of = a formula or false, words }, if it is one of these.
local function function_of(find, value)
  value = origin(find, value)
  local node, norm = find.graph.makers[value], find.row_norms[value]
  if norm and norm.kind == "l2" and norm.eps <= LEAST and not norm.gains then
    return { node = node, x = norm.x, out = value, of = divided, words = "%s divided by its length" }
  end
  local is_named = node and node.domain == "" and node.outputs[1] == value and NAMED[node.op] ~= nil
  return is_named and { node = node, x = node.inputs[1], out = value, of = NAMED[node.op], words = node.op .. " of %s" }
end

-- Whether it is of the last axis, as it must be.
local function is_proved(find, made)
  local shape = find.elements.shapes[made.x]
  if not shape or #shape == 0 then return false end
  if not made.of then return indices.axis_of(made.node, 0, #shape) == #shape end
  return (indices.attempt(function()
    whole_layers.prove(find, { made.x }, made.out, made.of)
    return true
  end))
end

function M.before(find, value)
  local from, list, shapes = value, {}, find.elements.shapes
  local made = function_of(find, from)
  while made and is_proved(find, made) do
    from, list[#list + 1] = made.x, made
    made = function_of(find, from)
  end
  local shape = shapes[origin(find, from)] or {}
  for _, each in ipairs(list) do
    if shapes[each.x][#shapes[each.x]] ~= shape[#shape] then return value, {} end
  end
  return from, list
end

function M.is_end(find, node)
  if node.domain ~= "" or NAMED[node.op] == nil then return false end
  local readers = rows.readers(find, node.outputs[1])
  for _, reader in ipairs(readers) do
    if not M.is_end(find, reader) then return false end
  end
  return readers[1] ~= nil or rows.is_output(find, node.outputs[1])
end

return M
