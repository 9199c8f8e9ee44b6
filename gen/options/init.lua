-- The options, in order and by key, and what a config's options amount to: the header bits, the words of
-- its description, the pointers that it needs, what it must not combine.

local kinds = require "options.kinds"
local rows = require "options.rows"

local M = { list = {}, always = rows.always, elsewhere = rows.elsewhere }

-- The rows that are part of a name, and those of a description, in their order there: sizes come first, the ISA
-- comes last.
M.told = { name = {}, word = {} }

local function place(row)
  if row.kind == "integer" then return 1 end
  return row.required and 3 or 2
end

local known = {} -- the fields of a row
for field in ([[key kind min max choices doc default same_as required example computed also divides multiple excludes
                beside name word bit number args weights idle draw schedule planned]]):gmatch("%S+") do
  known[field] = true
end

-- Adds a row. planned: what is not given is the plan's choice; such a row is of the schedule.
function M.add(row, planned)
  local kind = kinds[row.kind] or error(("option %s: no kind %s"):format(row.key, tostring(row.kind)))
  for field in pairs(row) do
    if not known[field] then error(("option %s: unknown field %s"):format(row.key, field)) end
  end
  for _, field in ipairs(kind.fields) do
    if row[field] == nil then error(("option %s: missing %s"):format(row.key, field)) end
  end
  if not row.doc then error(("option %s: missing doc"):format(row.key)) end
  if M.list[row.key] then error(("option %s is there already"):format(row.key)) end
  row.planned = planned or false
  if row.schedule == nil then row.schedule = row.planned end
  M.list[#M.list + 1], M.list[row.key] = row, row
  for field, list in pairs(M.told) do
    local at = #list
    while at > 0 and place(list[at]) > place(row) do at = at - 1 end
    if row[field] then table.insert(list, at + 1, row) end
  end
end

for _, row in ipairs(rows.options) do M.add(row) end
for _, row in ipairs(rows.schedule) do M.add(row, true) end

function M.rule(row) return kinds[row.kind].rule(row) end
function M.values(row) return kinds[row.kind].values(row) end
function M.from_text(row, text) return kinds[row.kind].from_text(row, text) end
function M.accept(row, value) return kinds[row.kind].accept(row, value) end

-- What a missing key stands for; but the name's default is computed from the others.
function M.default(row, values)
  if row.same_as then return values[row.same_as] end
  return row.default
end

-- Whether the option has another value than its default.
function M.on(row, values)
  local value = values[row.key]
  if value == nil or value == row.default then return false end
  return not row.same_as or value ~= values[row.same_as]
end

local function each_on(cfg)
  local on = {}
  for _, row in ipairs(M.list) do
    if M.on(row, cfg) then on[#on + 1] = row end
  end
  return ipairs(on)
end

local function any_on(keys, values)
  for _, key in ipairs(keys) do
    if M.on(M.list[key], values) then return true end
  end
  return false
end

-- The rule that a row breaks beside the other values, or nil.
local function broken(row, values)
  local value = values[row.key]
  if row.divides and value and values[row.divides] % value ~= 0 then
    return ("must divide %s = %d"):format(row.divides, values[row.divides])
  end
  local of, by = table.unpack(row.multiple or {})
  if of and value and value % (values[of] // values[by]) ~= 0 then
    return ("must be a multiple of %s / %s = %d"):format(of, by, values[of] // values[by])
  end
  if not M.on(row, values) then return nil end
  if row.beside and not any_on(row.beside, values) then
    return ("must be with one of %s, or it has no effect"):format(table.concat(row.beside, ", "))
  end
  for _, other in ipairs(row.excludes or {}) do
    local there = values[other.key] == other.is
    if other.is == nil then there = M.on(M.list[other.key], values) end
    if there then
      local must = row.same_as and ("equal %s = %s"):format(row.same_as, M.default(row, values))
        or "be " .. tostring(M.default(row, values))
      local with = (other.is == nil or other.is == true) and other.key or ("%s = %s"):format(other.key, other.is)
      return ("must %s with %s, %s"):format(must, with, other.why)
    end
  end
end

-- The first rule between keys that the values break, { key =, value =, rule = }, or nil.
function M.conflict(values)
  for _, row in ipairs(M.list) do
    local rule = broken(row, values)
    if rule then return { key = row.key, value = values[row.key], rule = rule } end
  end
end

-- The words of a config's description.
function M.words(cfg)
  local words = {}
  for _, row in ipairs(M.told.word) do
    if M.on(row, cfg) then words[#words + 1] = row.word:format(cfg[row.key]) end
  end
  return words
end

-- What the plan could not do: rows and why.
function M.idle(plan)
  local list = {}
  for _, row in each_on(plan.cfg) do
    local why = row.idle and row.idle(plan)
    if why then list[#list + 1] = { row, why } end
  end
  return list
end

-- The bits of mhagen_kernel.options, by their names in mhagen.h.
function M.bits(plan)
  local bits = {}
  for _, row in each_on(plan.cfg) do
    if row.bit and not (row.idle and row.idle(plan)) then bits[#bits + 1] = row.bit end
  end
  return bits
end

-- The rows whose values mhagen_kernel has as numbers.
function M.numbers(cfg)
  local list = {}
  for _, row in each_on(cfg) do
    if row.number then list[#list + 1] = row end
  end
  return list
end

-- The pointers that a config needs, of `args` or of `weights`: { pointer =, aligned =, input =, most = }, the
-- last a number.
function M.needs(cfg, of)
  local list = table.move(M.always[of], 1, #M.always[of], 1, {})
  for _, row in each_on(cfg) do
    for _, need in ipairs(row[of] or {}) do
      list[#list + 1] = { pointer = need.pointer, aligned = need.aligned, input = need.input,
                          most = need.most and cfg[need.most] }
    end
  end
  return list
end

return M
