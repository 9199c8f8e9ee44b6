-- A config: makes one checked, frozen table from a CONFIG.lua and key=value arguments. The option rows have the keys
-- and their values.
--
--   load(entries, arguments, read_tuning, native)   the config, and which keys were given
--   changed(cfg, more)                              the same config with other values for some keys
--   members(cfg), is_ladder(cfg)                    configs of a bundle (multi-versioned) or a ladder (length buckets),
--                                                   or nil; whether it is a ladder
--   refuse_several(cfg, command)                    refuses a bundle or a ladder
--   canonical(cfg)                                  the arguments that make it, without defaults
--   shape(values)                                   its entry in a tuning file: without name and schedule
--   told(cfg, key)                                  the value of a key as text
--   meant(word), check_key(key, others, value)      the key that a word stands for; refuses an unknown word

local closest = require "options.closest"
local kinds = require "options.kinds"
local name = require "options.name"
local options = require "options.init"

local M = {}

M.schema = options.list

local function refuse(key, value, rule) error({ key = key, value = value, rule = rule }, 0) end

-- ---- unknown keys ----

local keys, other_names, key_of, told_of, told_of_value = {}, {}, {}, {}, {}
for i, row in ipairs(options.list) do
  local also, akin = row.also or {}, row.akin or {}
  keys[i], other_names[row.key] = row.key, table.move(akin, 1, #akin, #also + 1, { table.unpack(also) })
  for _, name in ipairs(also) do key_of[name] = row.key end
end
for _, row in ipairs(options.elsewhere) do
  for i = 2, #row do told_of[row[i]] = row[1] end
end
for key, list in pairs(options.elsewhere.values) do
  told_of_value[key] = {}
  for _, row in ipairs(list) do
    for i = 2, #row do told_of_value[key][row[i]] = row[1] end
  end
end

-- The key that a word is or stands for, or nil. Also whether it is written exactly so, or as other tools call it.
function M.meant(word)
  if options.list[word] then return word, true end
  return closest(word, keys, other_names)
end

-- The rule for a key that is none of `words`, and the word that was probably meant.
local function unknown(key, value, words)
  local all, own = table.move(words, 1, #words, 1, {}), {}
  for _, word in ipairs(words) do own[word] = true end
  for word in pairs(told_of) do all[#all + 1] = not own[word] and word or nil end
  local meant, same = closest(key, all, other_names)
  local rule = "unknown key" .. (meant and (", did you mean %s?"):format(meant) or "")
  if key_of[key] and key_of[key] == meant then rule = ("unknown key: it is %s here"):format(meant) end
  if told_of[meant] and not own[meant] then rule = same and told_of[meant] or rule .. " It " .. told_of[meant] end
  error({ key = key, value = value, rule = rule, meant = meant }, 0)
end

local function row_of(key, value) return options.list[key] or unknown(key, value, keys) end

-- Refuses a word with this value, unless it is a key or one of `others`.
function M.check_key(key, others, value)
  local words = table.move(keys, 1, #keys, 1, {})
  for _, word in ipairs(others) do words[#words + 1] = word end
  for _, word in ipairs(words) do
    if key == word then return end
  end
  unknown(key, value, words)
end

-- ---- mistakes ----

local MOST_MISTAKES = 5 -- mistakes to report at once; suggestions take time

-- Calls take(item) for each item of a list. If it refuses an item, that is added to the mistakes.
local function each(list, mistakes, take)
  for _, item in ipairs(list) do
    local ok, e = pcall(take, item)
    if not ok and not (type(e) == "table" and e.rule) then error(e, 0) end
    if not ok then mistakes[#mistakes + 1] = e end
    if #mistakes == MOST_MISTAKES then return end
  end
end

-- Raises the first mistake, if there is any, with the others in its field `more`.
local function raise(mistakes)
  if #mistakes == MOST_MISTAKES then mistakes[MOST_MISTAKES + 1] = { message = "..." } end
  local first = table.remove(mistakes, 1)
  if not first then return end
  first.more = mistakes
  error(first, 0)
end

-- ---- values ----

local NATIVE = "native"

-- The value of a row in its own type; an error if it breaks the rule.
local function checked(row, value)
  if row.native and value == NATIVE then
    refuse(row.key, value, ("works only on the command line; in a file write the output of `mhagen %s`"):format(
      row.native))
  end
  local accepted, rule = options.accept(row, value)
  local meant = accepted == nil and row.native and type(value) == "string" and closest(value, { NATIVE })
  if meant then rule = ("%s, did you mean %s?"):format(options.rule(row), meant) end
  local told = told_of_value[row.key] and told_of_value[row.key][tostring(value):lower()]
  if told then rule = ("%s; %s"):format(options.rule(row), told) end
  if accepted == nil then refuse(row.key, value, rule or options.rule(row)) end
  return accepted
end

-- entries: what host.eval_config returns. They are checked in sorted order, so that of several mistakes the same ones
-- are reported each time.
local function from_file(entries, mistakes)
  local values = {}
  local function text(entry) return tostring(entry.key) end
  table.sort(entries, function(a, b) return text(a) < text(b) end)
  each(entries, mistakes, function(entry)
    local value = entry.value
    if value == nil then value = "a " .. entry.value_type end
    if entry.key_type ~= "string" then
      local key = entry.key == nil and "a " .. entry.key_type or tostring(entry.key)
      refuse(("[%s]"):format(key), value, "keys must be names")
    end
    values[entry.key] = checked(row_of(entry.key, value), value)
  end)
  return values
end

-- native: whether `native` may be a value, which then stays as it is.
local function from_arguments(arguments, mistakes, native)
  local values = {}
  each(arguments, mistakes, function(argument)
    local key, text = argument:match("^([^=]*)=(.*)$")
    local bare = key:match("^%s*(.-)%s*$")
    if bare ~= key and options.list[bare] then
      refuse(bare, text, ("must be one word without blanks, %s=%s"):format(bare, text:match("^%s*(.*)$")))
    end
    local row = row_of(key, text)
    if values[key] ~= nil then refuse(key, text, "is given twice") end
    local kept = native and row.native and text == NATIVE
    values[key] = kept and text or checked(row, options.from_text(row, text))
  end)
  return values
end

-- Adds missing required keys to the mistakes, unless there is already a mistake about them.
local function require_keys(values, mistakes)
  local about, missing, names, example = {}, {}, {}, {}
  for _, mistake in ipairs(mistakes) do
    about[mistake.key] = true
    if mistake.meant then about[mistake.meant] = true end
  end
  for _, row in ipairs(options.list) do
    local there = not row.required or values[row.key] ~= nil or about[row.key]
    if not there and not (row.implied and row.implied(values)) then
      missing[#missing + 1], names[#names + 1] = row, row.key
      example[#example + 1] = ("%s=%s"):format(row.key, row.example)
    end
  end
  if #missing == 0 or #mistakes >= MOST_MISTAKES then return end
  local rule = "are required"
  if #missing == 1 then rule = "is required and " .. options.rule(missing[1]) end
  mistakes[#mistakes + 1] = { key = table.concat(names, ", "),
                              rule = ("%s, as in %s"):format(rule, table.concat(example, " ")) }
end

local function default_of(row, values)
  if row.computed then return name.build(values) end
  return options.default(row, values)
end

local ROUNDING = 2.0 ^ -22 -- two float32 roundings, because other tools may have computed the value in float32

-- Drops values that equal a key's formula up to rounding.
local function drop_near(values)
  for _, row in ipairs(options.list) do
    local value, near = values[row.key], row.near and row.near(values)
    if value and near and math.abs(value / near - 1) <= ROUNDING then values[row.key] = nil end
  end
end

-- Fills in the defaults.
local function complete(values)
  drop_near(values)
  for pass = 1, 2 do -- the name comes last, because it is made from all others
    for _, row in ipairs(options.list) do
      if values[row.key] == nil and (pass == 2) == (row.computed ~= nil) then
        values[row.key] = default_of(row, values)
      end
    end
  end
  return values
end

-- ---- a config as text ----

-- The arguments that make a config of these values: the keys that `wanted` accepts, without defaults.
local function words_of(values, wanted)
  local words = {}
  for _, row in ipairs(options.list) do
    local value = values[row.key]
    local told = values.tuned and row.schedule -- the tuning file might have another value
    if value ~= nil and wanted(row) and (told or value ~= default_of(row, values)) then
      words[#words + 1] = row.key .. "=" .. options.text(row, value)
    end
  end
  return table.concat(words, " ")
end

-- For configs of several kernels: members, their configs; given, the values from which all are made; and the row of the
-- key in which they differ.
local families = setmetatable({}, { __mode = "k" })

-- The configs of the kernels of a config, or nil. The last one is like the config itself.
function M.members(cfg) return families[cfg] and families[cfg].members end

-- The values from which a config was made.
local function given_of(cfg) return families[cfg] and families[cfg].given or cfg end

-- The value of a key as text. For a config of several kernels it has the values of all.
function M.told(cfg, key)
  return options.text(options.list[key], given_of(cfg)[key])
end

-- The arguments that make this config: the keys that differ from their default, in the order of the rows.
function M.canonical(cfg)
  return words_of(given_of(cfg), function() return true end)
end

-- Whether the kernels of a config differ in their lengths.
function M.is_ladder(cfg) return families[cfg] ~= nil and families[cfg].row.kind == "ladder" end

-- Refuses a config of several kernels, for a command that takes one.
function M.refuse_several(cfg, command)
  if not families[cfg] then return end
  local row = families[cfg].row
  refuse(row.key, M.told(cfg, row.key), ("%s takes one kernel: one of %s"):format(command,
    table.concat(options.several(row, families[cfg].given[row.key]), ", ")))
end

-- The values by which a tuning file identifies a config: all but its name and its schedule.
function M.shape(values)
  return words_of(values, function(row) return not (row.schedule or row.computed or row.kind == "file") end)
end

-- ---- a whole config ----

-- Takes the schedule from the file that `tuned` names, for keys that are not given. The name does not depend on it.
local function apply_tuning(values, read_tuning)
  local path, shape = values.tuned, M.shape(values)
  if not read_tuning then refuse("tuned", path, "cannot be a key here; list the schedule keys") end
  local schedule = read_tuning(path)[shape]
  if not schedule then refuse("tuned", path, ("has no schedule for %s; see mhagen tune"):format(shape)) end
  local plain = {}
  for key, value in pairs(values) do plain[key] = key ~= "tuned" and value or nil end
  values.name = complete(plain).name
  local mistakes = {}
  local found = from_arguments(schedule, mistakes)
  local first = mistakes[1]
  if first then refuse("tuned", path, ("%s = %s: %s"):format(first.key, tostring(first.value), first.rule)) end
  for key, value in pairs(found) do
    if not options.list[key].schedule then
      refuse("tuned", path, ("sets %s, which is no schedule key"):format(key))
    end
    if values[key] == nil then values[key] = value end
  end
  values.tuned = kinds.file.base(path)
end

local function freeze(values)
  return setmetatable({}, {
    __index = function(_, key)
      if not options.list[key] then error("no such config key: " .. tostring(key), 2) end
      return values[key]
    end,
    __newindex = function(_, key) error("a config does not change: " .. tostring(key), 2) end,
    __pairs = function() return pairs(values) end,
    __metatable = false,
  })
end

local function copied(values, more)
  local all = {}
  for _, row in ipairs(options.list) do all[row.key] = values[row.key] end
  for key, value in pairs(more) do all[key] = value end
  return all
end

-- A config with other values for some keys.
function M.changed(cfg, more)
  local values = copied(cfg, more)
  local broken = options.conflict(values)
  if broken then error(broken, 0) end
  return freeze(values)
end

-- The key whose values make several kernels, the outer one if there are two, and these values.
local function family_of(values)
  for _, kind in ipairs { "bundle", "ladder" } do
    for _, row in ipairs(options.list) do
      local each = row.kind == kind and values[row.key] ~= nil and options.several(row, values[row.key])
      if each then return row, each end
    end
  end
end

-- The checked config of these values.
local function checked_config(values, read_tuning)
  local row, each = family_of(values)
  if row then
    local given, members = complete(copied(values, {})), {}
    for i, value in ipairs(each) do
      local own = copied(values, { [row.key] = value, name = ("%s%s%s"):format(given.name, row.name, value) })
      checked(options.list.name, own.name)
      members[i] = checked_config(own, read_tuning)
    end
    if row.kind == "ladder" and families[members[1]] then
      local inner = families[members[1]].row.key
      refuse(inner, given[inner], ("must be one number with %s = %s"):format(row.key, given[row.key]))
    end
    local broken = row.kind == "ladder" and options.ladder_conflict(row, given, members)
    if broken then error(broken, 0) end
    local cfg = freeze(copied(members[#members], { name = given.name }))
    given.tuned = cfg.tuned
    families[cfg] = { members = members, given = given, row = row }
    return cfg
  end
  if values.tuned then apply_tuning(values, read_tuning) end
  local broken = options.conflict(complete(values))
  if broken then error(broken, 0) end
  return freeze(values)
end

-- The checked config from a CONFIG.lua's entries (or nil) and key=value arguments, which win. Every key has its value
-- or default, except that a schedule key without a value is nil. Also returns which keys were given.
--   read_tuning(path)   returns the schedules of a tuning file, lists of key=value by shape
--   native              functions by key: what `native` stands for as an argument; without them it is refused
-- A config that breaks a rule raises { key =, value =, rule = }, with the other mistakes in its field `more`.
function M.load(entries, arguments, read_tuning, native)
  local mistakes, given = {}, {}
  local values = from_file(entries or {}, mistakes)
  for key, value in pairs(from_arguments(arguments, mistakes, native)) do values[key] = value end
  require_keys(values, mistakes)
  raise(mistakes)
  for _, row in ipairs(options.list) do
    given[row.key] = values[row.key] ~= nil
    if row.native and values[row.key] == NATIVE then values[row.key] = native[row.key](values) end
  end
  return checked_config(values, read_tuning), given
end

return M
