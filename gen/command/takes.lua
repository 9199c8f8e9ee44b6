-- What the options of several commands have in common.

local host = require "host"
local config = require "config"
local errors = require "command.errors"

local M = {}

-- Converts the value of an option that is a number; `what` says which ones the pattern matches.
function M.number(option, pattern, what)
  return function(text)
    if text:match(pattern) then return text end
    return nil, ("option '%s': '%s' is not %s"):format(option, errors.show(text), what)
  end
end

function M.count(option)
  return M.number(option, "^[1-9]%d?%d?%d?%d?%d?$", "a number from 1 to 999999")
end

function M.jobs(cmd)
  cmd:option("--jobs", "steps at a time, but for timing (default: Ninja's)"):argname("<N>")
    :convert(M.count("--jobs"))
end

function M.timeout(cmd)
  cmd:option("--timeout", "seconds that a compiler or a program may take", "600"):argname("<SECONDS>")
    :convert(M.count("--timeout"))
end

-- Writes the file that an option names.
function M.write_file(path, text)
  local dir, name = path:match("^(.-)([^/]*)$")
  errors.must(name ~= "" or nil, "output file: its name is empty")
  errors.must(host.write_files(dir == "" and "." or dir, { { name = name, text = text } }))
end

-- The config of a command.
function M.config(cmd)
  cmd:argument("config", "CONFIG.lua (at most one) and key=value, which win over the file")
    :args("*"):argname("<CONFIG.lua or key=value>")
  cmd:epilog(config.help() .. "\n\n" .. [[
A CONFIG.lua is one table: return { h = 12, d_model = 384, dk = 32, seq = 128, isa = "avx2" }
Exit status: 0 done, 1 a check failed, 2 the command line or the config is wrong.]])
end

return M
