-- The fields of a model's config, which may be wrong: each is asked for by its name and kind, and one that is
-- missing, or of another kind, is an error that names the file and the field.

local words = require "base.words"

local M = {}
M.__index = M

-- prefix: what stands before each name in messages and in the table's keys.
function M.new(path, values, prefix)
  return setmetatable({ path = path, values = values, prefix = prefix or "" }, M)
end

function M:fail(name, ...)
  error({ message = ("%s: %s%s: %s"):format(self.path, self.prefix, name, string.format(...)) }, 0)
end

-- The value, if it is `good`; `default` where it is missing.
local function ask(self, name, default, good, rule)
  local value = self.values[self.prefix .. name]
  if value == nil then
    if default == nil then self:fail(name, "is missing") end
    return default
  end
  if not good(value) then
    self:fail(name, "%s must be %s", type(value) == "table" and "it" or words.short(value), rule)
  end
  return value
end

function M:int(name, default)
  return ask(self, name, default, function(value)
    return math.type(value) == "integer" and value >= 1 and value <= 1 << 31
  end, "a number from 1 on")
end

function M:number(name, default)
  return ask(self, name, default, function(value)
    return type(value) == "number" and value == value and math.abs(value) < math.huge
  end, "a number")
end

-- A number above zero.
function M:positive(name, default)
  local value = self:number(name, default)
  if value and value <= 0 then self:fail(name, "%s must be above zero", words.short(value)) end
  return value
end

function M:flag(name, default)
  return ask(self, name, default, function(value) return type(value) == "boolean" end, "true or false")
end

function M:word(name, default)
  return ask(self, name, default, function(value) return type(value) == "string" end, "a text")
end

function M:has(name) return self.values[self.prefix .. name] ~= nil end

-- A list, or nil.
function M:list(name)
  return ask(self, name, false, function(value) return type(value) == "table" end, "a list") or nil
end

-- A list of a few numbers from 1 to `most`, 1024 if it is not given.
function M:counts(name, most)
  most = most or 1024
  local list = self:list(name) or self:fail(name, "is missing")
  if #list < 1 or #list > 16 then self:fail(name, "must have 1 to 16 numbers") end
  for _, value in ipairs(list) do
    if math.type(value) ~= "integer" or value < 1 or value > most then
      self:fail(name, "%s must be a number from 1 to %d", words.short(value), most)
    end
  end
  return list
end

-- The fields of an object, or nil.
function M:object(name)
  local values = self:list(name)
  if not values then return nil end
  local object = M.new(self.path, values)
  object.name = name
  return object
end

-- Refuses a field that has another value than the one that is meant by default.
function M:only(name, meant)
  local value = self.values[self.prefix .. name]
  if value ~= nil and value ~= meant then
    self:fail(name, "%s is not supported", type(value) == "table" and "this" or words.short(value))
  end
end

return M
