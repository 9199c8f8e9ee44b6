-- Sweeps on a cluster: reads the output of Slurm's programs, and divides configs between nodes.
--
--   partition(options)              the partitions of sbatch's options, or nil for the default
--   count(text, asked, configs)     the number of shards
--   deal(list, count)               about equal parts; neighbours in the grid share a node
--   tasks(text)                     the state of the tasks of a job

local M = {}

-- The most tasks of one array job, unless Slurm's settings say otherwise.
local MOST = 1000

-- The partitions that options of sbatch ask for, as one word; nil for the default partition.
function M.partition(options)
  for i, option in ipairs(options) do
    local name = option:match("^%-%-partition=(.+)") or option:match("^%-p(.+)")
    if name then return name end
    if option == "--partition" or option == "-p" then return options[i + 1] end
  end
end

local up = { idle = true, mixed = true, allocated = true, completing = true, planned = true }

-- How many shards to make for so many configs: one for each idle node or, if none is idle, one for each node
-- that is up. The lines "partition nodes state" are those of sinfo, for the partition that is asked for or for
-- all; the default partition has a star.
function M.count(text, asked, configs)
  local default = not asked and text:find("%S+%* ")
  local nodes = { idle = 0, up = 0 }
  for partition, count, state in text:gmatch("(%S+) +(%d+) +(%l+)") do
    if not default or partition:find("%*$") then
      if state == "idle" then nodes.idle = nodes.idle + tonumber(count) end
      if up[state] then nodes.up = nodes.up + tonumber(count) end
    end
  end
  local wanted = nodes.idle > 0 and nodes.idle or nodes.up
  return math.max(1, math.min(wanted, configs, MOST)) -- none is up: they may come
end

-- Cuts a list into about equal parts. Neighbours in a grid, which people compare, share a node.
function M.deal(list, count)
  local parts = {}
  for i = 1, count do
    parts[i] = table.move(list, (i - 1) * #list // count + 1, i * #list // count, 1, {})
  end
  return parts
end

-- Slurm's words for reasons why a task may wait for ever.
local hopeless = {}
for reason in ([[
  AccountNotAllowed BadConstraints DependencyNeverSatisfied InvalidAccount InvalidQOS JobHeldAdmin
  JobHeldUser JobHoldMaxRequeue PartitionConfig PartitionNodeLimit PartitionTimeLimit QOSNotAllowed
]]):gmatch("%S+") do hopeless[reason] = true end
hopeless["launch failed requeued held"] = true

-- The state of a job, { job, running, waiting, reason, hopeless }, from lines "job state reason" of squeue; nil
-- if there is none. hopeless: all tasks that are left wait for something that will not come.
function M.tasks(text)
  local tasks = { running = 0, waiting = 0, hopeless = true }
  for job, state, reason in text:gmatch("(%d+) +([%u_]+) +([^\n]*)") do
    tasks.job = job
    if state == "PENDING" then
      tasks.waiting = tasks.waiting + 1
      if reason ~= "None" then tasks.reason = reason end
      tasks.hopeless = tasks.hopeless and hopeless[reason] or false
    else
      tasks.running, tasks.hopeless = tasks.running + 1, false
    end
  end
  return tasks.job and tasks or nil
end

return M
