-- The options, in order and by key, and what follows from a config's options: header bits, words of its description,
-- required pointers, and rules between keys.

local kinds = require "options.kinds"
local rows = require "options.rows"

local M = { list = {}, always = rows.always, elsewhere = rows.elsewhere }

-- The rows that are part of a name, and those of a description, in the order in which these have them: sizes come
-- first, the ISA comes last.
M.told = { name = {}, word = {} }

local function place(row)
  if row.kind == "integer" or row.kind == "ladder" then return 1 end
  return row.required and 3 or 2
end

local known = {} -- the fields of a row
for field in ([[key kind min max choices hooks letters doc default same_as implied required example computed formula
                near also akin called native machines groups divides step even within multiple least excludes beside
                only name word bit number args fill idle draw schedule planned why]]):gmatch("%S+") do
  known[field] = true
end

local limiting = {} -- the rows with `only`

-- Adds a row. planned: the plan chooses a missing value, which makes it a row of the schedule.
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
  limiting[#limiting + 1] = row.only and row
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
function M.text(row, value) return (kinds[row.kind].to_text or tostring)(value) end
function M.accept(row, value) return kinds[row.kind].accept(row, value) end

-- The values of the several kernels that a row's value asks for, or nil.
function M.several(row, value)
  local several = kinds[row.kind].several
  return several and several(value)
end

-- The value of a missing key; but the default of the name is computed from the other keys.
function M.default(row, values)
  local implied = row.implied and row.implied(values)
  if implied then return implied end
  if row.same_as then return values[row.same_as] end
  return row.default
end

-- Whether the option differs from its default. A value that other keys imply counts as the default only if the row has
-- no default of its own.
function M.on(row, values)
  local value = values[row.key]
  if value == nil or value == row.default then return false end
  return row.default ~= nil or value ~= M.default(row, values)
end

-- Whether a kernel mentions the option's value. It also does if other keys imply a value that is not that of same_as.
local function told(row, values)
  local implied = row.same_as and row.implied and row.implied(values)
  return M.on(row, values) or (implied ~= nil and implied == values[row.key])
end

local function each_on(cfg)
  local on = {}
  for _, row in ipairs(M.list) do
    if M.on(row, cfg) then on[#on + 1] = row end
  end
  return ipairs(on)
end

-- Whether a rule applies to these values: { of = the row's own value, but = { key, value }, with = { key = value },
-- without = a key that has no value }.
local function concerns(what, row, values)
  local key, is = table.unpack(what.but or {})
  if what.without and values[what.without] then return false end
  for other, value in pairs(what.with or {}) do
    if values[other] ~= value then return false end
  end
  return (what.of == nil or what.of == values[row.key]) and not (key and values[key] == is)
end

-- Whether one of these keys is on. Each is a name, or { key =, but = } as above.
local function any_on(keys, values)
  for _, name in ipairs(keys) do
    local what = type(name) == "table" and name or { key = name }
    local row = M.list[what.key]
    if M.on(row, values) and concerns(what, row, values) then return true end
  end
  return false
end

-- The same keys as text.
function M.beside_text(keys, joint)
  local names = {}
  for i, name in ipairs(keys) do
    names[i] = name
    if type(name) == "table" then names[i] = ("%s (not %s = %s)"):format(name.key, table.unpack(name.but)) end
  end
  return table.concat(names, joint)
end

-- Whether a row is excluded by another one.
local function excluded(row, other, values)
  if not concerns(other, row, values) then return false end
  for _, value in ipairs(other.unless or {}) do
    if values[row.key] == value then return false end
  end
  local value = values[other.key]
  if other.lacks then return not kinds.letters_of(value):find(("[%s]"):format(other.lacks)) end
  if other.is ~= nil then return value == other.is end
  return M.on(M.list[other.key], values)
end

-- The message: what the value must be instead, and why.
local function refusal(row, other, values)
  local default, implied = M.default(row, values), row.implied and row.implied(values)
  local equal = row.same_as and not implied and ("equal %s = "):format(row.same_as)
  local must = { default == nil and "not be given" or (equal or "be ") .. tostring(default) }
  table.move(other.unless or {}, 1, #(other.unless or {}), 2, must)
  local short = not other.lacks and (other.is == nil or other.is == true)
  local with = short and other.key or ("%s = %s"):format(other.key, values[other.key])
  return ("must %s with %s, %s"):format(table.concat(must, " or "), with, other.why)
end

-- Whether `only` of a row leaves another one out, which has a value of its own.
local function left_out(by, row, values)
  local names = by.only[values[by.key]]
  if not names or (" " .. names .. " "):find(" " .. row.key .. " ", 1, true) then return false end
  return M.on(row, values) and values[row.key] ~= M.default(row, values)
end

-- The rule that a row's value breaks, given the other values, or nil.
local function broken(row, values)
  local value = values[row.key]
  for _, by in ipairs(limiting) do
    if left_out(by, row, values) then
      local must = row.implied and row.implied(values)
      return (must and "must be " .. tostring(must) or "has no effect") .. (" with %s = %s"):format(by.key,
        values[by.key])
    end
  end
  local least = row.least
  if least and values[least.with[1]] == least.with[2] and value < values[least.key] then
    return ("must be at least %s = %d with %s = %s"):format(least.key, values[least.key], table.unpack(least.with))
  end
  if row.divides and value and values[row.divides] % value ~= 0 then
    return ("must divide %s = %d"):format(row.divides, values[row.divides])
  end
  local of, by = table.unpack(row.multiple or {})
  if of and value and value % (values[of] // values[by]) ~= 0 then
    return ("must be a multiple of %s / %s = %d"):format(of, by, values[of] // values[by])
  end
  -- This includes a default, which may be odd too.
  if row.even and any_on(row.beside, values) and value % 2 ~= 0 then return "must be even" end
  if row.within and value and value > values[row.within] then
    return ("must be at most %s = %d"):format(row.within, values[row.within])
  end
  local on = M.on(row, values)
  for _, other in ipairs(row.excludes or {}) do
    if (on or other.of) and excluded(row, other, values) then return refusal(row, other, values) end
  end
  if on and row.beside and not any_on(row.beside, values) then
    return ("has no effect without %s"):format(M.beside_text(row.beside, " or "))
  end
end

-- The first rule that a ladder breaks, as M.conflict returns it; given its row, its values, and the configs of its
-- kernels.
function M.ladder_conflict(row, values, members)
  local first, last = members[1], members[#members]
  for _, other in ipairs(rows.ladder) do
    local key, must = other.key, other.must
    local about = (not other.row or other.row == row.key) and (not other.differs
      or first[other.differs] ~= last[other.differs]) and not (other.beside and not any_on(other.beside, last))
    local good = last[key] == must or other.unless and last[other.unless[1]] == other.unless[2]
    if about and not good then
      return { key = key, value = values[key], rule = ("must be %s with %s = %s, %s"):format(tostring(must), row.key,
        values[row.key], other.why) }
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

-- The number of rows in the inputs K and V.
function M.key_rows(cfg) return cfg.cache == "append" and cfg.seq or cfg.seq_kv end

-- The words of a config's description. What other keys imply goes without saying.
function M.words(cfg)
  local words = {}
  for _, row in ipairs(M.told.word) do
    local implied = row.default ~= nil and row.implied and row.implied(cfg) == cfg[row.key]
    if told(row, cfg) and not implied then words[#words + 1] = row.word:format(M.text(row, cfg[row.key])) end
  end
  return words
end

-- Options that have no effect in this plan, as rows with the reason.
function M.idle(plan)
  local list = {}
  for _, row in each_on(plan.cfg) do
    local why = row.idle and row.idle(plan)
    if why then list[#list + 1] = { row, why } end
  end
  return list
end

-- The option bits of a kernel, by their names in mhagen.h.
function M.bits(plan)
  local bits = {}
  for _, row in ipairs(M.list) do
    local bit, value = row.bit, plan.cfg[row.key]
    if type(bit) == "table" then bit = bit[value] elseif not told(row, plan.cfg) then bit = nil end
    if bit and not (row.idle and row.idle(plan)) then bits[#bits + 1] = bit end
  end
  return bits
end

-- The value of a row for mhagen_kernel: a number (number = true), or a constant with a prefix.
local function number_text(row, value)
  local number, text = kinds[row.kind].number, M.text(row, value)
  if number then return tostring(number(row, value)) end
  if row.number == true and row.kind == "choice" then return ('"%s"'):format(text) end
  return row.number == true and text or row.number .. text:upper()
end

-- The numbers of options in mhagen_kernel: { key, text } for options that are on, and for those without a bit.
function M.numbers(cfg)
  local list = {}
  for _, row in ipairs(M.list) do
    local value = cfg[row.key]
    if value ~= nil and row.number and (told(row, cfg) or row.beside and not row.bit and any_on(row.beside, cfg)) then
      list[#list + 1] = { row.key, number_text(row, value) }
    end
  end
  return list
end

-- The pointers that a config needs, from the field `args` or `fill` of the rows: { pointer =, aligned =, input =, most
-- =, ints =, ints_most =, rows = }; `most` and `ints_most` are numbers.
function M.needs(plan, of)
  local cfg, list = plan.cfg, {}
  for _, need in ipairs(M.always[of]) do
    if not need.bytes or plan[need.bytes] > 0 then list[#list + 1] = need end
  end
  for _, row in each_on(cfg) do
    for _, need in ipairs(row[of] or {}) do
      if concerns(need, row, cfg) and (not need.bytes or plan[need.bytes] > 0) then
        local less = need.less and (plan.shortest or cfg)[need.less] or 0
        list[#list + 1] = { pointer = need.pointer, aligned = need.aligned, input = need.input,
                            most = need.most and cfg[need.most] - less, ints = need.ints,
                            ints_most = need.ints and cfg[need.ints_most],
                            rows = need.rows and M.on(M.list[need.rows], cfg) and need.rows or nil }
      end
    end
  end
  return list
end

return M
