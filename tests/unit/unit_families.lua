-- Unit tests of gen/model/families.lua: a field that a config does not have is what transformers takes then.
-- tests/models/configs/defaults.json has the config of each type without any field, as tests/models/write_configs.py
-- writes it.

local host = require "host"
local families = require "model.families"
local family_rows = require "model.family_rows"
local fields = require "model.fields"
local json = require "base.json"

local LAYERS = 7 -- of each kind, among which are all that differ

local function text_of(keys)
  local list = {}
  for key, value in pairs(keys) do
    if key == "scaling" then value = value(keys.rope_theta, 8) and "some" or "none" end
    if key == "angles" then value = json.encode(value) end
    if key == "limit" then value = ("%d %s"):format(value[1], value[2]) end
    if value ~= "none" then
      list[#list + 1] = ("%s=%s"):format(key, math.type(value) and ("%.9g"):format(value) or tostring(value))
    end
  end
  table.sort(list)
  return table.concat(list, " ")
end

-- The keys of the first layers of a type by its config, as a list of texts.
local function keys_of(row, values)
  local c, list = fields.new("config.json", values), {}
  for s, stack in ipairs(family_rows.whole(families.rows, row, c).stacks) do
    local own = stack.fields or c
    for i = 0, stack.layers and LAYERS - 1 or 0 do
      local keys = family_rows.sizes(own, stack)
      for key, value in pairs(stack.keys(own, i, keys)) do keys[key] = value end
      for letter, bias in pairs(stack.biases or {}) do
        keys["bias of " .. letter] = type(bias) == "table" and own:flag(bias[1], bias[2]) or bias == true
      end
      list[#list + 1] = ("stack %d layer %d: %s"):format(s, i, text_of(keys))
      if s > 8 then return list end -- of a stack for each block
    end
  end
  return list
end

-- The keys where fields are missing, but for those without which there are none: they are taken from `full`.
local function keys_without(row, full)
  local values = {}
  for _ = 1, 20 do
    local ok, found = pcall(keys_of, row, values)
    if ok then return found end
    local name = type(found) == "table" and found.message:match "^config%.json: (.*): is missing$"
    if not name then error(found, 0) end
    local from, to = full, values
    for part in name:gmatch "([^.]+)%." do
      to[part] = to[part] or {}
      from, to = from[part], to[part]
    end
    local last = name:match "[^.]+$"
    if from[last] == nil then last = "rope_parameters" end -- where version 5 has them
    to[last] = from[last]
  end
end

return function(check)
  local all = assert(json.decode(assert(host.read_file("tests/models/configs/defaults.json")), true))
  for _, row in ipairs(families.rows) do
    for _, kind in ipairs(row.types) do
      local full = all[kind]
      check(full, kind .. " is not in tests/models/configs/defaults.json: tests/models/write_configs.py writes it")
      if full and not row.parts then -- those are of other types
        local ok, why = pcall(function()
          local expected, found = keys_of(row, full), keys_without(row, full)
          for i, text in ipairs(expected) do
            check(found[i] == text, ("%s: without fields %s, and with defaults %s"):format(kind, found[i], text))
            if found[i] ~= text then break end
          end
        end)
        check(ok, ("%s: %s"):format(kind, type(why) == "table" and why.message or why))
      end
    end
  end
end
