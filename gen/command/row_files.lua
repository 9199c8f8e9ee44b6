-- The row files of a sweep's steps, DIR/configs/ID/STEP.row, and the settings that they depend on.

local host = require "host"
local build = require "command.build"
local json = require "base.json"
local must = require("command.errors").must
local sweep = require "lab.sweep"

local M = {}

-- The settings in settings.json; nil and the reason if the file is not whole.
function M.read_settings(dir)
  local text, message = host.read_file(dir .. "/settings.json")
  if not text then return nil, message end
  local settings = json.decode(text)
  if type(settings) == "table" and type(settings.cc) == "string" then return settings end
  return nil, dir .. "/settings.json: is broken; start the sweep again"
end

function M.settings(dir) return must(M.read_settings(dir)) end

-- The settings that a step depends on. When they change, the step runs again.
local depends = {
  compile = { "cc", "compiler", "launch_compile" }, check = { "launcher", "stage" },
  time = { "threads", "samples" },
}

-- The hash of what the row of a step is made of; before: the hash of the step before it.
function M.key(step, before, settings, built)
  local parts = { before }
  for _, setting in ipairs(depends[step.name]) do parts[#parts + 1] = tostring(settings[setting]) end
  if step.common then parts[#parts + 1] = built end
  return host.hash(table.concat(parts, "\0"))
end

function M.path(dir, id, step) return ("%s/configs/%s/%s.row"):format(dir, id, step) end

-- The text of a row file, "" if there is none.
function M.read(dir, id, step) return host.read_file(M.path(dir, id, step)) or "" end

-- The compiled files that programs for an architecture share; nil if they are not compiled yet.
function M.built(dir, arch) return host.read_file(("%s/common/%s/built"):format(dir, arch)) end

-- Removes files that a crash of the machine or another hand has broken and that Ninja would take for done:
-- row files that are cut short or empty, and the file that says what programs share. Returns how many.
function M.mend(dir, configs)
  local count, archs = 0, {}
  local function remove(path)
    must(host.remove_file(path))
    count = count + 1
  end
  for _, one in ipairs(configs) do
    for _, step in ipairs(sweep.steps) do
      local path = M.path(dir, one.id, step.name)
      if host.exists(path) and not sweep.read_row(M.read(dir, one.id, step.name)) then remove(path) end
    end
    archs[build.arch_of(one.cfg)] = true
  end
  for arch in pairs(archs) do
    local built = M.built(dir, arch)
    if built and not built:find("^" .. ("%x"):rep(16) .. "$") and not built:find("^skip .") then
      remove(("%s/common/%s/built"):format(dir, arch))
    end
  end
  return count
end

-- The configs that lack the result of what was generated with these settings.
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

-- Notes for each config which other config has the same code and is measured for both, if there is one.
-- Returns for how many there is.
function M.share(dir, configs)
  for _, one in ipairs(configs) do
    local _, code = sweep.read_key(M.read(dir, one.id, sweep.steps[1].name))
    one.code, one.measured = code ~= "" and code or nil, host.exists(M.path(dir, one.id, sweep.last))
  end
  return sweep.share(configs)
end

-- The number of configs that have a result, with whatever settings it was made.
function M.count(dir, configs)
  local count = 0
  for _, one in ipairs(configs) do
    if host.exists(M.path(dir, (one.same_as or one).id, sweep.last)) then count = count + 1 end
  end
  return count
end

-- The rows that are there, in the order of the configs, and the configs that have none.
function M.all(dir, configs)
  M.share(dir, configs)
  local rows, without = {}, {}
  for _, one in ipairs(configs) do
    local row = sweep.read_row(M.read(dir, (one.same_as or one).id, sweep.last))
    if row and one.same_as then
      local own = sweep.read_row(M.read(dir, one.id, sweep.steps[1].name))
      row = own and sweep.shared(row, own, one.same_as)
    end
    if row then
      row.id = (one.same_as or one).id
      rows[#rows + 1] = row
    else
      without[#without + 1] = one
    end
  end
  return rows, without
end

return M
