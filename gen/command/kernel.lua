-- From a command line to its config, and to the files of its kernel.
--
--   load_config(arguments)          CONFIG.lua and key=value -> cfg, and which keys were given
--   load_one(arguments, command)    the same for a command that takes one kernel
--   files_of(cfg)                   files of the config and of the runtime, and the recorded kernels
--   packers(cfg, recorded)          the kernels that pack: { { cfg, packing, tables, parts } }
--   cxx()                           the file of the runtime for C++
--   entries_of, read_records        tables of Lua files, and the records of a tuning file
--   refuse_key, refuse_word         refuse a wrong argument

local host = require "host"
local bundle = require "kernel.bundle"
local config = require "options.config"
local errors = require "command.errors"
local known_answer = require "command.known_answer"
local native = require "command.native"
local options = require "options.init"
local pack = require "plan.pack"
local single = require "kernel.single"
local tuning = require "lab.tuning"

local M = {}

-- Refuses a key=value where a command takes a path first.
function M.refuse_key(path, what)
  if path:find("=", 1, true) and not host.exists(path) then
    error({ message = ("%s: is a key of the config, and %s must stand before it"):format(errors.show(path), what) }, 0)
  end
end

-- The entries of the table that a file of Lua returns. what: leads a message; form: what such a file is; eval: the
-- host's function of the path and the rest.
function M.entries_of(path, what, form, eval, ...)
  local entries, message = eval(path, ...)
  if entries then return entries end
  if errors.must(host.head(path)):find("^%s*{") then message = errors.show(path) .. ": is JSON" end
  local other = message:find(": is JSON$") or message:find(" near ", 1, true)
    or message:find("must return one table", 1, true)
  local told = other and "; such a file is one Lua table, " .. form or ""
  error({ message = ("%s: %s%s"):format(what, message, told) }, 0)
end

-- The records of a tuning file, and its schedules.
function M.read_records(path)
  return tuning.read(M.entries_of(path, "tuned", "as `tune` writes it", host.eval_config, 1), path)
end
local function read_schedules(path) return tuning.schedules(M.read_records(path)) end

-- Refuses the arguments from i on where blanks divide a key=value.
local function refuse_divided(arguments, i)
  local here, next_one = arguments[i], arguments[i + 1]
  local key = here:match("^([%w_]+)=?$")
  if not key or not next_one or not options.list[key] then return end
  local value = next_one:match("^=(.+)$") or next_one == "=" and arguments[i + 2]
  if here:find("=", 1, true) then value = not next_one:find("=", 1, true) and next_one end
  if value then error({ key = key, value = value, rule = ("must be one word, %s=%s"):format(key, value) }, 0) end
end

-- Refuses an argument that is no key=value, and cannot be meant as a file.
function M.refuse_word(argument, or_what)
  if host.exists(argument) then return end
  local key, exactly = config.meant(argument)
  local message
  if exactly then
    message = ("is no key=value; %s has the values %s"):format(key, options.values(options.list[key]))
  elseif not argument:find("[./]") then
    message = "is neither key=value nor " .. or_what
  end
  if message then error({ message = ("config: %s: %s"):format(errors.show(argument), message) }, 0) end
end

-- CONFIG.lua and key=value arguments -> cfg
function M.load_config(arguments)
  local file
  local assignments = {}
  for i, argument in ipairs(arguments) do
    refuse_divided(arguments, i)
    if argument:find("=", 1, true) then
      assignments[#assignments + 1] = argument
    else
      M.refuse_word(argument, "a file")
      if file then
        error({ message = ("config: %s: %s is the config file already"):format(errors.show(argument),
                                                                               errors.show(file)) }, 0)
      end
      file = argument
    end
  end
  local entries = file and M.entries_of(file, "config", "return { h = 12, ... }", host.eval_config)
  return config.load(entries, assignments, read_schedules, native)
end

-- The same for a command that takes one kernel.
function M.load_one(arguments, command)
  local cfg, given = M.load_config(arguments)
  config.refuse_several(cfg, command)
  return cfg, given
end

-- A file of the runtime.
function M.of_runtime(name) return { name = name, text = host.embedded("runtime/" .. name) } end

-- The files with the options that make them in the commands of their heads.
local function told(files, how)
  local words = (how.selftest and " --selftest" or "") .. (how.single and " --single" or "")
  for _, file in ipairs(files) do file.text = file.text:gsub("( mhagen gen [^\n]*)", "%1" .. words, 1) end
  return files
end

-- The files of a config and of the runtime, and what was recorded for each kernel. how: nil, or whether they are one
-- source and one header, `single`, and whether kernels have a known answer, `selftest`.
function M.files_of(cfg, how)
  how = how or {}
  local files, recorded = bundle(cfg, how.selftest and known_answer or nil)
  local header, source = M.of_runtime "mhagen.h", M.of_runtime "mhagen.c"
  if how.single then
    return told(single(cfg.name, files, { header = header.text, source = source.text }), how), recorded
  end
  return table.move({ header, source }, 1, 2, #files + 1, told(files, how)), recorded
end

-- The file of the runtime for C++.
function M.cxx() return M.of_runtime "mhagen.hpp" end

-- The kernels whose packed weights runs of a config take: of a bundle one for each CPU, in the order in which the
-- runtime asks, of all others one. recorded: what files_of returns. -> { { cfg, packing, tables, parts } }, tables: the
-- packing of those that are apart, or nil
function M.packers(cfg, recorded)
  local of_name, list = {}, {}
  for _, one in ipairs(recorded) do of_name[one.plan.cfg.name] = one end
  for _, member in ipairs(config.is_ladder(cfg) and { cfg } or config.members(cfg) or { cfg }) do
    local lengths = config.members(member) or { member }
    local one = of_name[lengths[#lengths].name]
    local packing, tables = pack.packing(one.plan, one.fingerprint, one.tables_fingerprint)
    table.insert(list, 1, { cfg = member, packing = packing, tables = tables, parts = pack.parts(one.plan) })
  end
  return list
end

return M
