-- The fields of a model's config: each is asked for by name and kind. A field that is missing or of another kind is
-- an error that names the file and the field.
--
-- Fields that nobody asks for can be listed; gen/model/unread.lua knows which of them matter.
--
-- A missing field has its value in `defaults`, if there is one. A field that is null has no value. `older` has the
-- names that fields had before. `tensors` are those of the model, by their names.

local wording = require "base.wording"

local M = {}
M.__index = M

-- prefix: what stands before each name in messages and in the table's keys; within: before that in messages alone.
function M.new(path, values, prefix, within)
  return setmetatable({ path = path, values = values, prefix = prefix or "", within = within or "",
                        defaults = {}, older = {}, seen = {}, objects = {} }, M)
end

local function is_null(value) return type(value) == "userdata" end

-- The value of a field, or nil.
local function value_of(self, name)
  local value, older = self.values[self.prefix .. name], self.older[name]
  self.seen[name] = true
  if older then
    self.seen[older] = true
    if value == nil then value = self.values[self.prefix .. older] end
  end
  if value == nil then return self.defaults[name] end
  if is_null(value) then return nil end
  return value
end

function M:fail(name, ...)
  error({ message = ("%s: %s: %s"):format(self.path, self:full(name), string.format(...)) }, 0)
end

-- A name as messages have it.
function M:full(name) return self.within .. self.prefix .. name end

-- The value, if it is `good`; `default` where it is missing.
local function ask(self, name, default, good, rule)
  local value = value_of(self, name)
  if value == nil then
    if default == nil then self:fail(name, "is missing") end
    return default
  end
  if not good(value) then
    self:fail(name, "%s must be %s", type(value) == "table" and "it" or wording.short(value), rule)
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
  if value and value <= 0 then self:fail(name, "%s must be above zero", wording.short(value)) end
  return value
end

function M:flag(name, default)
  return ask(self, name, default, function(value) return type(value) == "boolean" end, "true or false")
end

-- true or false, or a number that is not 0 or is.
function M:switch(name, default)
  local value = ask(self, name, default, function(value)
    return type(value) == "boolean" or type(value) == "number"
  end, "true or false")
  return value ~= false and value ~= 0
end

function M:word(name, default)
  return ask(self, name, default, function(value) return type(value) == "string" end, "a text")
end

function M:has(name) return value_of(self, name) ~= nil end

-- Whether the value is a list or an object.
function M:is_list(name) return type(value_of(self, name)) == "table" end

-- A list, or nil.
function M:list(name)
  return ask(self, name, false, function(value)
    return type(value) == "table" and (next(value) == nil or value[1] ~= nil)
  end, "a list") or nil
end

-- A count from 0 on that is the same in all layers, or has an element for each in a list: that of layer i, from 0 on.
function M:of_layer(name, i, default)
  local value = self:is_list(name) and self:list(name)[i + 1]
  if not self:is_list(name) then value = self:number(name, default) end
  if math.type(value) == "integer" and value >= 0 and value <= 1 << 31 then return value end
  self:fail(name, "%s must be a number from 0 on", self:is_list(name) and ("element %d"):format(i + 1) or
    wording.short(value))
end

-- A list of a few numbers from 1 to `most`, 1024 if it is not given.
function M:counts(name, most)
  most = most or 1024
  local list = self:list(name) or self:fail(name, "is missing")
  if #list < 1 or #list > 16 then self:fail(name, "must have 1 to 16 numbers") end
  for _, value in ipairs(list) do
    if math.type(value) ~= "integer" or value < 1 or value > most then
      self:fail(name, "%s must be a number from 1 to %d", wording.short(value), most)
    end
  end
  return list
end

-- The fields of an object, or nil.
function M:object(name)
  local values = ask(self, name, false, function(value)
    return type(value) == "table" and value[1] == nil
  end, "an object") or nil
  if values and not self.objects[name] then
    self.objects[name] = M.new(self.path, values, "", self:full(name) .. ".")
  end
  return self.objects[name]
end

-- A number above zero that configs have by several names, { fields, name } each: all that are there must be the same.
-- Without a default one must be there.
function M.agreed(places, default)
  local found, first
  for _, place in ipairs(places) do
    local value = place[1]:positive(place[2], false)
    if value and found and value ~= found then
      place[1]:fail(place[2], "%s, and %s is %s", wording.short(value), first[1]:full(first[2]), wording.short(found))
    end
    if value and not found then found, first = value, place end
  end
  return found or default or places[1][1]:fail(places[1][2], "is missing")
end

-- The fields that nobody has asked for and that matters(name, value, fields) is true of, also those of objects that
-- somebody has asked for: a sorted list of { name =, value = }. Parts without tensors are `absent`, and have none.
function M:unread(matters)
  local all = {}
  for key, value in pairs(self.values) do
    local name = type(key) == "string" and key:sub(1, #self.prefix) == self.prefix and key:sub(#self.prefix + 1)
    if name and not self.seen[name] and not is_null(value) and matters(name, value, self) then
      all[#all + 1] = { name = self:full(name), value = value }
    end
  end
  for _, object in pairs(self.objects) do
    for _, field in ipairs(not object.absent and object:unread(matters) or {}) do all[#all + 1] = field end
  end
  table.sort(all, function(a, b) return a.name < b.name end)
  return all
end

-- Refuses another value of a field than the one that is meant.
function M:only(name, meant)
  local value = value_of(self, name)
  if value ~= nil and value ~= meant then
    self:fail(name, "%s is not supported", type(value) == "table" and "this" or wording.short(value))
  end
end

return M
