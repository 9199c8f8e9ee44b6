-- What stands behind the head of an encoder in an ONNX graph: functions of the logits or the embedding alone that are
-- known by name, such as a Softmax over the classes. They are left to the caller, but for a constant factor.
--
-- behind(find, whole, value) returns a list of what may be such functions, from the graph's output on: { node, x = what
-- it is of, by = a constant factor or nil, .. }.
--
-- before(find, whole, value) returns what is to be the head. That is the value before these functions, times those
-- constants that its weights may be multiplied by.
--
-- fits(factor) says whether weights may be multiplied by it.
--
-- unscaled(find, value) returns the value before such constants, and their product.
--
-- scaled(find, value) returns the value behind the constants that it is multiplied by.
--
-- told(find, whole, head, output) returns words about an output that such functions make of the head. They are empty
-- for the head itself and for a column of it. Nil for any other output.
--
-- is_end(find, node) says whether a node is such an operator, over any axes. Its result may be read by the caller and
-- by other such operators alone.
--
--     whole    of gen/onnx/whole.lua
--     head     of gen/onnx/whole_head.lua

local indices = require "onnx.indices"
local meanings = require "onnx.meanings"
local rows = require "onnx.rows"
local values = require "onnx.values"
local whole_layers = require "onnx.whole_layers"
local wording = require "base.wording"

local M = {}

local origin = rows.origin

-- ---- what a function is ----

-- What operators make of scores, along axes { axis = true }. An attribute of ArgMax says its axis; Sigmoid has none.
local NAMED = {
  ArgMax = false,
  LogSoftmax = function(run, x, axes) return run:apply("log", run:softmax(x, axes)) end,
  Sigmoid = function(run, x) return meanings.rows.Sigmoid(run, nil, x) end,
  Softmax = function(run, x, axes) return run:softmax(x, axes) end,
}

local LEAST = 1e-6 -- that a length may be replaced by, because rows are longer

local function divided(run, x, axes)
  return run:apply("div", x, run:apply("sqrt", run:reduced("sum", run:apply("mul", x, x), axes)))
end

local HOW = { Mul = "%s times %s", Div = "%s divided by %s" }

-- A node that multiplies or divides by something that is the same for all scores of a text: is_one(value) -> what it is
-- called, or nil.
local function scaled_by(find, value, is_one)
  local node = find.graph.makers[value]
  if not node or node.domain ~= "" or not HOW[node.op] then return nil end
  for k = node.op == "Mul" and 1 or 2, 2 do
    local name = is_one(node.inputs[k])
    if name then
      return { node = node, x = node.inputs[3 - k], out = value, operand = node.inputs[k], plain = true,
               words = function(of) return HOW[node.op]:format(of, name) end }
    end
  end
end

-- A product with a constant of the file.
local function constant(find, value)
  local made = scaled_by(find, value, function(name)
    local x = find.elements:scalar(name)
    return x and ("%g"):format(x)
  end)
  if made then
    local x = find.elements:scalar(made.operand) + 0.0
    made.by = made.node.op == "Mul" and x or 1 / x
  end
  return made
end

-- A product with one number that a run gives for each text, such as a temperature.
local function given(find, whole, value)
  local shapes, kinds = find.single().elements.shapes, whole.ids and whole.ids.text.kinds or {}
  return scaled_by(find, value, function(name)
    name = origin(find, name)
    for _, input in ipairs(find.graph.inputs) do
      local shape = shapes[name]
      if input == name and not kinds[name] and shape and indices.count(shape) == 1 then return wording.short(name) end
    end
  end)
end

-- The function that makes a value, if it is one of these: { node, x, out, of = a formula or false, words(of, along),
-- plain = whether it is one of single numbers, so that no axis matters }.
local function function_of(find, whole, value)
  value = origin(find, value)
  local node, norm = find.graph.makers[value], find.row_norms[value]
  if norm and norm.kind == "l2" and norm.eps <= LEAST and not norm.gains then
    return { node = node, x = norm.x, out = value, of = divided, words = function(of, along)
      return along == "of" and of .. " divided by its length" or nil
    end }
  end
  if node and node.domain == "" and node.outputs[1] == value and NAMED[node.op] ~= nil then
    return { node = node, x = node.inputs[1], out = value, of = NAMED[node.op], plain = node.op == "Sigmoid",
             words = function(of, along) return ("%s %s %s"):format(node.op, along, of) end }
  end
  return constant(find, value) or given(find, whole, value)
end

function M.behind(find, whole, value)
  local list, made = {}, function_of(find, whole, value)
  while made do
    list[#list + 1] = made
    made = function_of(find, whole, made.x)
  end
  return list
end

-- ---- factors ----

-- Weights times a factor far from one would leave the range of float16.
local LEAST_FACTOR, MOST_FACTOR = 1 / 64, 1024

function M.fits(factor)
  local size = math.abs(factor)
  return size >= LEAST_FACTOR and size <= MOST_FACTOR
end

function M.unscaled(find, value)
  local all, from = 1, value
  local made = constant(find, origin(find, from))
  while made do
    all, from = all * made.by, made.x
    made = constant(find, origin(find, from))
  end
  if M.fits(all) then return from, all end
  return value, 1
end

function M.scaled(find, value)
  local readers = rows.readers(find, value)
  local made = #readers == 1 and constant(find, readers[1].outputs[1])
  return made and M.scaled(find, made.out) or value
end

function M.before(find, whole, value)
  local list = M.behind(find, whole, value)
  local count = #list
  local innermost = count > 0 and list[count].x or value
  while count > 0 and list[count].by do count = count - 1 end
  local from = count > 0 and list[count].x or value
  return M.unscaled(find, from) == from and innermost or from
end

-- ---- along which axis ----

-- The axes of a value behind a head, { axis = words }. Scores of all rows may also be taken along the rows, and a
-- column of them only so.
local function axes_of(find, whole, head, value)
  local shapes, axes = find.elements.shapes, {}
  local shape, of, width = shapes[value] or {}, shapes[whole.rows], head.steps[#head.steps].width
  if shape[#shape] == width and not (head.columns and #shape < #of) then axes[#shape] = "of" end
  local by_rows = head.rows == "all" and #of > 2
  for k = 1, #of - 1 do by_rows = by_rows and shape[k] == of[k] end
  if by_rows and #shape <= #of then axes[#of - 1] = "over the rows of" end
  return axes
end

-- Whether a function is taken along an axis.
local function is_along(find, made, axis, rank)
  if made.plain then return true end
  if not made.of then return indices.axis_of(made.node, 0, rank) == axis end
  return (indices.attempt(function()
    whole_layers.prove(find, { made.x }, made.out, function(run, x)
      return made.of(run, values.reshaped(x, run.shapes[made.x]), { [axis] = true })
    end)
    return true
  end))
end

-- Words about a function of `of`, or nil where it is taken along other axes.
local function words_of(find, whole, head, made, of)
  local axes, rank = axes_of(find, whole, head, made.x), #(find.elements.shapes[made.x] or {})
  for axis = rank, 1, -1 do
    if axes[axis] and is_along(find, made, axis, rank) then
      return made.words(of, made.plain and "of" or axes[axis])
    end
  end
end

-- What the caller knows a value as: the head, or a column of it; or nil.
local function name_of(find, head, value)
  value = origin(find, value)
  if value == head.value then return "args." .. head.name end
  local column = head.columns and head.columns[value]
  return column and ("column %d of args.%s"):format(column, head.name)
end

function M.told(find, whole, head, output)
  local list, of, count = M.behind(find, whole, output), name_of(find, head, output), 0
  while not of and list[count + 1] do
    count = count + 1
    of = name_of(find, head, list[count].x)
  end
  local nodes = {}
  for i = of and count or 0, 1, -1 do
    nodes[#nodes + 1], of = wording.short(list[i].node.name), words_of(find, whole, head, list[i], of)
    if not of then return nil end
  end
  if not of or count == 0 then return of and "" end
  return ("%s (%s %s before output %s), which stays with the caller"):format(of, nodes[2] and "nodes" or "node",
    table.concat(nodes, " and "), wording.short(output))
end

function M.is_end(find, node)
  if node.domain ~= "" or NAMED[node.op] == nil and not constant(find, node.outputs[1]) then return false end
  local readers = rows.readers(find, node.outputs[1])
  for _, reader in ipairs(readers) do
    if not M.is_end(find, reader) then return false end
  end
  return readers[1] ~= nil or rows.is_output(find, node.outputs[1])
end

return M
