-- The kinds of values that an option may have. Each kind has
--
--   fields       what a row of this kind must have besides its key, kind and doc
--   rule         (row): what a value must be, in words
--   accept       (row, value): the value in its own type; or nil, and the rule where that is not all of it
--   from_text    (row, text): what the text of a key=value argument stands for; a text that stands for
--                nothing is returned as it is, and then breaks the rule
--   values       (row): the values, for a table of the keys
--   in_name      (row, value): how a name writes the value, behind the row's prefix
--   parse        (row, text): the value that a text in a name begins with, and the rest of the text; or nil

local closest = require "options.closest"
local identifier = require "options.identifier"

local M = {}

local function as_it_is(_, text) return text end

M.integer = {
  fields = { "min", "max" },
  rule = function(row) return ("must be an integer from %d to %d"):format(row.min, row.max) end,
  accept = function(row, value)
    local integer = math.type(value) and math.tointeger(value)
    return integer and integer >= row.min and integer <= row.max and integer or nil
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

M.choice = {
  fields = { "choices" },
  rule = function(row) return "must be one of " .. table.concat(row.choices, ", ") end,
  accept = function(row, value)
    for _, choice in ipairs(row.choices) do
      if value == choice then return value end
    end
    local meant = type(value) == "string" and closest(value, row.choices)
    return nil, meant and ("%s, did you mean %s?"):format(M.choice.rule(row), meant)
  end,
  from_text = as_it_is,
  values = function(row) return table.concat(row.choices, ", ") end,
  in_name = function(_, value) return value end,
  parse = function(row, text) -- the longest: one choice may begin with another
    local found
    for _, choice in ipairs(row.choices) do
      local whole = text == choice or text:sub(1, #choice + 1) == choice .. "_"
      if whole and #choice > #(found or "") then found = choice end
    end
    return found, found and text:sub(#found + 1)
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
  in_name = function() return "" end, -- the prefix says it
  parse = function(_, text) return true, text end,
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

-- The name of a file without its directory: all that a generated text may tell of it.
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
