-- Ninja, and the locks under which it runs the steps of a sweep.

local host = require "host"
local build = require "command.build"
local errors = require "command.errors"

local must = errors.must

local M = {}

-- The processes that have the file of a lock open, in words, and whether one of them is mhagen. (An mhagen
-- ends the programs that it runs.)
local function holders(path)
  local words, watched = {}, false
  for i, process in ipairs(host.holders(path)) do
    watched = watched or process.name:find("^mhagen") ~= nil
    if i <= 5 then words[i] = ("%d (%s)"):format(process.pid, process.name) end
  end
  return #words > 0 and "process " .. table.concat(words, ", ") or "a process of another machine", watched
end

-- Takes the two locks of `place`, the directory of a sweep or of a shard, in which one Ninja runs at a time.
-- The process that runs Ninja holds `.sweep`; steps do not start without it. `.steps` passes to Ninja and to
-- all that Ninja starts, and so outlives a kill. This waits for `.steps`; if no mhagen is left that would
-- end the running program, it waits no longer than a program may take.
function M.lock(place, seconds, say)
  must(host.write_files(place, {}))
  local steps, start = place .. "/.steps", host.clock()
  local said
  while not must(host.lock(steps, false, true)) do
    if must(host.locked(place .. "/.sweep")) then
      error({ message = place .. ": a sweep is running in it" }, 0)
    end
    local who, watched = holders(steps)
    if not watched and host.clock() - start > tonumber(seconds) then
      error({ message = ("%s: %s of an earlier sweep still runs after %d s; end it, "
        .. "and start the sweep again"):format(place, who, seconds) }, 0)
    end
    if said ~= who then say("waiting for an earlier sweep: %s", who) end
    said = who
    if must(host.run { "sleep", "0.1" }) ~= 0 then error({ message = "interrupted" }, 0) end
  end
  must(host.lock(place .. "/.sweep", false, false, true))
end

-- Whether this Ninja can print how long it will take; an error if there is no Ninja.
function M.eta()
  local major, minor = build.version_of({ "ninja" }):match("^(%d+)%.(%d+)")
  return major and tonumber(major) * 1000 + tonumber(minor) >= 1012
end

-- The line in a printed text by which a step or a shard tells of its failure.
function M.complaint(output) return output:match("mhagen: ([^\n]*)") end

-- Runs Ninja in the directory of a sweep; raises an error if it could not do all. options: jobs, quiet, eta.
function M.run(dir, arguments, options)
  local command = build.joined({ "env", "NINJA_STATUS=[%f/%t, %es" .. (options.eta and ", %Es left] " or "] "),
                                 "ninja", "-C", dir }, arguments)
  if options.jobs then command = build.joined(command, { "-j", options.jobs }) end
  command.tied = true -- a Ninja that is left alone would go on with steps, each of which refuses to run
  local status, output = host.run(command, options.quiet and build.OUTPUT_BYTES or nil)
  if must(status, output) == 0 then return end
  error({ message = ("%s: ninja ended with status %d%s"):format(dir, status,
    output and ": " .. (M.complaint(output) or build.telling_line(output)) or "") }, 0)
end

return M
