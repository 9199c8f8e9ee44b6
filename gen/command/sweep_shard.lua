-- A task of a sweep's array job, on a node, in the directory of the sweep. Users do not call it.

local host = require "host"
local build = require "command.build"
local errors = require "command.errors"
local ninja = require "command.ninja"
local row_files = require "command.row_files"
local slurm = require "command.slurm"
local takes = require "command.takes"

local must = errors.must

local function run(args)
  -- Slurm runs a task once at a time. Of two jobs only the one that the directory names does the work.
  if slurm.noted(".") ~= args.job then
    error({ message = "sweep-shard: the sweep waits for another job; this one has nothing to do" }, 0)
  end
  local settings = row_files.settings(".")
  local compiler = build.version_of(build.words_of(settings.cc))
  if compiler ~= settings.compiler then
    error({ message = ("sweep-shard: the compiler is '%s' on this node, and '%s' where the sweep was started")
      :format(compiler, settings.compiler) }, 0)
  end
  local place = slurm.place(args.shard)
  ninja.lock(place, settings.timeout, function(...) must(host.print(string.format(...) .. "\n")) end)
  ninja.run(".", { "-f", place .. "/build.ninja" }, { jobs = args.jobs })
  return 0
end

return {
  name = "sweep-shard", run = run,
  options = function(cmd)
    cmd:hidden(true)
    cmd:argument("job", "the name of the job")
    cmd:argument("shard", "its number")
    takes.jobs(cmd)
  end,
}
