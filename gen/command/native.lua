-- What `native` means on this machine: { key = function of the config's values }. Some values may be missing.

local host = require "host"
local build = require "command.build"
local cpu = require "machine.cpu"
local isas = require "isa.init"
local types = require "machine.types"

local M = {}

-- The ISA of this CPU with the most products of the type in an instruction, or of float32 where it has none for the
-- type; of several the first in the list, which others extend.
function M.isa(values)
  local best, most = nil, 0
  for _, isa in ipairs(isas.list) do
    local numbers = isa.lanes * isas.at_once(isa, types.by_name[values.dtype or types.f32.name])
    if not build.obstacle(isa) and numbers > most then best, most = isa, numbers end
  end
  return best.name
end

function M.cpu() return cpu.of(host.read_file("/proc/cpuinfo") or "") end

return M
