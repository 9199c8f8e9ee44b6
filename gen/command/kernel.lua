-- From a command line to its config, and to the files of its kernel.

local host = require "host"
local bundle = require "bundle"
local config = require "config"
local errors = require "command.errors"
local pack = require "pack"
local tuning = require "lab.tuning"

local M = {}

-- The records of a tuning file, and its schedules.
function M.read_records(path)
  local entries, message = host.eval_config(path, 1)
  return tuning.read(errors.must(entries, message and "tuned: " .. message), path)
end
local function read_schedules(path) return tuning.schedules(M.read_records(path)) end

-- CONFIG.lua and key=value arguments -> cfg
function M.load_config(arguments)
  local file
  local assignments = {}
  for _, argument in ipairs(arguments) do
    if argument:find("=", 1, true) then
      assignments[#assignments + 1] = argument
    elseif file then
      error({ message = ("config: %s: %s is the config file already"):format(errors.show(argument),
                                                                             errors.show(file)) }, 0)
    else
      file = argument
    end
  end
  local entries, message
  if file then
    entries, message = host.eval_config(file)
    errors.must(entries, message and "config: " .. message)
  end
  return config.load(entries, assignments, read_schedules)
end

-- The same for a command that takes one kernel.
function M.load_one(arguments, command)
  local cfg, given = M.load_config(arguments)
  config.refuse_several(cfg, command)
  return cfg, given
end

local function of_runtime(name) return { name = name, text = host.embedded("runtime/" .. name) } end

-- The files of a config and of the runtime, and what was recorded for each kernel.
function M.files_of(cfg)
  local files, recorded = bundle(cfg)
  for _, name in ipairs { "mhagen.h", "mhagen.c" } do files[#files + 1] = of_runtime(name) end
  return files, recorded
end

-- The file of the runtime for C++.
function M.cxx() return of_runtime "mhagen.hpp" end

-- The kernels whose packed weights runs of a config take: of a bundle one for each CPU, in the order in which the
-- runtime asks, of all others one. recorded: what files_of returns. -> { { cfg, packing } }
function M.packers(cfg, recorded)
  local of_name, list = {}, {}
  for _, one in ipairs(recorded) do of_name[one.plan.cfg.name] = one end
  for _, member in ipairs(config.is_ladder(cfg) and { cfg } or config.members(cfg) or { cfg }) do
    local lengths = config.members(member) or { member }
    local one = of_name[lengths[#lengths].name]
    table.insert(list, 1, { cfg = member, packing = pack.packing(one.plan, one.fingerprint) })
  end
  return list
end

return M
