-- Measured configs as data, for the report: reads lines of JSON as checked rows with columns, filters and orders
-- rows, and compares two sweeps.

local json = require "base.json"
local config = require "options.config"
local grammar = require "options.name"
local kinds = require "options.kinds"
local results = require "lab.results"
local rows_of = require "lab.rows"

local M = { columns = rows_of.columns, constant = rows_of.constant, list = rows_of.list }

local function refuse(...) error({ message = string.format(...) }, 0) end

-- ---- reading ----

local EXAMPLES = 3 -- of what is wrong with lines

-- Passes each JSON object of the lines that next_line returns to check(object), which raises an error if the
-- object is wrong. Wrong lines are left out; the notes say how many there are, and why the first ones were
-- left out. The last line may be cut short, since a sweep can be killed while it writes. Returns how many
-- lines are left out; raises an error if no other line is there.
local function read_lines(next_line, path, check, notes)
  local number, taken, wrong = 0, 0, {}
  for line in next_line do
    number = number + 1
    if line:find("%S") then
      local object = line:match("^%s*{") and json.decode(line)
      local ok, e
      if object then ok, e = pcall(check, object) end
      if ok then
        taken = taken + 1
      elseif object and not (type(e) == "table" and e.message) then
        error(e, 0)
      elseif object or line:sub(-1) == "\n" then
        wrong[#wrong + 1] = ("%s:%d: %s"):format(path, number, object and e.message or "not a JSON object")
      else
        notes[#notes + 1] = ("%s:%d: the last line is incomplete and left out"):format(path, number)
      end
    end
  end
  for i = 1, math.min(#wrong, EXAMPLES) do notes[#notes + 1] = wrong[i] .. "; left out" end
  if #wrong > EXAMPLES then
    notes[#notes + 1] = ("%d lines of %s are left out"):format(#wrong, path)
  end
  return #wrong, taken == 0 and (wrong[1] or path .. ": no results") or nil
end

-- A value as one of a type; nil if it is none. A text may look like a number.
local function as(kind, value)
  if kind == "string" and type(value) == "number" then return tostring(value) end
  if type(value) ~= kind or kind == "number" and value - value ~= 0 then return nil end
  return value
end

-- Whether a value is possible for a key of a config.
local function is_of(rule, value)
  if rule.kind == "number" then return type(value) == "number" end
  if rule.min then return math.type(value) == "integer" and value >= rule.min end
  if rule.default == false then return type(value) == "boolean" end
  return type(value) == "string"
end

-- What each line asks of a key of the config: rule, column, whether the name tells it, and choices. The value that
-- passed last is kept, for most rows repeat it.
local of_config = {}
for i, rule in ipairs(config.schema) do
  local known = rule.choices and {}
  for _, choice in ipairs(known and kinds.choices(rule) or {}) do known[choice] = true end
  of_config[i] = { rule = rule, key = rule.key, column = rule.key ~= "name" and results.column_of(rule.key),
                   in_name = rows_of.in_shape(rule), known = known }
end

local NONE = {} -- in the place of a value of an option without a default that is not given

-- Moves the config's values to the columns, with their defaults. A schedule key that is not given has the
-- value "plan".
local function flatten(given, values, shapes)
  local leaf = shapes -- a tree with a level for each key that the name tells
  for i = 1, #of_config do
    local one = of_config[i]
    local rule, key = one.rule, one.key
    local value = given[key]
    if value ~= nil then
      given[key] = nil
      if value ~= one.passed then
        if not is_of(rule, value) then refuse("config: %s is of the wrong type", key) end
        if one.known and not one.known[value] then refuse("config: %s = '%s' is not known", key, value) end
        one.passed = value
      end
    else
      value = rule.default
      if value == nil then value = values[rule.same_as] end
      if value == nil and rule.required then refuse("the config has no %s", key) end
      if value == nil and not grammar.tells(rule) then value = "plan" end
    end
    if one.column then values[one.column] = value end
    if one.in_name then
      local at = value == nil and NONE or value
      local branch = leaf[at]
      if not branch then
        branch = {}
        leaf[at] = branch
      end
      leaf = branch
    end
  end
  local unknown = next(given)
  if unknown ~= nil then refuse("unknown config key '%s'", unknown) end
  if not leaf.shape then
    local unroll = values.unroll
    values.unroll = "auto" -- which the name then does not mention
    leaf.shape = grammar.shape(values)
    values.unroll = unroll
  end
  values.shape = leaf.shape
end

local needed = { "name", "status", "config" }

-- A line's object -> the values of the columns, which are those of the line before.
local function check_row(row, values, shapes)
  local fields = results.fields
  for i = 1, #fields do
    local field = fields[i]
    local key = field[1]
    local value = row[key]
    if value ~= nil then
      if value ~= values[key] then
        local kind = field.type or "number"
        value = as(kind, value)
        if value == nil then refuse("%s is not a %s", key, kind) end
      end
      row[key] = nil
    end
    values[key] = value
  end
  local unknown = next(row)
  if unknown ~= nil then refuse("unknown column '%s'", unknown) end
  for _, key in ipairs(needed) do
    if values[key] == nil then refuse("no %s", key) end
  end
  if values.status == "ok" and (values.us_median or 0) <= 0 then refuse("no us_median") end
  flatten(values.config, values, shapes)
  values.config = nil
  if values.fraction then values.fraction = values.fraction * 100 end
end

-- The lines of a results.jsonl -> a sweep: { dir, rows, notes, left_out }.
function M.read(next_line, path)
  local notes, values, shapes, rows, add = {}, {}, {}, rows_of.new()
  local left_out, nothing = read_lines(next_line, path, function(object)
    check_row(object, values, shapes)
    add(values)
  end, notes)
  if nothing then error({ message = nothing }, 0) end
  local disturbed, shared = 0, 0
  local was_disturbed, same_as = M.list(rows, "disturbed"), M.list(rows, "same_as")
  for i = 1, #rows do
    if was_disturbed[i] then disturbed = disturbed + 1 end
    if same_as[i] then shared = shared + 1 end
  end
  if shared > 0 then
    notes[#notes + 1] = ("%d of %d configs have the code of another one, and its numbers"):format(shared, #rows)
  end
  if disturbed > 0 then
    notes[#notes + 1] = ("%d of %d measurements were disturbed by other work"):format(disturbed,
                                                                                      #rows)
  end
  return { dir = path:match("^(.*)/"), rows = rows, notes = notes, left_out = left_out }
end

local tuning_types = { shape = "string", method = "string", second = "number", us = "number",
                       default_us = "number" }

-- Reads the lines of a tune.jsonl, which become a part of the sweep.
function M.read_tuning(sweep, next_line, path)
  sweep.tuning = {}
  local left_out, nothing = read_lines(next_line, path, function(row)
    for key, kind in pairs(tuning_types) do
      if as(kind, row[key]) == nil then refuse("%s is not a %s", key, kind) end
    end
    sweep.tuning[#sweep.tuning + 1] = row
  end, sweep.notes)
  if left_out > 0 and nothing then error({ message = nothing }, 0) end
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

-- The key by which a value is ordered: the place of a choice, a number as it is, a text with padded numbers.
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
  local seen, values, key = {}, {}, column.key
  if #rows > 0 and M.constant(rows, key) then rows = { rows[1] } end
  local list, ranks = #rows > 0 and M.list(rows, key), {}
  for i = 1, #rows do
    local value = list[i]
    if value ~= nil and not seen[value] then
      seen[value], ranks[value] = true, rank(column, value)
      values[#values + 1] = value
    end
  end
  table.sort(values, function(a, b) return rank_before(ranks[a], ranks[b]) end)
  return values
end

-- The columns that vary in a sweep, of the keys of the config, of the circumstances and of the shape: a list of
-- { column =, values = }. A key that always takes its value from another key is left out.
function M.axes(sweep)
  if sweep.axes then return sweep.axes end
  local axes = {}
  local function try(column)
    local values = M.values(sweep.rows, column)
    if #values > 1 then axes[#axes + 1] = { column = column, values = values } end
  end
  local function copies(column)
    if M.constant(sweep.rows, column.key) and M.constant(sweep.rows, column.same_as) then
      return sweep.rows[1][column.key] == sweep.rows[1][column.same_as]
    end
    local own, other = M.list(sweep.rows, column.key), M.list(sweep.rows, column.same_as)
    for i = 1, #sweep.rows do
      if own[i] ~= other[i] then return false end
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
  sweep.axes = axes
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

-- The rows that were not skipped. (A config is skipped if the CPU cannot run it.)
function M.tried(rows) return kept(rows, function(row) return row.status ~= "skipped" end) end

-- ---- comparing ----

-- A text that is the same for two rows if and only if they have the same config; the name does not count.
local function identity(row)
  local words = { "threads=" .. tostring(row.threads) }
  for i, column in ipairs(M.columns) do
    words[i + 1] = column.of_config and tostring(row[column.key]) or ""
  end
  return table.concat(words, " ")
end

-- Adds to the rows of a sweep how they compare with another one. Differences within `band` percent are
-- noise. Swapping the sweeps swaps faster and slower.
function M.compare(sweep, other, band)
  local there, here, most = {}, {}, 1 + band / 100
  for _, row in ipairs(M.tried(other.rows)) do there[identity(row)] = row end -- of several the last
  local counts, logs = {}, 0
  for _, verdict in ipairs(M.columns.verdict.choices) do counts[verdict] = 0 end
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

-- A message that says in what the other sweep is worse, or nil.
function M.regression(sweep)
  local counts, band = sweep.comparison.counts, sweep.comparison.band
  if counts.slower + counts.fails == 0 then return nil end
  return ("report: of %d configs %d are slower by more than %g %%; %d fail that did not"):format(
    sweep.comparison.timed + counts.fails, counts.slower, band, counts.fails)
end

return M
