-- The options for people and for tools.
--
--   help(), short_help(own)  for --help-keys and --help
--   text(), json()           for `schema`
--   markdown()               the tables of docs/config.md
--   default_note(row)        "required", "default: ..", or nil

local json = require "base.json"
local options = require "options.init"
local wording = require "base.wording"

local M = {}

-- The default of a key as a word; nil if the plan chooses.
local function default_of(row)
  if row.required then return "required" end
  local default = row.same_as or row.computed or row.formula or row.default
  if default == nil then return not row.planned and "none" or nil end
  return tostring(default)
end

-- A note about the default; nil if there is nothing to say.
function M.default_note(row)
  local default = default_of(row)
  if row.required then return "required" end
  return default and "default: " .. default
end

local HEAD = "| key | values | default | meaning |\n|---|---|---|---|"
local PLANNED = "Schedule keys (they change the speed and the last bits; the plan chooses those that are not given):"

-- The format of a key and its values. The doc follows on the same line or below.
local KEY, VALUES = "  %-14s ", "%-27s  "
local BESIDE = #KEY:format("") + #VALUES:format("")
local function key_lines(row)
  local note = M.default_note(row)
  local key, doc = KEY:format(row.key), row.doc .. (note and " (" .. note .. ")" or "")
  local lead = key .. VALUES:format(options.values(row))
  if #lead == BESIDE then return wording.hung(lead, doc) end
  return wording.hung(key, options.values(row), #KEY:format("")) .. "\n" .. wording.hung((" "):rep(BESIDE), doc)
end

-- The keys as a table; more(row): texts { label, text } to print below a row.
local function listing(more)
  local lines, planned = { "Config keys:" }, false
  for _, row in ipairs(options.list) do
    if row.planned and not planned then lines[#lines + 1], planned = "\n" .. PLANNED, true end
    lines[#lines + 1] = key_lines(row)
    for _, text in ipairs(more and more(row) or {}) do
      lines[#lines + 1] = wording.hung(("%17s%-9s "):format("", text[1]), text[2])
    end
  end
  return table.concat(lines, "\n")
end

-- All keys, for --help-keys.
function M.help() return listing() .. "\n" end

-- The required keys, and the names of the others, for --help. own: { key = true } for required keys that the user need
-- not give, since a model has them; or nil.
function M.short_help(own)
  local lines, others, planned = { "Config keys that are required:" }, {}, {}
  for _, row in ipairs(options.list) do
    local wanted = row.required and not (own and own[row.key])
    local list = wanted and lines or row.planned and planned or others
    list[#list + 1] = wanted and key_lines(row) or row.key
  end
  lines[#lines + 1] = wording.hung("Others: ", table.concat(others, ", "), 2)
  lines[#lines + 1] = wording.hung("Schedule keys: ", table.concat(planned, ", "), 2)
  lines[#lines + 1] = "--help-keys explains each key."
  return table.concat(lines, "\n")
end

local function names_of(list, field)
  local names = {}
  for i, item in ipairs(list) do names[i] = item[field] end
  return table.concat(names, ", ")
end

-- The same with all other facts of each row.
function M.text()
  return listing(function(row)
    local lines = {}
    local function line(label, text) lines[#lines + 1] = { label, text } end
    if row.also then line("elsewhere", table.concat(row.also, ", ")) end
    if row.akin then line("similar", table.concat(row.akin, ", ")) end
    if row.name then line("in names", row.name .. (row.kind == "flag" and "" or "<value>")) end
    for value, bit in pairs(type(row.bit) == "table" and row.bit or { row.bit }) do
      line("bit", type(value) == "string" and value .. ": " .. bit or bit)
    end
    if row.args then line("needs", "args: " .. names_of(row.args, "pointer")) end
    if row.fill then line("needs", "args, to fill the cache: " .. names_of(row.fill, "pointer")) end
    if row.weights then line("needs", "weights: " .. names_of(row.weights, "pointer")) end
    if row.divides then line("divides", row.divides) end
    if row.even then line("even", "always") end
    if row.within then line("at most", row.within) end
    if row.multiple then line("multiple", table.concat(row.multiple, " / ")) end
    for _, other in ipairs(row.excludes or {}) do
      local with = other.is == nil and other.key or other.key .. "=" .. other.is
      if other.lacks then with = ("%s without %s"):format(other.key, other.lacks) end
      if other.but then with = ("%s, unless %s=%s"):format(with, table.unpack(other.but)) end
      if other.of then with = ("%s, where it is %s"):format(with, other.of) end
      line("not with", ("%s, %s"):format(with, other.why))
    end
    if row.least then line("at least", ("%s, with %s=%s"):format(row.least.key, table.unpack(row.least.with))) end
    for value, names in pairs(row.only or {}) do line("only", ("%s: beside %s"):format(value, names)) end
    if row.beside then line("beside", options.beside_text(row.beside, ", ")) end
    return lines
  end) .. "\n"
end

-- The tables of docs/config.md: the keys, and the schedule keys.
function M.markdown()
  local lines, planned = {}, nil
  for _, row in ipairs(options.list) do
    if row.planned ~= planned then
      planned = row.planned
      lines[#lines + 1] = (#lines > 0 and "\n" or "") .. HEAD
    end
    local default = default_of(row) or "the plan's"
    if default_of(row) and not row.required and not row.computed then default = ("`%s`"):format(default) end
    lines[#lines + 1] = ("| `%s` | %s | %s | %s |"):format(row.key, options.values(row), default, row.doc)
  end
  return table.concat(lines, "\n") .. "\n"
end

-- Objects have their keys in this order; functions are left out.
local order = { "key", "kind", "is", "lacks", "unless", "of", "but", "why", "doc", "min", "max", "choices",
                "hooks", "letters", "machines", "groups", "required", "example", "default", "same_as", "computed",
                "formula", "also", "akin", "called", "native", "divides", "even", "within", "multiple", "least",
                "excludes", "beside", "only", "schedule", "planned", "name", "word", "bit", "number", "pointer",
                "aligned", "input", "bytes", "most", "less", "with", "args", "fill", "draw" }

-- The rows as one JSON object: { options = list, always = what every kernel needs, matrices = a list }.
function M.json(matrices)
  local list = {}
  for i, row in ipairs(options.list) do
    list[i] = {}
    for field, value in pairs(row) do
      if type(value) ~= "function" then list[i][field] = value end
    end
  end
  return json.encode({ options = list, always = options.always, matrices = matrices }, { keyorder = order }) .. "\n"
end

return M
