-- `isas`: the list of instruction sets, and the facts of this CPU.

local host = require "host"
local build = require "command.build"
local cpu = require "machine.cpu"
local errors = require "command.errors"
local isas = require "isa.init"
local json = require "base.json"
local native = require "command.native"
local types = require "machine.types"

local order = { "isas", "name", "title", "machine", "native", "compiler", "emulator", "cpu", "cpuinfo", "asks", "lanes",
                "registers", "tile", "products", "at_once", "group" }

-- The products of an ISA, by type: numbers that an instruction multiplies in a lane, and those of a word.
local function products_of(isa)
  local all = {}
  for _, type in ipairs(types.names) do
    local product = isa.products[type .. " " .. type]
    all[type] = product and { at_once = isas.at_once(isa, types.by_name[type]), group = product.group or 1 }
  end
  return all
end

-- All facts as one JSON object: { isas = list }. A foreign machine has its compiler and emulator.
local function facts()
  local list = {}
  for i, isa in ipairs(isas.list) do
    local foreign = isa.arch ~= host.arch and build.foreign[isa.arch] or {}
    local asks = isa.asks and next(isa.asks) and {} or nil
    for type, more in pairs(asks and isa.asks or {}) do asks[type] = { cpu = more.cpu, cpuinfo = more.cpuinfo } end
    list[i] = { name = isa.name, title = isa.title, machine = isa.arch, native = not build.obstacle(isa),
                compiler = foreign.cc, emulator = foreign.run, cpu = isa.cpu, cpuinfo = isa.cpuinfo, asks = asks,
                lanes = isa.lanes, registers = isa.registers, tile = isa.tile, products = products_of(isa) }
  end
  return json.encode({ isas = list }, { keyorder = order }) .. "\n"
end

local function run(args)
  if args.json then
    errors.must(host.print(facts()))
    return 0
  end
  if args.widest then
    errors.must(host.print(native.isa { dtype = args.dtype } .. "\n"))
    return 0
  end
  if args.cpu then
    local path = args.cpu[1]
    local name = path and cpu.of(errors.must(host.read_file(path))) or native.cpu()
    errors.must(host.print(name .. "\n"))
    return 0
  end
  local lines = { ("%-11s %5s %9s  %-8s  %s"):format("isa", "lanes", "registers", "this CPU",
                                                     "description") }
  for _, isa in ipairs(isas.list) do
    local why = build.obstacle(isa)
    local how = isa.title
    if why and isa.arch ~= host.arch and build.foreign[isa.arch] then
      how = how .. "; check runs it with " .. table.concat(build.foreign[isa.arch].run, " ")
    end
    lines[#lines + 1] = ("%-11s %5d %9d  %-8s  %s"):format(isa.name, isa.lanes, isa.registers,
                                                          why and "no" or "yes", how)
  end
  errors.must(host.print(table.concat(lines, "\n") .. "\n"))
  return 0
end

return {
  name = "isas", run = run,
  options = function(cmd)
    cmd:flag("--json", "print one JSON object, for tools")
    cmd:flag("--widest", "print only the name of this CPU's widest instruction set")
    cmd:option("--dtype", "number type whose products --widest compares (default: f32)"):choices(types.names)
      :default "f32":show_default(false)
    cmd:option("--cpu", "print only the value of the key cpu, for this CPU or for the /proc/cpuinfo in FILE")
      :args("?"):argname("<FILE>")
  end,
  summary = "List the instruction sets, and whether this CPU has each.",
  about = "`check` runs code for another architecture with a cross compiler and QEMU, if they are installed.",
}
