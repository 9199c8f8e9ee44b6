-- What an ONNX graph of texts returns besides the rows of its last layer, in words for the summary: which of it the
-- caller has anyway, and the sizes of the rest.
--
--   told(find, ids, rows_of, name) -> words
--     ids       of gen/onnx/whole_ids.lua
--     rows_of   the value of the last rows
--     name      of the output

local indices = require "onnx.indices"
local rows = require "onnx.rows"
local values = require "onnx.values"
local whole_texts = require "onnx.whole_texts"

local M = {}

-- What may be taken of the rows of a text, { words, [batch][1][width] }; the first `seen` rows are no padding.
local function candidates(run, x, seen)
  local batch, count, width = table.unpack(x.shape)
  local flags = {}
  for r = 1, count do flags[r] = r <= seen and 1 / seen or 0.0 end
  local weights = values.value(run.arrays.numbers(flags), { 1, count, 1 })
  local first = run:moved(x, { batch, 1, width }, { count * width, width, 1 })
  local mean, list = run:reduced("sum", run:apply("mul", x, weights), { [2] = true }), {}
  for _, each in ipairs { { "the first row", first }, { "the mean of the rows", mean } } do
    local squares = run:reduced("sum", run:apply("mul", each[2], each[2]), { [3] = true })
    list[#list + 1] = each
    list[#list + 1] = { each[1] .. ", divided by its length", run:apply("div", each[2], run:apply("sqrt", squares)) }
  end
  return list
end

-- The words of that which an output is in a run with some rows of padding, or nil.
local function taken(find, ids, rows_of, name)
  local run, shape = rows.run(find), find.elements.shapes[rows_of]
  local count, width = shape[#shape - 1], shape[#shape]
  local batch, seen = indices.count(shape) // (count * width), count // 2 + 1
  local x = values.value(rows.drawn(run, 1, batch * count, width), { batch, count, width })
  local leaves = { [rows_of] = { at = x.at, integer = false } }
  local got = whole_texts.evaluated(find, ids.text, { name }, ids.draws[1], seen, leaves)[name]
  if indices.count(got.shape) ~= batch * width then return nil end
  for _, each in ipairs(candidates(run, x, seen)) do
    if run.arrays.difference(got.at, each[2].at) <= rows.near(find) * run:largest(each[2]) then return each[1] end
  end
end

function M.told(find, ids, rows_of, name)
  local words = indices.attempt(taken, find, ids, rows_of, name)
  local shape, of = find.elements.shapes[name], find.elements.shapes[rows_of]
  if words or not shape or #shape < 1 then return words or "what is made of the rows" end
  local by_rows = #shape == #of and shape[#shape - 1] == of[#of - 1]
  return ("%d numbers of each %s"):format(shape[#shape], by_rows and "row" or "text")
end

return M
