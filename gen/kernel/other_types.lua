-- The cost of number types: plans of a config with other values of the keys for types.

local config = require "options.config"
local options = require "options.init"
local plan_of = require "plan.init"

local M = {}

local KEYS = { "dtype", "attend_dtype", "ffn_dtype", "sum_dtype", "weight_dtype", "value_weight_dtype", "io_dtype",
               "cache_dtype" }

-- Whether an option is about another one, without which it has no effect.
local function is_beside(key, other)
  for _, beside in ipairs(options.list[key].beside or {}) do
    if beside == other then return true end
  end
  return false
end

-- A plan with one key of its config changed, and without words about it. It is nil where that is refused.
function M.changed(plan, key, value)
  local all = { ("%s=%s"):format(key, value) }
  for word in config.canonical(plan.cfg):gmatch("%S+") do
    local other = word:match("^[^=]*")
    if other ~= key and not is_beside(other, key) then all[#all + 1] = word end
  end
  local ok, other = pcall(function() return plan_of.build(config.load(nil, all)) end)
  if not ok and not (type(other) == "table" and other.rule) then error(other, 0) end
  for _, idle in ipairs(ok and options.idle(other) or {}) do
    if idle[1].key == key then return nil end
  end
  return ok and other or nil
end

-- { what, plan } of a plan, and of the others.
function M.of(plan)
  local rows = { { "this", plan } }
  for _, key in ipairs(KEYS) do
    for _, value in ipairs(options.list[key].choices) do
      local other = value ~= plan.cfg[key] and M.changed(plan, key, value)
      if other then rows[#rows + 1] = { ("%s=%s"):format(key, value), other } end
    end
  end
  return rows
end

return M
