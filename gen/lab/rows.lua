-- Rows of measured configs with their columns.
--
--   columns              in order, and by key
--   in_shape(rule)       whether a key of the config belongs to the shape
--   new()                an empty list of rows
--   constant(rows, key)  the value that all rows have, if there is one
--   list(rows, key)      the values of a column, by the numbers of rows

local config = require "options.config"
local grammar = require "options.name"
local kinds = require "options.kinds"
local results = require "lab.results"

local M = {}

-- ---- columns ----

-- The titles of columns that are not called by their key where people read them.
local titles = {
  us_min = "fastest", us_median = "time", us_p99 = "p99", us_cold = "cold time", gflops = "speed",
  peak_gflops = "peak", fma_speedup = "FMA speedup", fraction = "of peak", text_bytes = "code",
  workspace_bytes = "workspace", packed_bytes = "packed weights", generate_seconds = "generating",
  compile_seconds = "compiling", us_there = "time there", ratio = "there / here",
}
-- unit -> decimals. A fraction is written in percent, an error with an exponent.
local decimals = { us = 2, ["GFLOP/s"] = 1, ["%"] = 1, s = 2, x = 3 }

-- The fields that a comparison adds to a row.
local verdicts = { "faster", "within", "slower", "fails", "still fails", "fixed", "only here" }
local compared = {
  { "us_there", "us", "time of the same config in the other sweep" },
  { "ratio", "x", "time in the other sweep over the time here" },
  { "verdict", "", "of the comparison", choices = verdicts },
}

-- The columns in order, and by key: the shape, the fields, those of a comparison, the keys of the config.
-- `words`: values are texts, whose order may be in `choices`; `decimals` may be "e"; `in_shape`: the shape
-- tells the value.
M.columns = {}

local function add(column)
  column.title = titles[column.key] or column.of_config and column.key or column.key:gsub("_", " ")
  column.words = column.choices ~= nil or column.type == "string"
  M.columns[#M.columns + 1], M.columns[column.key] = column, column
end

add { key = "shape", unit = "", type = "string", doc = "the config without ISA, unroll and schedule" }
for _, fields in ipairs { results.fields, compared } do
  for _, field in ipairs(fields) do
    local key, unit, doc = table.unpack(field)
    if key == "fraction" then unit = "%" end
    add { key = key, unit = unit, doc = doc, choices = field.choices, type = field.type,
          decimals = key == "error" and "e" or decimals[unit] }
  end
end
-- A shape is all that a default name tells, but for ISA and unroll.
local of_no_shape = { isa = true, unroll = true }
function M.in_shape(rule) return grammar.tells(rule) and not of_no_shape[rule.key] end
for _, rule in ipairs(config.schema) do
  if rule.key ~= "name" then -- which is a field
    add { key = results.column_of(rule.key), unit = "", doc = rule.doc, of_config = true,
          choices = rule.choices and kinds.choices(rule), in_shape = M.in_shape(rule), same_as = rule.same_as }
  end
end

-- ---- rows ----

-- There are many rows with many columns, and most columns have one value in all rows. So a value that all
-- rows have is kept once. The other columns are lists, in which a row finds its value by its number.
function M.new()
  local rows, count, same, lists = {}, 0, {}, {}
  local constant, varying = {}, {} -- the keys of either kind
  local meta = { same = same, lists = lists, rows = rows } -- the rows in the order in which they came
  for i, column in ipairs(M.columns) do constant[i] = column.key end
  local function spread(key)
    local list, value = {}, same[key]
    for i = 1, count do list[i] = value end
    lists[key], varying[#varying + 1] = list, key
    for i = #constant, 1, -1 do
      if constant[i] == key then table.remove(constant, i) end
    end
    return list
  end
  function meta.__index(row, key)
    local list = lists[key]
    if list then return list[row[1]] end
    return same[key]
  end
  function meta.__newindex(row, key, value)
    local list = lists[key] or same[key] ~= value and spread(key)
    if list then list[row[1]] = value end
  end
  local function add(values)
    local number = count + 1
    for i = #constant, 1, -1 do
      local key = constant[i]
      local value = values[key]
      if same[key] ~= value then
        if count == 0 then same[key] = value else spread(key) end
      end
    end
    for i = 1, #varying do
      local key = varying[i]
      lists[key][number] = values[key]
    end
    count, rows[number] = number, setmetatable({ number }, meta)
  end
  return rows, add
end

-- Whether all rows of a sweep have the same value in a column, and the value. (Some of the rows may have one
-- value in a column in which the whole sweep has several.)
function M.constant(rows, key)
  local meta = getmetatable(rows[1])
  return not meta.lists[key], meta.same[key]
end

-- The values of all rows of a list in a column, nil where there is none: faster than row by row. Nobody changes them.
function M.list(rows, key)
  local meta = getmetatable(rows[1])
  local of, same = meta.lists[key], meta.same[key]
  if of and rows == meta.rows then return of end
  local list = {}
  for i = 1, #rows do
    if of then list[i] = of[rows[i][1]] else list[i] = same end
  end
  return list
end

return M
