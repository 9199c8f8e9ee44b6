-- Measured configs as data: lines of JSON -> checked rows, their columns, and what may be asked of
-- them: to keep some, to order them, to compare two sweeps. The report shows them.

local json = require "dkjson"
local config = require "config"
local grammar = require "name"
local results = require "lab.results"

local M = {}

local function refuse(...) error({ message = string.format(...) }, 0) end

-- ---- columns ----

-- The type of a column's values where they are not numbers.
local types = { config = "table", disturbed = "boolean" }
for key in ("shape name status message command same_as version compiler flags cpu system"):gmatch("%S+") do
  types[key] = "string"
end

-- How a column is called where people read it, if not by its key.
local titles = {
  us_min = "fastest", us_median = "time", us_p99 = "p99", us_cold = "cold time", gflops = "speed",
  peak_gflops = "peak", fma_speedup = "FMA speedup", fraction = "of peak", text_bytes = "code",
  workspace_bytes = "workspace", packed_bytes = "packed weights", generate_seconds = "generating",
  compile_seconds = "compiling", us_there = "time there", ratio = "there / here",
}
-- unit -> decimals. A fraction is written in percent, an error with an exponent.
local decimals = { us = 2, ["GFLOP/s"] = 1, ["%"] = 1, s = 2, x = 3 }

-- What a comparison adds to a row.
local verdicts = { "faster", "within", "slower", "fails", "still fails", "fixed", "only here" }
local compared = {
  { "us_there", "us", "time of the same config in the other sweep" },
  { "ratio", "x", "time in the other sweep over the time here" },
  { "verdict", "", "of the comparison", choices = verdicts },
}

-- In order, and by key: the shape, the fields, a comparison, the keys of the config. `words`: of
-- texts, whose order may be in `choices`; `decimals` may be "e"; `in_shape`: the shape tells it.
M.columns = {}

local function add(column)
  column.title = titles[column.key] or column.of_config and column.key or column.key:gsub("_", " ")
  column.words = column.choices ~= nil or types[column.key] == "string"
  M.columns[#M.columns + 1], M.columns[column.key] = column, column
end

add { key = "shape", unit = "", doc = "the config without ISA, unroll and schedule" }
for _, fields in ipairs { results.fields, compared } do
  for _, field in ipairs(fields) do
    local key, unit, doc = table.unpack(field)
    if key == "fraction" then unit = "%" end
    add { key = key, unit = unit, doc = doc, choices = field.choices,
          decimals = key == "error" and "e" or decimals[unit] }
  end
end
-- A shape is what a default name tells, without ISA and unroll.
local in_name = grammar.parse("mha_f32_h1_d1_k1_s1_scalar")
in_name.isa, in_name.unroll = nil, nil
local rules = {}
for _, rule in ipairs(config.schema) do
  rules[rule.key] = rule
  if not M.columns[rule.key] then -- the name is a field already
    add { key = rule.key, unit = "", doc = rule.doc, choices = rule.choices, of_config = true,
          in_shape = in_name[rule.key] ~= nil, same_as = rule.same_as }
  end
end

local known = {}
for _, field in ipairs(results.fields) do known[field[1]] = types[field[1]] or "number" end

-- ---- reading ----

-- The lines of a file of JSON objects, each through check(object, where). The last one may be cut
-- short: a sweep can be killed while it writes. Returns the list, and a note if that happened.
local function read_lines(text, path, check)
  local list, number, note = {}, 0, nil
  for line, ending in text:gmatch("([^\n]*)(\n?)") do
    number = number + 1
    if line:find("%S") then
      local object, after = json.decode(line)
      local where = ("%s:%d"):format(path, number)
      if line:match("^%s*{") and object and not line:find("%S", after) then
        list[#list + 1] = check(object, where)
      elseif ending == "" then
        note = where .. ": the last line is incomplete and left out"
      else
        refuse("%s: not a JSON object", where)
      end
    end
  end
  return list, note
end

-- The keys of the config become columns of the row, with their defaults. A key of the schedule that
-- is not given is "plan".
local function flatten(row, where)
  for key, value in pairs(row.config) do
    local rule = rules[key]
    if not rule then refuse("%s: unknown config key '%s'", where, key) end
    if type(value) == "table" or rule.min and type(value) ~= "number" then
      refuse("%s: config: %s is of the wrong type", where, key)
    end
  end
  local cfg = {}
  for _, rule in ipairs(config.schema) do
    local value = row.config[rule.key]
    if value == nil then value = rule.default end
    if value == nil then value = cfg[rule.same_as] end
    if value == nil and rule.required then refuse("%s: the config has no %s", where, rule.key) end
    if value == nil then value = "plan" end
    cfg[rule.key] = value
    if rule.key ~= "name" then row[rule.key] = value end
  end
  cfg.unroll = "auto" -- which the name then does not mention
  row.shape = grammar.shape(cfg)
  row.config = nil
end

local function check_row(row, where)
  for key, value in pairs(row) do
    if not known[key] then refuse("%s: unknown column '%s'", where, key) end
    if type(value) ~= known[key] then refuse("%s: %s is not a %s", where, key, known[key]) end
  end
  for _, key in ipairs { "name", "status", "config" } do
    if row[key] == nil then refuse("%s: no %s", where, key) end
  end
  if row.status == "ok" and (row.us_median or 0) <= 0 then refuse("%s: no us_median", where) end
  flatten(row, where)
  if row.fraction then row.fraction = row.fraction * 100 end
  return row
end

-- The text of a results.jsonl -> a sweep: { dir, rows, notes }.
function M.read(text, path)
  local rows, note = read_lines(text, path, check_row)
  if #rows == 0 then refuse("%s: no results", path) end
  local notes, disturbed, shared = { note }, 0, 0
  for _, row in ipairs(rows) do
    if row.disturbed then disturbed = disturbed + 1 end
    if row.same_as then shared = shared + 1 end
  end
  if shared > 0 then
    notes[#notes + 1] = ("%d of %d configs have the code of another one, and its numbers"):format(shared, #rows)
  end
  if disturbed > 0 then
    notes[#notes + 1] = ("%d of %d measurements were disturbed by other work"):format(disturbed,
                                                                                      #rows)
  end
  return { dir = path:match("^(.*)/"), rows = rows, notes = notes }
end

local tuning_types = { shape = "string", method = "string", second = "number", us = "number",
                       default_us = "number" }

-- The text of a tune.jsonl, which becomes a part of the sweep.
function M.read_tuning(sweep, text, path)
  local function check(row, where)
    for key, wanted in pairs(tuning_types) do
      if type(row[key]) ~= wanted then refuse("%s: %s is not a %s", where, key, wanted) end
    end
    return row
  end
  sweep.tuning, sweep.notes[#sweep.notes + 1] = read_lines(text, path, check)
end

-- ---- choosing and ordering ----

local function column_of(option, key)
  return M.columns[key] or refuse("report: %s %s: no such column", option, key)
end

-- Keeps the rows that pass each filter, a text KEY=VALUE[,VALUE...].
function M.filter(sweep, filters)
  for _, text in ipairs(filters) do
    local key, values = text:match("^([^=]+)=(.*)$")
    if not key then refuse("report: --filter %s: must be KEY=VALUE[,VALUE...]", text) end
    column_of("--filter", key)
    local wanted, kept = {}, {}
    for value in values:gmatch("[^,]+") do wanted[value] = true end
    for _, row in ipairs(sweep.rows) do
      if wanted[tostring(row[key])] then kept[#kept + 1] = row end
    end
    if #kept == 0 then refuse("report: --filter %s: no row of %s passes", text, sweep.dir) end
    sweep.rows = kept
  end
end

-- What a value is ordered by: a choice by its place, a number as it is, numbers in words padded.
local function rank(column, value)
  for i, choice in ipairs(column.choices or {}) do
    if choice == value then return i end
  end
  if value == nil or value == "plan" then return -math.huge end
  if type(value) == "number" then return value end
  return (tostring(value):gsub("%d+", function(number) return ("%12s"):format(number) end))
end

local function rank_before(a, b)
  if type(a) == type(b) then return a < b end
  return type(a) == "number"
end

-- Orders rows by the column of that key, from the least, or `reverse` from the greatest.
function M.sort(rows, key, reverse)
  local column, ranks = column_of("--sort", key), {}
  for _, row in ipairs(rows) do ranks[row] = rank(column, row[key]) end
  table.sort(rows, function(a, b)
    if reverse then a, b = b, a end
    return rank_before(ranks[a], ranks[b])
  end)
end

-- The values that rows have in a column, in order.
function M.values(rows, column)
  local seen, values = {}, {}
  for _, row in ipairs(rows) do
    local value = row[column.key]
    if value ~= nil and not seen[value] then
      seen[value] = true
      values[#values + 1] = value
    end
  end
  table.sort(values, function(a, b) return rank_before(rank(column, a), rank(column, b)) end)
  return values
end

-- What varies in a sweep: the columns of the keys of the config, of the circumstances, and of the
-- shape that have more than one value; a list of { column =, values = }. A key that always takes
-- its value from another one says nothing new.
function M.axes(sweep)
  local axes = {}
  local function try(column)
    local values = M.values(sweep.rows, column)
    if #values > 1 then axes[#axes + 1] = { column = column, values = values } end
  end
  local function copies(column)
    for _, row in ipairs(sweep.rows) do
      if row[column.key] ~= row[column.same_as] then return false end
    end
    return true
  end
  for _, column in ipairs(M.columns) do
    if column.of_config and not (column.same_as and copies(column)) then try(column) end
  end
  for key in ("threads verdict compiler flags version cpu cores system"):gmatch("%a+") do
    try(M.columns[key])
  end
  try(M.columns.shape)
  return axes
end

local function kept(rows, accept)
  local list = {}
  for _, row in ipairs(rows) do
    if accept(row) then list[#list + 1] = row end
  end
  return list
end

-- The rows that were measured.
function M.succeeded(rows) return kept(rows, function(row) return row.status == "ok" end) end

-- The rows that were not skipped, for want of a CPU that could run them.
function M.tried(rows) return kept(rows, function(row) return row.status ~= "skipped" end) end

-- ---- comparing ----

-- The same for two rows if they are of one config; the name does not count.
local function identity(row)
  local words = { "threads=" .. tostring(row.threads) }
  for i, column in ipairs(M.columns) do
    words[i + 1] = column.of_config and tostring(row[column.key]) or ""
  end
  return table.concat(words, " ")
end

-- Adds to the rows of a sweep how they did in another one. Differences within `band` percent are
-- noise; swapping the sweeps swaps faster and slower.
function M.compare(sweep, other, band)
  local there, here, most = {}, {}, 1 + band / 100
  for _, row in ipairs(M.tried(other.rows)) do there[identity(row)] = row end -- of several the last
  local counts, logs = {}, 0
  for _, verdict in ipairs(verdicts) do counts[verdict] = 0 end
  for _, row in ipairs(M.tried(sweep.rows)) do
    local key = identity(row)
    local match, ok = there[key], row.status == "ok"
    here[key] = true
    if not match then
      row.verdict = "only here"
    elseif ok and match.status == "ok" then
      row.us_there, row.ratio = match.us_median, match.us_median / row.us_median
      row.verdict = row.ratio > most and "slower" or row.ratio < 1 / most and "faster" or "within"
      logs = logs + math.log(row.ratio)
    else
      row.verdict = ok and "fails" or match.status == "ok" and "fixed" or "still fails"
    end
    counts[row.verdict] = counts[row.verdict] + 1
  end
  local only_there = {}
  for _, row in ipairs(M.tried(other.rows)) do
    if not here[identity(row)] then only_there[#only_there + 1] = row end
  end
  local timed = counts.faster + counts.within + counts.slower
  sweep.comparison = { dir = other.dir, band = band, counts = counts, timed = timed,
                       mean = timed > 0 and math.exp(logs / timed) or nil, only_there = only_there }
end

-- In what the other sweep is worse, or nil.
function M.regression(sweep)
  local counts, band = sweep.comparison.counts, sweep.comparison.band
  if counts.slower + counts.fails == 0 then return nil end
  return ("report: of %d configs %d are slower by more than %g %%; %d fail that did not"):format(
    sweep.comparison.timed + counts.fails, counts.slower, band, counts.fails)
end

return M
