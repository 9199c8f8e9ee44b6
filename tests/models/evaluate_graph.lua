-- build/mhagen-evaluate GRAPH.onnx: what gen/onnx/evaluate.lua computes for the outputs of a graph without inputs, a
-- line for each: its axes, and its numbers. --rows: the operators that it knows.

local host = require "host"
local bodies = require "onnx.bodies"
local constants = require "onnx.constants"
local elements_of = require "onnx.elements"
local errors = require "command.errors"
local evaluate = require "onnx.evaluate"
local file = require "onnx.file"
local open_extents = require "onnx.open"
local shapes_of = require "onnx.shapes"

local function print_lines(lines) errors.must(host.print(table.concat(lines, "\n") .. "\n")) end

return function(arguments)
  local path = arguments[1]
  if path == "--rows" then
    print_lines(evaluate.operators())
    return 0
  end
  local graph = file.read(errors.must(host.open_file(path)), path, host.type_size)
  local opened, shapes, outputs, lines = bodies.opened(graph), {}, {}, {}
  local elements = elements_of.new(opened, shapes)
  shapes_of.of(opened, shapes, elements, open_extents.new({}))
  for name in pairs(graph.outputs) do outputs[#outputs + 1] = name end
  local plan, why = evaluate.plan(opened, shapes, outputs, {})
  local values
  if plan then values, why = evaluate.run(plan, host.arrays, {}, constants.of) end
  if not values then return 2, why end
  for i, name in ipairs(outputs) do
    local words, value = {}, values[name]
    for k, x in ipairs(host.arrays.list(value.at, 0, #value.at // 8)) do words[k] = ("%.17g"):format(x) end
    lines[i] = ("%s|%s|%s"):format(name, table.concat(value.shape, " "), table.concat(words, " "))
  end
  print_lines(lines)
  return 0
end
