-- The program that libFuzzer gives inputs to (tests/host_fuzz.c): the commands of gen/main.lua, with a host in
-- which the input is the only file, and nothing is run or written.

local host = require "host"
local errors = require "command.errors"
local kernel = require "command.kernel"
local main = require "main"
local report = require "command.report"
local sweep = require "command.sweep"

local text -- the input

local function missing(path) return nil, tostring(path) .. ": No such file or directory" end
local function done() return true end

-- What else the results of a sweep lie beside is behind a line of its own.
local function part(path)
  local results, tuning = text:match("^(.-)\n%-%-%-\n(.*)$")
  if path:find("results.jsonl", 1, true) then return results or text end
  if path:find("tune.jsonl", 1, true) then return tuning end
end

local SHAPE = { "h=2", "d_model=20", "dk=6", "seq=19", "isa=avx2" }

-- Runs a function as gen/main.lua does; returns exit status and message.
local function attempt(...)
  local ok, e = xpcall(...)
  if ok then return 0 end
  return e.status or 2, e.internal or errors.one_line(e)
end

-- Every target gets the name of the input's file and returns exit status and message. Without a need the
-- kernel is not generated: that takes long, and tests/fuzz.py looks for faults there.
local targets = {
  config = function(file) return attempt(kernel.load_config, errors.on_error, { file }) end,
  tuning = function(file)
    return attempt(kernel.load_config, errors.on_error, { "tuned=" .. file, table.unpack(SHAPE) })
  end,
  grid = function(file)
    return attempt(sweep.run, errors.on_error, { grid = file, output = "out", dry_run = true, limit = "2000" })
  end,
  results = function()
    return attempt(report.run, errors.on_error, { dir = "dir", compare = "dir", filter = {}, band = "3",
                                                  sort = "us_median", limit = "20" })
  end,
  command = function(file)
    local words = {}
    for line in text:gmatch("[^\n]*") do words[#words + 1] = (line:gsub("FILE", file)) end
    return main(words)
  end,
}

-- The arguments { target, file }: the file holds the input too. Returns the function that runs one.
return function(arguments)
  local target, file = targets[arguments[1]], arguments[2]
  local eval_config, eval_grid = host.eval_config, host.eval_grid
  function host.eval_config(path, depth)
    if path ~= file then return missing(path) end
    return eval_config(path, depth)
  end
  function host.eval_grid(path, axes_of, limit)
    if path ~= file then return missing(path) end
    return eval_grid(path, axes_of, limit)
  end
  function host.read_file(path)
    local found = part(path)
    if not found then return missing(path) end
    return found
  end
  function host.exists(path) return part(path) ~= nil end
  function host.run() return nil, "fuzz: nothing is run" end
  function host.temp_dir() return "temp" end
  host.locked, host.lock, host.write_files, host.remove_file = done, done, done, done
  host.remove_dir, host.print = done, done
  return target and function(input)
    text = input
    local status, message = target(file)
    if status ~= 0 and status ~= 1 and status ~= 2 then error("exit status " .. tostring(status), 0) end
    if message and (message:find("^internal error") or message:find("%c") or #message > 500) then
      error(message, 0)
    end
  end
end
