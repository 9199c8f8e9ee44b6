-- build/mhagen-costs, for bench/refit.py:
--
--   FILE               of each config in FILE, as `gen` takes it, a line of what its plan compares with constants of
--                      gen/schedule/costs.lua, "name=value ..."; an empty one if it is refused
--   NAME=VALUE ...     build/mhagen with another value of such a constant

local host = require "host"
local costs = require "schedule.costs"
local cpu = require "machine.cpu"
local errors = require "command.errors"
local kernel = require "command.kernel"
local plans = require "plan.init"

-- What a config's plan compares, as words.
local function compared(line)
  local words = {}
  for word in line:gmatch("%S+") do words[#words + 1] = word end
  local found = {}
  for name, value in pairs(plans.build(kernel.load_config(words)).compared) do
    found[#found + 1] = ("%s=%.6g"):format(name, value)
  end
  return table.concat(found, " ")
end

return function(arguments)
  local name, value = arguments[1]:match("^([%l_]+)=(%S+)$")
  if name then
    assert(costs.fitted[name], name)
    costs.fitted[name] = tonumber(value)
    for _, core in ipairs(cpu.rows) do core.costs[name] = nil end
    return require "main"({ table.unpack(arguments, 2) })
  end
  for line in errors.must(host.lines(arguments[1])) do
    local ok, words = xpcall(compared, errors.on_error, line)
    if not ok and words.internal then return 2, words.internal end
    errors.must(host.print((ok and words or "") .. "\n"))
  end
  return 0
end
