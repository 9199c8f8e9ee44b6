-- `isas`: the list of instruction sets.

local host = require "host"
local build = require "command.build"
local errors = require "command.errors"
local isas = require "isa.init"

local function run()
  local lines = { ("%-8s %5s %9s  %-8s  %s"):format("isa", "lanes", "registers", "this CPU",
                                                     "what it is") }
  for _, isa in ipairs(isas.list) do
    local why = build.obstacle(isa)
    local how = isa.title
    if why and isa.arch ~= host.arch and build.foreign[isa.arch] then
      how = how .. "; check runs it with " .. table.concat(build.foreign[isa.arch].run, " ")
    end
    lines[#lines + 1] = ("%-8s %5d %9d  %-8s  %s"):format(isa.name, isa.lanes, isa.registers,
                                                          why and "no" or "yes", how)
  end
  errors.must(host.print(table.concat(lines, "\n") .. "\n"))
  return 0
end

return {
  name = "isas", run = run, options = function() end,
  summary = "List the instruction sets, and whether this CPU has each.",
  about = "Code for another architecture is checked with a cross compiler and QEMU, if installed.",
}
