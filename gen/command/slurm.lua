-- Sweeps on a cluster: an array job. Each task runs Ninja for a shard of the configs on a node.
--
--   slurm.job           name of the array job that may be at work here, and its number if it has one
--   shards/N/           build.ninja of the shard N, Ninja's log, the locks
--   shards/JOB_N.log    the output of the task
--
-- Only the rows in configs/ record progress. So it does not matter how a job ends. When it has left the queue,
-- another job gets all configs without an up-to-date row.

local host = require "host"
local build = require "command.build"
local errors = require "command.errors"
local ninja = require "command.ninja"
local row_files = require "command.row_files"
local shards = require "lab.shards"
local shell = require "base.shell"
local sweep = require "lab.sweep"

local must = errors.must

local M = {}

local MOST_FRUITLESS = 4 -- jobs in a row that bring no result
local MOST_ASKED = 4 -- times in a row that squeue fails; a controller may be restarting
local INTERRUPTED = 130

-- Raises an error if Slurm's programs are not installed.
function M.need()
  for _, program in ipairs { "sbatch", "squeue", "sinfo" } do
    if must(host.run({ "/bin/sh", "-c", "command -v " .. program }, build.OUTPUT_BYTES)) ~= 0 then
      error({ message = ("sweep: --slurm needs %s, which is not in $PATH"):format(program) }, 0)
    end
  end
end

function M.place(shard) return "shards/" .. shard end

-- The name of the job that may be at work in the directory, and its number.
function M.noted(dir) return (host.read_file(dir .. "/slurm.job") or ""):match("^(%S+) ?(%d*)") end

-- Does what is done for a directory. The error of an interrupt, wherever it comes, says that a job goes on where one
-- is noted.
local function telling(dir, action)
  local ok, problem = pcall(action)
  if ok then return end
  if type(problem) == "table" and problem.message == "interrupted" and M.noted(dir) then
    problem.message = "interrupted; the job goes on, and the same command waits for it"
  end
  error(problem, 0)
end

local function note(dir, ...)
  must(host.write_files(dir, { { name = "slurm.job", text = table.concat({ ... }, " ") .. "\n" } }))
end

local function interrupted() error({ message = "interrupted" }, 0) end

-- What one of Slurm's programs prints; nil and the reason if it fails.
local function ask(words)
  local command = build.joined({ "/bin/sh", "-c", 'exec 2>&1; exec "$@"', "sh" }, words)
  local status, output = host.run(command, build.OUTPUT_BYTES)
  if must(status, output) == 0 then return output end
  if status == INTERRUPTED then interrupted() end
  return nil, ("%s ended with status %d: %s"):format(words[1], status, build.telling_line(output))
end

local function sleep(seconds)
  if must(host.run { "sleep", ("%.1f"):format(seconds) }) == INTERRUPTED then interrupted() end
end

local function queue(name)
  return ask { "squeue", "--noheader", "--array", "--name=" .. name, "--format=%F %T %r" }
end

-- The tasks in the queue of the job of that name, or nil.
local function tasks_of(name)
  for asked = 1, MOST_ASKED do
    local text, why = queue(name)
    if text then return shards.tasks(text) end
    if asked == MOST_ASKED then error({ message = why }, 0) end
    sleep(2 ^ (asked - 1))
  end
end

-- Waits until the job has left the queue.
local function wait(dir, name, configs, say)
  local start, said = host.clock(), nil
  for tasks in tasks_of, name do
    if tasks.hopeless then
      error({ message = ("Slurm job %s waits for a reason that does not pass by itself, %s; `scancel %s` ends it")
        :format(tasks.job, tasks.reason, tasks.job) }, 0)
    end
    local line = ("Slurm job %s: %d of %d configs have results; %d tasks run, %d wait%s"):format(
      tasks.job, row_files.count(dir, configs), #configs, tasks.running, tasks.waiting,
      tasks.reason and (" (%s)"):format(tasks.reason) or "")
    if line ~= said then say("%s", line) end
    said = line
    sleep(math.max(1, math.min((host.clock() - start) / 10, 10)))
  end
end

-- Runs before anything is written. If a job is at work in the directory, waits for it, or refuses.
function M.settle(dir, configs, refused, say)
  local name, number = M.noted(dir)
  if not name then return end
  if refused then
    local text, why = queue(name)
    if not text then
      error({ message = ("%s: Slurm job %s may be at work in it: %s; if it is not, remove %s/slurm.job"):format(
        dir, number ~= "" and number or name, why, dir) }, 0)
    end
    local tasks = shards.tasks(text)
    if tasks then
      error({ message = ("%s: Slurm job %s is at work in it; --slurm waits for it, `scancel %s` ends it"):format(
        dir, tasks.job, tasks.job) }, 0)
    end
  else
    telling(dir, function()
      row_files.share(dir, configs)
      wait(dir, name, configs, say)
    end)
  end
  must(host.remove_file(dir .. "/slurm.job"))
end

-- at: { dir, configs, settings, options, shards, jobs, say }; left: the configs without results.
-- Returns the job's name, its number, and how many shards it has.
local function submit(at, left)
  local options, count = build.words_of(at.options), tonumber(at.shards)
  if not count then
    local partition = shards.partition(options)
    local sinfo = { "sinfo", "--noheader", "--format=%P %D %T", partition and "--partition=" .. partition }
    count = shards.count(must(ask(sinfo)), partition, #left)
  end
  local parts = shards.deal(left, math.min(count, #left))
  for i, configs in ipairs(parts) do
    local place = M.place(i)
    must(host.write_files(at.dir .. "/" .. place, {
      { name = "build.ninja", text = sweep.ninja(configs, host.program, build.arch_of, place) },
    }))
  end
  -- The job's name is its own, and is noted before the job is submitted: so a kill cannot leave a job that
  -- nobody knows.
  local name = "mhagen-" .. host.hash(("%s %.9f"):format(at.dir, host.clock()))
  note(at.dir, name)
  local task = shell.line { host.program, "sweep-shard", name } .. ' "$SLURM_ARRAY_TASK_ID"'
  if at.jobs then task = task .. " --jobs " .. at.jobs end
  local output = must(ask(build.joined(
    { "sbatch", "--nodes=1", "--exclusive", "--requeue" }, options,
    { "--parsable", "--job-name=" .. name, "--array=1-" .. #parts, "--chdir=" .. at.dir,
      "--open-mode=append", "--output=shards/%A_%a.log", "--wrap=exec " .. task })))
  local number = ("\n" .. output):match("\n(%d+)%f[^%d]")
  if not number then error({ message = "sbatch printed no job number: " .. build.telling_line(output) }, 0) end
  note(at.dir, name, number)
  at.say("submitted Slurm job %s: %d configs in %d shards", number, #left, #parts)
  return name, number, #parts
end

-- The words by which the tasks of a job tell of their failure.
local function complaint(dir, number, count)
  local line
  for i = 1, count do
    local log = host.read_file(("%s/shards/%s_%d.log"):format(dir, number, i))
    line = log and ninja.complaint(log) or line or log and build.telling_line(log)
  end
  return line or "its tasks have left no log; do the nodes share this directory?"
end

-- Measures all configs that lack results; raises an error that says why it cannot.
function M.run(at)
  local left, fruitless = row_files.lacking(at.dir, at.configs, at.settings), 0
  while #left > 0 do
    local number, count
    telling(at.dir, function()
      local name
      name, number, count = submit(at, left)
      wait(at.dir, name, at.configs, at.say)
    end)
    must(host.remove_file(at.dir .. "/slurm.job"))
    local before = #left
    left = row_files.lacking(at.dir, at.configs, at.settings)
    fruitless = #left == before and fruitless + 1 or 0
    if fruitless == MOST_FRUITLESS then
      error({ message = ("%s: no result of %d configs from %d jobs in a row; the last, Slurm job %s: %s"):format(
        at.dir, #left, fruitless, number, complaint(at.dir, number, count)) }, 0)
    end
  end
end

return M
