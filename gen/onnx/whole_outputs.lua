-- What an ONNX graph returns besides the rows of its last layer: which of it is the first row or the mean, and in words
-- for the summary the sizes of the rest.
--
--   taken(find, whole, name) -> first or mean, where the value is that row or the mean of all; of decoders last; or
--                               nil: also where ids decide what is taken, which draws need not show
--   told(find, whole, name) -> words about an output of a graph of texts
--     whole     of gen/onnx/whole.lua
--     name      of the value

local evaluate = require "onnx.evaluate"
local indices = require "onnx.indices"
local rows = require "onnx.rows"
local values = require "onnx.values"
local whole_texts = require "onnx.whole_texts"

local M = {}

-- What may be taken of rows, { words, [batch][1][width], rows = as M.taken returns it }. The mean is that of the rows
-- from number `from` to `to`: others are tokens or padding.
local function candidates(run, x, from, to, decodes)
  local batch, count, width = table.unpack(x.shape)
  local flags = {}
  for r = 1, count do flags[r] = r >= from and r <= to and 1 / (to - from + 1) or 0.0 end
  local weights = values.value(run.arrays.numbers(flags), { 1, count, 1 })
  local first = run:moved(x, { batch, 1, width }, { count * width, width, 1 })
  local last = run:moved(x, { batch, 1, width }, { count * width, width, 1 }, (count - 1) * width)
  local mean, list = run:reduced("sum", run:apply("mul", x, weights), { [2] = true }), {}
  for _, each in ipairs { { "the first row", first, rows = "first" },
                          { "the mean of the rows", mean, rows = "mean" },
                          decodes and { "the last row", last, rows = "last" } or nil } do
    local squares = run:reduced("sum", run:apply("mul", each[2], each[2]), { [3] = true })
    list[#list + 1] = each
    list[#list + 1] = { each[1] .. ", divided by its length", run:apply("div", each[2], run:apply("sqrt", squares)) }
  end
  return list
end

-- Those which a value is in a run, of texts with `seen` rows that are no padding: { candidate, .. }.
local function known(find, whole, name, seen)
  local run, shape, ids = rows.run(find), find.elements.shapes[whole.rows], whole.ids
  local count, width = shape[#shape - 1], shape[#shape]
  local batch, to, found = indices.count(shape) // (count * width), ids and seen(count) or count, {}
  local x = values.value(rows.drawn(run, 1, batch * count, width), { batch, count, width })
  local leaves = { [whole.rows] = { at = x.at, integer = false } }
  local got = whole_texts.evaluated(find, ids and ids.text or { kinds = {} }, { name }, ids and ids.draws[1], to,
    leaves)[name]
  if indices.count(got.shape) ~= batch * width then return found end
  for _, each in ipairs(candidates(run, x, ids and 1 or #whole.pixels.tokens + 1, to, whole.decodes)) do
    if run.arrays.difference(got.at, each[2].at) <= rows.near(find) * run:largest(each[2]) then
      found[#found + 1] = each
    end
  end
  return found
end

local function half(count) return count // 2 + 1 end
local SEEN = { half, function(count) return count end, function() return 1 end }

-- Whether ids or types decide what a value is made of.
local function reads_ids(find, whole, name)
  local plan = evaluate.plan(find.graph, find.elements.shapes, { name }, { [whole.rows] = true })
  for _, input in ipairs(plan and plan.inputs or {}) do
    local is_mask = whole.ids and whole.ids.text.kinds[input] == "mask"
    if input ~= whole.rows and not is_mask then return true end
  end
  return not plan
end

-- In runs of three lengths, with few and with all keys seen.
function M.taken(find, whole, name)
  if reads_ids(find, whole, name) then return nil end
  for _, kind in ipairs { "first", "mean", whole.decodes and "last" or nil } do
    local always = true
    for _, of in ipairs { find, find.few(), find.least() } do
      for _, seen in ipairs(SEEN) do
        local here = false
        for _, each in ipairs(indices.attempt(known, of, whole, name, seen) or {}) do
          here = here or each.rows == kind
        end
        always = always and here
      end
    end
    if always then return kind end
  end
end

function M.told(find, whole, name)
  local words = ((indices.attempt(known, find, whole, name, half) or {})[1] or {})[1]
  local shape, of = find.elements.shapes[name], find.elements.shapes[whole.rows]
  if words or not shape or #shape < 1 then return words or "what is made of the rows" end
  local by_rows = #shape == #of and shape[#shape - 1] == of[#of - 1]
  return ("%d numbers of each %s"):format(shape[#shape], by_rows and "row" or "text")
end

return M
