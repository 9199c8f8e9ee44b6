-- Sweeps: the configs of a grid, the files that Ninja works on, and the results as lines of JSON and as CSV.
-- The directory of a sweep has
--
--   build.ninja      the edges: a step is `mhagen sweep-step FILE`, which makes FILE
--   configs.txt      the configs, as key=value
--   settings.json    the other facts that results depend on: the compiler, the launcher, ..
--   invalid.txt      configs of the grid that are refused, and why
--   common/ARCH/     the compiled files that all programs for an architecture share
--   configs/ID/      options/config.lua, the C, the program, and after each step STEP.row
--   results.jsonl, results.csv
--
-- and for a sweep on a cluster the files that gen/command/slurm.lua names.

local bench = require "lab.bench"
local config = require "options.config"
local json = require "base.json"
local name = require "options.name"
local results = require "lab.results"
local shell = require "base.shell"
local template = require "base.template"
local version = require "base.version"

local M = {}

-- The steps of a config, in order. `first`: it tells which configs need the other steps; `common`: the step
-- also reads what all programs share.
M.steps = {
  { name = "generate", first = true }, { name = "compile", common = true }, { name = "check" },
  { name = "time", pool = "one" },
}
M.last = M.steps[#M.steps].name

-- The step with a name, and the step before it.
function M.step(name)
  for i, step in ipairs(M.steps) do
    if step.name == name then return step, M.steps[i - 1] end
  end
end

-- ---- the grid ----

local words_of_grid = { "configs", "where" }

-- The entries of a grid's table -> the names of its axes in the order of the schema.
function M.axes(entries)
  local present, axes = {}, {}
  table.sort(entries, function(a, b) return tostring(a.key) < tostring(b.key) end)
  for _, entry in ipairs(entries) do
    local key = entry.key
    if entry.key_type ~= "string" then
      local text = ("[%s]"):format(key == nil and "a " .. entry.key_type or tostring(key))
      error({ key = text, rule = "keys must be names" }, 0)
    end
    config.check_key(key, words_of_grid)
    present[key] = true
  end
  for _, row in ipairs(config.schema) do
    if present[row.key] then axes[#axes + 1] = row.key end
  end
  return axes
end

-- The name of a config's folder: the config's name, in full where a kernel's has a hash, and the keys that it does not
-- tell.
local function id_of(cfg, command)
  local id = cfg.name == name.build(cfg) and name.full(cfg) or cfg.name
  local told, words = name.parse(id) or {}, { id }
  for word in command:gmatch("%S+") do
    local key = word:match("^[^=]*")
    if told[key] == nil and key ~= "name" then words[#words + 1] = word end
  end
  return table.concat(words, ",")
end

local function load_one(entries)
  local cfg = config.load(entries, {})
  config.refuse_several(cfg, "a sweep")
  return cfg
end

-- Lists of entries -> the configs { id, command, cfg }, each once, and the invalid ones
-- { command, rule }.
function M.expand(lists)
  local configs, invalid, seen = {}, {}, {}
  for _, entries in ipairs(lists) do
    local ok, cfg = pcall(load_one, entries)
    local command, broken
    if ok then
      command = config.canonical(cfg)
    elseif type(cfg) == "table" and cfg.rule then
      local words = {} -- the entries are sorted now
      for i, entry in ipairs(entries) do
        local value = entry.value
        if value == nil then value = "a " .. entry.value_type end
        words[i] = ("%s=%s"):format(tostring(entry.key), tostring(value))
      end
      command, broken = table.concat(words, " "), cfg
    else
      error(cfg, 0)
    end
    if not seen[command] then
      seen[command] = true
      local id = ok and id_of(cfg, command)
      if ok and #id > 240 then broken = { key = "name", rule = "has too many keys for a folder" } end
      if broken then
        invalid[#invalid + 1] = { command = command, broken = broken }
      else
        configs[#configs + 1] = { id = id, command = command, cfg = cfg }
      end
    end
  end
  return configs, invalid
end

-- ---- configs with the same code ----

-- Of the configs with the same `code` one is measured: the first that is `measured` already, so that it stays
-- the same one when the grid grows, or else the first. The others get the field same_as with that config. A
-- program is measured once, because the report would show the noise of two measurements as a difference.
-- Returns how many configs got the field.
function M.share(configs)
  local first, count = {}, 0
  for _, one in ipairs(configs) do
    local before = one.code and first[one.code]
    if one.code and (not before or one.measured and not before.measured) then first[one.code] = one end
  end
  for _, one in ipairs(configs) do
    local same = one.code and first[one.code]
    one.same_as = same ~= one and same or nil
    count = count + (one.same_as and 1 or 0)
  end
  return count
end

-- The row of a config, made of the row of the config with the same code and its own row of the first step.
function M.shared(row, own, same_as)
  for _, key in ipairs { "name", "config", "command", "version", "generate_seconds" } do
    row[key] = own[key]
  end
  row.same_as = same_as.command
  return row
end

-- ---- another grid? ----

local function lines_of(text)
  local lines = {}
  for line in text:gmatch("([^\n]+)\n") do lines[#lines + 1] = line end -- the last one may be cut short
  return lines
end

-- The text of configs.txt.
function M.list(configs)
  local lines = {}
  for i, one in ipairs(configs) do lines[i] = one.command .. "\n" end
  return table.concat(lines)
end

-- A message about configs in the list of an earlier sweep that are not among these; nil if all are.
function M.missing(list, configs)
  local now, have, gone, reported, words = {}, {}, {}, {}, {}
  for _, one in ipairs(configs) do
    now[one.command] = true
    for word in one.command:gmatch("%S+") do have[word] = true end
  end
  local before = lines_of(list)
  for _, command in ipairs(before) do
    if not now[command] then gone[#gone + 1] = command end
  end
  if #gone == 0 then return nil end
  for _, command in ipairs(gone) do
    for word in command:gmatch("%S+") do
      if not have[word] and not reported[word] then
        reported[word], words[#words + 1] = true, word
      end
    end
  end
  local which = #words > 0 and #words <= 6 and table.concat(words, ", ") or gone[1] .. ", ..."
  return ("%d of its %d configs are not in the grid: %s"):format(#gone, #before, which)
end

-- A message about the difference between the settings of an earlier sweep and these, or nil.
function M.changed(before, now)
  local function show(value) return value == nil and "none" or "'" .. tostring(value) .. "'" end
  local keys = { "cc", "compiler", "launcher", "launch_compile", "stage", "threads", "samples" }
  for _, key in ipairs(keys) do
    if before[key] ~= now[key] then
      return ("its %s was %s, now %s"):format(key:gsub("_", " "), show(before[key]), show(now[key]))
    end
  end
end

-- ---- the files of a plan ----

-- The text of options/config.lua: the config, one key a line.
function M.config_file(cfg)
  local words = {}
  for key, text in config.canonical(cfg):gmatch("(%S-)=(%S+)") do
    local word = type(cfg[key]) == "string" and ('"%s"'):format(text) or text
    words[#words + 1] = ("%s = %s"):format(key, word)
  end
  return ("return { %s }\n"):format(table.concat(words, ", "))
end

-- The text of build.ninja. program: the path of mhagen; arch_of(cfg): the architecture that a config's program
-- is for; place: the directory of Ninja's log and the locks. For a shard the first step and the common files
-- are there already.
function M.ninja(configs, program, arch_of, place)
  local shard = place ~= "."
  local lines, common, present, outputs = {}, {}, {}, {}
  local mhagen = template.ninja_path(program)
  for _, step in ipairs(M.steps) do outputs[step.name] = {} end
  for _, one in ipairs(configs) do
    local dir = "configs/" .. one.id .. "/"
    local arch = arch_of(one.cfg)
    local built = ("common/%s/built"):format(arch)
    if not shard and not present[arch] then
      present[arch] = true
      common[#common + 1] = ("build %s: step | %s settings.json\n"):format(built, mhagen)
      table.insert(outputs.generate, built)
    end
    local input = ("config.lua | %s"):format(mhagen)
    for _, step in ipairs(M.steps) do
      local output = dir .. step.name .. ".row"
      local wanted = not one.same_as
      if step.first then wanted = not shard end
      if wanted then
        lines[#lines + 1] = ("build %s: step %s%s%s%s\n"):format(output, dir, input,
          step.common and " " .. built or "", step.pool and " || checked\n  pool = " .. step.pool or "")
        table.insert(outputs[step.name], output)
      end
      input = step.name .. ".row | settings.json"
    end
  end
  return template.file("sweep.ninja.in", {
    version = version, place = place, command = shell.word(program):gsub("%$", "$$"), common = table.concat(common),
    configs = table.concat(lines), prepared = table.concat(outputs.generate, " "),
    checked = table.concat(outputs.check, " "), timed = table.concat(outputs.time, " "),
  })
end

-- The C text of the program of one config.
function M.main(recorded)
  local plan = recorded.plan
  return template.file("sweep.c.in", { name = plan.cfg.name, work = bench.work(plan) })
end

-- ---- results ----

-- The text of a row file: the hash of what the row was made of, the hash of the code if there is one, the row.
function M.row_file(key, row, code)
  return key .. (code and " " .. code or "") .. "\n" .. bench.json(row)
end

-- The row of a config that the generator refuses.
function M.refused(cfg, message)
  return { name = cfg.name, config = cfg, command = "mhagen gen " .. config.canonical(cfg),
           version = version, status = "generate", message = message }
end

-- The two hashes in a text; nil if it is no row file.
function M.read_key(text) return text:match("^(%x+) ?(%x*)\n") end

-- The row in a text; nil if it is not there to its last byte.
function M.read_row(text)
  local line = text:match("^%x+ ?%x*\n({[^\n]*})\n$")
  local row = line and json.decode(line)
  return row and row.name and row.config and row or nil
end

-- A cell of CSV. A text that a spreadsheet would take for a formula begins with an apostrophe.
local function cell(value)
  local text = value == nil and "" or type(value) == "table" and json.encode(value) or tostring(value)
  if type(value) == "string" and text:find("^[=+@\t\r-]") and not tonumber(text) then text = "'" .. text end
  return text:find('[",\r\n]') and '"' .. text:gsub('"', '""') .. '"' or text
end

-- The rows as CSV: first the fields, then the keys of the config without the name.
function M.csv(rows)
  local function line(of_field, of_key)
    local cells = {}
    for _, field in ipairs(results.fields) do cells[#cells + 1] = cell(of_field(field[1])) end
    for _, key in ipairs(config.schema) do
      if key.key ~= "name" then cells[#cells + 1] = cell(of_key(key.key)) end
    end
    return table.concat(cells, ",") .. "\n"
  end
  local lines = { line(function(key) return key end, results.column_of) }
  for _, row in ipairs(rows) do
    lines[#lines + 1] = line(
      function(key)
        if key == "config" then return row.command:gsub("^mhagen gen ", "") end
        return row[key]
      end,
      function(key) return row.config[key] end)
  end
  return table.concat(lines)
end

function M.jsonl(rows)
  local lines = {}
  for i, row in ipairs(rows) do lines[i] = bench.json(row) end
  return table.concat(lines)
end

-- The mean of the seconds that a step took, from Ninja's log: lines of start, end (ms), time, path, hash.
function M.average(log, step)
  local total, count = 0, 0
  for from, to, path in log:gmatch("\n(%d+)\t(%d+)\t%d+\t([^\t]+)") do
    if path:match("([^/]+)%.row$") == step then
      total, count = total + tonumber(to) - tonumber(from), count + 1
    end
  end
  return count > 0 and total / count / 1e3 or nil
end

-- Counts the rows that are ok, skipped, failed, disturbed; by_step: { "compile 2", "time 1" } and so on.
function M.count(rows)
  local counts = { ok = 0, failed = 0, skipped = 0, disturbed = 0, by_step = {} }
  local steps = {}
  for _, row in ipairs(rows) do
    if row.status == "ok" or row.status == "skipped" then
      counts[row.status] = counts[row.status] + 1
    else
      counts.failed = counts.failed + 1
      steps[row.status] = (steps[row.status] or 0) + 1
    end
    if row.disturbed then counts.disturbed = counts.disturbed + 1 end
  end
  for _, step in ipairs(M.steps) do
    if steps[step.name] then
      counts.by_step[#counts.by_step + 1] = ("%s %d"):format(step.name, steps[step.name])
    end
  end
  return counts
end

return M
