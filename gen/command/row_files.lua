-- The row files of a sweep's steps, DIR/configs/ID/STEP.row, and what they are made of.

local host = require "host"
local build = require "command.build"
local must = require("command.errors").must
local sweep = require "lab.sweep"

local M = {}

-- The settings that a step depends on: with others it is made again.
local depends = {
  compile = { "cc", "compiler", "launch_compile" }, check = { "launcher", "stage" },
  time = { "threads", "samples" },
}

-- The hash of what the row of a step is made of; before: that of the step before it.
function M.key(step, before, settings, built)
  local parts = { before }
  for _, setting in ipairs(depends[step.name]) do parts[#parts + 1] = tostring(settings[setting]) end
  if step.common then parts[#parts + 1] = built end
  return host.hash(table.concat(parts, "\0"))
end

function M.path(dir, id, step) return ("%s/configs/%s/%s.row"):format(dir, id, step) end

-- The text of a row file, "" where there is none.
function M.read(dir, id, step) return host.read_file(M.path(dir, id, step)) or "" end

-- What the programs for an architecture share, as compiled; nil where it is not.
function M.built(dir, arch) return host.read_file(("%s/common/%s/built"):format(dir, arch)) end

-- Of the configs to be measured, those without the result of what was generated and of the settings.
function M.lacking(dir, configs, settings)
  local list = {}
  for _, one in ipairs(configs) do
    if not one.same_as then
      must(host.write_files(("%s/configs/%s"):format(dir, one.id), {})) -- NFS looks again in one that is opened
      local built, key = M.built(dir, build.arch_of(one.cfg)), nil
      for _, step in ipairs(sweep.steps) do
        if step.first then
          key = sweep.read_key(M.read(dir, one.id, step.name))
        else
          key = key and built and M.key(step, key, settings, built)
        end
      end
      if not key or sweep.read_key(M.read(dir, one.id, sweep.last)) ~= key then list[#list + 1] = one end
    end
  end
  return list
end

-- Says of each config which other one has the same code and is measured for both, if any has; returns
-- of how many.
function M.share(dir, configs)
  for _, one in ipairs(configs) do
    local _, code = sweep.read_key(M.read(dir, one.id, sweep.steps[1].name))
    one.code, one.measured = code ~= "" and code or nil, host.exists(M.path(dir, one.id, sweep.last))
  end
  return sweep.share(configs)
end

-- Of how many configs there is a result, from whatever make.
function M.count(dir, configs)
  local count = 0
  for _, one in ipairs(configs) do
    if host.exists(M.path(dir, (one.same_as or one).id, sweep.last)) then count = count + 1 end
  end
  return count
end

-- The rows that there are, in the order of the configs.
function M.all(dir, configs)
  M.share(dir, configs)
  local rows = {}
  for _, one in ipairs(configs) do
    local row = sweep.read_row(M.read(dir, (one.same_as or one).id, sweep.last))
    if row and one.same_as then
      row = sweep.shared(row, sweep.read_row(M.read(dir, one.id, sweep.steps[1].name)), one.same_as)
    end
    if row then
      row.id = (one.same_as or one).id
      rows[#rows + 1] = row
    end
  end
  return rows
end

return M
