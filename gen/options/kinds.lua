-- The kinds of values that an option may have.
--
--   fields       fields that a row of this kind must have besides key, kind and doc
--   rule         (row): the rule for a value, in words
--   accept       (row, value): the value in its own type; or nil, with another rule if the usual one is too vague
--   from_text    (row, text): the value of a key=value argument; other texts are returned, and break the rule
--   values       (row): the values, for a table of the keys
--   to_text      (value): the value as text, if Lua writes it otherwise
--   in_name      (row, value): the value in a name, after the row's prefix
--   parse        (row, text): the value at the beginning of the text of a name, and the rest of the text; or nil
--   several      (value): the values of the several kernels that it asks for, or nil
--   number       (row, value): the value as a number for mhagen_kernel, if it is not a number itself

local closest = require "options.closest"
local identifier = require "options.identifier"
local wording = require "base.wording"

local M = {}

local function as_it_is(_, text) return text end

-- The end of a rule for a row that may have this machine's value.
local function or_native(row) return row.native and ", or native on the command line" or "" end

M.integer = {
  fields = { "min", "max" },
  rule = function(row)
    local what = row.step and ("a multiple of %d"):format(row.step) or "an integer"
    return ("must be %s from %d to %d%s"):format(what, row.min, row.max, row.why and ": " .. row.why or "")
  end,
  accept = function(row, value)
    local integer = math.type(value) and math.tointeger(value)
    return integer and integer >= row.min and integer <= row.max and integer % (row.step or 1) == 0 and integer or nil
  end,
  from_text = function(_, text)
    return text:match("^%-?%d+$") and math.tointeger(tonumber(text)) or text
  end,
  values = function(row) return ("%d..%d"):format(row.min, row.max) end,
  in_name = function(_, value) return tostring(value) end,
  parse = function(_, text)
    local digits, rest = text:match("^(%d+)(.*)$")
    return digits and tonumber(digits), rest
  end,
}

-- An integer, or several in rising order with commas between, which make a kernel for each.
M.ladder = {
  fields = M.integer.fields,
  rule = function(row) return M.integer.rule(row) .. ", or several in rising order with commas" end,
  accept = function(row, value)
    if type(value) ~= "string" then return M.integer.accept(row, value) end
    local list = {}
    for text in (value .. ","):gmatch("([^,]*),") do
      local integer = M.integer.accept(row, M.integer.from_text(row, text))
      if not integer or list[1] and integer <= list[#list] then return nil end
      list[#list + 1] = integer
    end
    return list[2] and table.concat(list, ",") or nil
  end,
  from_text = M.integer.from_text,
  values = M.integer.values,
  several = function(value)
    local list = {}
    for text in (type(value) == "string" and value or ""):gmatch("%d+") do list[#list + 1] = tonumber(text) end
    return list[2] and list
  end,
  in_name = function(_, value) return (tostring(value):gsub(",", "_")) end,
  parse = M.integer.parse,
}

-- A floating-point number, kept to its last bit. In names, p stands for the point and m for minus; plus is left out.
local symbols, letters = { ["."] = "p", ["-"] = "m", ["+"] = "" }, { p = ".", m = "-" }
M.number = {
  fields = { "min", "max" },
  rule = function(row) return ("must be a number from %s to %s"):format(wording.exact(row.min),
    wording.exact(row.max)) end,
  accept = function(row, value)
    local number = math.type(value) and value + 0.0
    return number and number >= row.min and number <= row.max and number or nil
  end,
  from_text = function(_, text) return text:match("^[%w.+-]+$") and tonumber(text) or text end,
  values = function(row) return ("%s..%s"):format(wording.exact(row.min), wording.exact(row.max)) end,
  to_text = wording.exact,
  in_name = function(_, value) return (wording.exact(value):gsub("[.+-]", symbols)) end,
  parse = function(row, text)
    local digits, rest = text:match("^(%d[%dpem]*)(.*)$")
    return digits and M.number.accept(row, tonumber((digits:gsub("[pm]", letters)))), rest
  end,
}

-- All values of a choice: those that users see, and those only for tests.
function M.choices(row)
  local all = table.move(row.choices, 1, #row.choices, 1, {})
  return table.move(row.hooks or {}, 1, #(row.hooks or {}), #all + 1, all)
end

M.choice = {
  fields = { "choices" },
  rule = function(row) return ("must be one of %s%s"):format(table.concat(row.choices, ", "), or_native(row)) end,
  accept = function(row, value)
    for _, choice in ipairs(M.choices(row)) do
      if value == choice then return value end
    end
    local meant = type(value) == "string" and closest(value, row.choices, row.called)
    return nil, meant and ("%s, did you mean %s?"):format(M.choice.rule(row), meant)
  end,
  from_text = as_it_is,
  values = function(row) return table.concat(row.choices, ", ") end,
  in_name = function(_, value) return value end,
  parse = function(row, text) -- the longest that fits, because one choice may begin with another
    local found
    for _, choice in ipairs(M.choices(row)) do
      local whole = text == choice or text:sub(1, #choice + 1) == choice .. "_"
      if whole and #choice > #(found or "") then found = choice end
    end
    return found, found and text:sub(#found + 1)
  end,
}

-- Some of the choices, all for one kind of machine, with + between them; they make a kernel for each. Fields: machines,
-- the machine that a choice is for, if it is not for any; groups, names for several choices, { name, value } each.
local function words_of(value)
  local words = {}
  for word in (value .. "+"):gmatch("([^+]*)%+") do words[#words + 1] = word end
  return words
end

M.bundle = {
  fields = { "choices", "machines", "groups" },
  rule = function(row)
    local names = {}
    for i, group in ipairs(row.groups) do names[i] = group[1] end
    return ("must be one of %s, several of one machine with +, one of %s%s"):format(table.concat(row.choices, ", "),
      table.concat(names, ", "), or_native(row))
  end,
  accept = function(row, value)
    if type(value) ~= "string" then return nil end
    local known, names, asked = {}, table.move(row.choices, 1, #row.choices, 1, {}), {}
    for _, group in ipairs(row.groups) do known[group[1]], names[#names + 1] = group[2], group[1] end
    for _, choice in ipairs(row.choices) do known[choice] = choice end
    for _, word in ipairs(words_of(value)) do
      if not known[word] then
        local meant = closest(word, names)
        return nil, meant and ("%s, did you mean %s?"):format(M.bundle.rule(row), meant)
      end
      for _, choice in ipairs(words_of(known[word])) do asked[choice] = true end
    end
    local first
    local found = {}
    for _, choice in ipairs(row.choices) do
      local machine = asked[choice] and row.machines[choice]
      if machine and first and row.machines[first] ~= machine then
        return nil, ("%s is for %s, %s for %s: a bundle is for one machine"):format(first, row.machines[first], choice,
          machine)
      end
      first = first or machine and choice
      found[#found + 1] = asked[choice] and choice or nil
    end
    return table.concat(found, "+")
  end,
  from_text = as_it_is,
  values = function(row)
    local names = table.move(row.choices, 1, #row.choices, 1, {})
    for _, group in ipairs(row.groups) do names[#names + 1] = group[1] end
    return table.concat(names, ", ")
  end,
  several = function(value)
    local words = words_of(value)
    return words[2] and words
  end,
  in_name = function(_, value) return (value:gsub("%+", "_")) end,
  parse = function(row, text)
    local value = text:gsub("_", "+")
    local accepted = M.bundle.accept(row, value)
    return accepted == value and value or nil, ""
  end,
}

M.flag = {
  fields = { "default" },
  rule = function() return "must be true or false" end,
  accept = function(_, value)
    if type(value) == "boolean" then return value end
  end,
  from_text = function(_, text)
    if text == "true" or text == "false" then return text == "true" end
    return text
  end,
  values = function() return "true, false" end,
  in_name = function() return "" end, -- the prefix says it all
  parse = function(_, text) return true, text end,
}

-- Some of the letters of a row, in their order; "none" means no letter.
function M.letters_of(value) return value ~= "none" and value or "" end

M.letters = {
  fields = { "letters", "default" },
  rule = function(row) return ("must be letters of %s in this order, or none"):format(row.letters) end,
  accept = function(row, value)
    if value == "none" then return value end
    local text = type(value) == "string" and #value > 0 and value or "none"
    local in_order = {}
    for letter in row.letters:gmatch(".") do in_order[#in_order + 1] = text:find(letter, 1, true) and letter end
    return table.concat(in_order) == text and text or nil
  end,
  from_text = as_it_is,
  values = function(row) return ("letters of %s, none"):format(row.letters) end,
  in_name = function(_, value) return value end,
  parse = function(row, text)
    local letters, rest = text:match("^(%l+)(.*)$")
    return letters and M.letters.accept(row, letters), rest
  end,
  number = function(row, value) -- a bit for each letter; the first letter is 1
    local sum = 0
    for i = 1, #row.letters do
      if M.letters_of(value):find(row.letters:sub(i, i), 1, true) then sum = sum + (1 << (i - 1)) end
    end
    return sum
  end,
}

M.identifier = {
  fields = {},
  rule = function() return "must be a C identifier" end,
  accept = function(_, value)
    local rule = identifier(value)
    if rule then return nil, rule end
    return value
  end,
  from_text = as_it_is,
  values = function() return "identifier" end,
}

-- The name of a file without its directory, because a generated text must not contain more of a path.
local function base(path) return path:match("^([%w._+-]+)$") or path:match("/([%w._+-]+)$") end

M.file = {
  fields = {},
  rule = function() return "must be the path of a file, whose name has only letters, digits and . _ + -" end,
  accept = function(_, value)
    return type(value) == "string" and value:match("^[^%c]*$") and base(value) and value or nil
  end,
  from_text = as_it_is,
  values = function() return "file" end,
  base = base,
}

return M
