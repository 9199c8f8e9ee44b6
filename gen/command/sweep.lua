-- `sweep`: plans a grid, runs its graph, collects the results.

local host = require "host"
local build = require "command.build"
local errors = require "command.errors"
local json = require "base.json"
local kernel = require "command.kernel"
local ninja = require "command.ninja"
local row_files = require "command.row_files"
local slurm = require "command.slurm"
local sweep = require "lab.sweep"
local takes = require "command.takes"
local wording = require "base.wording"

local must = errors.must

-- The file by which the directory of a sweep is known, and the files that have no room for a mark.
local MARK = "# Written by mhagen"
local unmarked = { "configs.txt", "invalid.txt", "settings.json", "results.jsonl", "results.csv" }

-- Refuses a directory that holds anything but a part of this sweep.
local function refuse_others(dir, configs, settings, force)
  local ours = takes.made(dir .. "/build.ninja", nil, MARK) or row_files.read_settings(dir) -- one may be broken
  if not ours then
    local files = { { name = "build.ninja" } }
    for i, name in ipairs(unmarked) do files[i + 1] = { name = name } end
    return takes.refuse_foreign(dir, files, force)
  end
  local list = host.read_file(dir .. "/configs.txt")
  local before = row_files.read_settings(dir) -- what is broken refuses nothing; rows know what made them
  local why = list and (sweep.missing(list, configs) or before and sweep.changed(before, settings))
  if why and not force then
    error({ message = ("%s: holds another sweep: %s; --force replaces it"):format(errors.show(dir), why) }, 0)
  end
end

local function reason(one)
  return errors.one_line { message = one.command .. ": " .. errors.one_line(one.broken) }
end

local MOST_TOLD = 5 -- mistakes

-- Tells each mistake once: of how many configs it is, and the first of them.
local function tell_invalid(invalid, dir, say)
  local list, by_text = {}, {}
  for _, one in ipairs(invalid) do
    for _, mistake in ipairs { one.broken, table.unpack(one.broken.more or {}) } do
      local text = errors.one_line { key = mistake.key, value = mistake.value, rule = mistake.rule,
                                     message = mistake.message }
      local entry = by_text[text] or { text = text, count = 0, first = one.command }
      if entry.count == 0 then by_text[text], list[#list + 1] = entry, entry end
      entry.count = entry.count + 1
    end
  end
  for i = 1, math.min(#list, MOST_TOLD) do
    say("invalid: %s (%s, the first is %s)", list[i].text, wording.counted(list[i].count, "config"), list[i].first)
  end
  if #list > MOST_TOLD then say("and %d mistakes more, in %s/invalid.txt", #list - MOST_TOLD, dir) end
end

-- Writes build.ninja, with what is known by now of configs that have the same code. Returns how many configs
-- have the code of another one.
local function write_graph(dir, configs)
  local shared = row_files.share(dir, configs)
  local text = sweep.ninja(configs, host.program, build.arch_of, ".")
  must(host.write_files(dir, { { name = "build.ninja", text = text } }))
  return shared
end

local function write_plan(dir, configs, invalid, settings)
  write_graph(dir, configs) -- first, for it says whose directory this is
  for _, one in ipairs(configs) do
    must(host.write_files(("%s/configs/%s"):format(dir, one.id),
                          { { name = "config.lua", text = sweep.config_file(one.cfg) } }))
  end
  local lines = {}
  for i, one in ipairs(invalid) do lines[i] = reason(one) .. "\n" end
  must(host.write_files(dir, {
    { name = "configs.txt", text = sweep.list(configs) },
    { name = "invalid.txt", text = table.concat(lines) },
    { name = "settings.json", text = json.encode(settings, { indent = true }) .. "\n" },
  }, true))
end

-- Removes the rows of steps that failed, so that these run again; returns the other rows.
local function forget_failures(dir, rows)
  local kept = {}
  for _, row in ipairs(rows) do
    if row.status == "ok" or row.status == "skipped" then
      kept[#kept + 1] = row
    else
      for _, step in ipairs(sweep.steps) do
        if not step.first then -- always says the same
          must(host.remove_file(row_files.path(dir, row.id, step.name)))
        end
      end
    end
  end
  return kept
end

local function duration(seconds)
  if seconds < 100 then return ("%.0f s"):format(seconds) end
  if seconds < 6000 then return ("%.0f min"):format(seconds / 60) end
  return ("%.1f h"):format(seconds / 3600)
end

-- Measures all configs that lack results; raises an error that says why it cannot.
local function measure(args, configs, settings, options, say)
  ninja.run(args.output, { "prepared" }, options)
  local shared = write_graph(args.output, configs)
  if shared > 0 then say("%d have the code of another one, and take its numbers", shared) end
  if args.slurm then
    return slurm.run { dir = args.output, configs = configs, settings = settings, options = args.slurm,
                       shards = args.shards, jobs = args.jobs, say = say }
  end
  ninja.run(args.output, { "checked" }, options)
  local left = #row_files.lacking(args.output, configs, settings)
  local each = sweep.average(host.read_file(args.output .. "/.ninja/.ninja_log") or "", sweep.last)
  if each then say("%d to time, about %s", left, duration(each * left)) end
  ninja.run(args.output, { "timed" }, options)
end

local function run(args)
  if args.shards and not args.slurm then error({ message = "sweep: --shards needs --slurm" }, 0) end
  local start = host.clock()
  local function say(...)
    if not args.quiet then must(host.print(string.format(...) .. "\n")) end
  end
  kernel.refuse_key(args.grid, "GRID.lua")
  local lists = kernel.entries_of(args.grid, "sweep", "return { h = { 1, 2 }, ... }", host.eval_grid, sweep.axes,
    tonumber(args.limit))
  local configs, invalid = sweep.expand(lists)
  if #configs == 0 then
    error({ message = ("sweep: all %d configs are invalid; %s"):format(#invalid, reason(invalid[1])) }, 0)
  end
  tell_invalid(invalid, args.output, say)
  local settings = {
    cc = host.cc, compiler = build.version_of(build.words_of(host.cc)), launcher = args.launcher,
    launch_compile = args.launch == "compile" or nil, stage = args.stage, threads = args.threads,
    samples = args.samples, timeout = tonumber(args.timeout),
  }
  refuse_others(args.output, configs, settings, args.force)
  if args.dry_run then
    say("%d configs, %d invalid; nothing is written", #configs, #invalid)
    return 0
  end
  if args.slurm then slurm.need() end
  local options = { jobs = args.jobs, quiet = args.quiet, eta = ninja.eta() }

  ninja.lock(args.output, settings.timeout, say)
  slurm.settle(args.output, configs, not args.slurm, say)
  local broken = row_files.mend(args.output, configs)
  if broken > 0 then say("%s made anew", wording.counted(broken, "broken file")) end
  write_plan(args.output, configs, invalid, settings)
  local rows = row_files.all(args.output, configs)
  if args.retry then rows = forget_failures(args.output, rows) end
  say("%d configs, %d invalid, planned in %.1f s; %d have results", #configs, #invalid,
      host.clock() - start, #rows)
  if args.plan_only then return 0 end

  local done, failed = xpcall(measure, errors.on_error, args, configs, settings, options, say)
  if not done and not failed.message then error(failed, 0) end

  local without
  rows, without = row_files.all(args.output, configs) -- also of a sweep that could not go on
  local counts = sweep.count(rows)
  must(host.write_files(args.output, { { name = "results.jsonl", text = sweep.jsonl(rows) },
                                       { name = "results.csv", text = sweep.csv(rows) } }, true))
  local by_step = #counts.by_step > 0 and " (" .. table.concat(counts.by_step, ", ") .. ")" or ""
  say("%d of %d configs: %d ok, %d failed%s, %d skipped, %d invalid; %d disturbed; %s; %s/results.jsonl",
      #rows, #configs, counts.ok, counts.failed, by_step, counts.skipped, #invalid, counts.disturbed,
      duration(host.clock() - start), args.output)
  if not done then return 2, failed.message end
  if #without > 0 then
    local ids = {}
    for i = 1, math.min(#without, 5) do ids[i] = without[i].id end
    return 1, ("sweep: %d of %d configs have no result, start it again: %s%s"):format(#without, #configs,
      table.concat(ids, "; "), #without > 5 and "; ..." or "")
  end
  return counts.failed > 0 and 1 or 0
end

local function options(cmd)
  local function number(option, text, default)
    return cmd:option(option, text, default):argname("<N>"):convert(takes.count(option:match("%S+$")))
  end
  cmd:argument("grid", "file with the axes: return { h = { 1, 2 }, d_model = 64, isa = \"avx2\", ... }")
    :argname("<GRID.lua>")
  cmd:option("-o --output", "directory; earlier results in it stay")
    :argname("<DIR>"):count(1):overwrite(false)
  cmd:flag("--dry-run", "check the grid; write nothing")
  cmd:flag("--plan-only", "write DIR/build.ninja; run nothing")
  cmd:flag("--force", "replace another sweep in DIR, and files that mhagen has not made")
  cmd:flag("--retry", "run failed configs once more")
  takes.quiet(cmd)
  number("--limit", "most configs that a grid may have", "10000")
  takes.jobs(cmd)
  takes.timeout(cmd)
  number("--threads", "threads of the kernels (default: 1)")
  takes.samples(cmd)
  takes.launcher(cmd)
  cmd:option("--launch", "also use the launcher for compilers"):choices { "compile" }
  cmd:option("--slurm", "measure on the nodes of a cluster, with these options of sbatch, such as " ..
    "'--partition=short --time=1:00:00'; '' for none"):argname("<OPTIONS>")
  number("--shards", "tasks of the array job (default: one for each idle node, or for each node)")
  cmd:option("--stage", "shell command that copies a program before it runs, " ..
    "such as 'scp {src} board:{dst}'"):argname("<CMD>")
  cmd:epilog([[
A GRID.lua is one table. Each config key may be an axis: a list of values, or one value. `configs` is a
list of tables, an axis of several keys. `where` chooses configs: it is a function of a config, or a list of
patterns. A config must match one pattern, such as { isa = "avx2", seq = { 16, 32 } }.
With --slurm the nodes share DIR, mhagen, Ninja and the compiler. Each task of the array job has a node
to itself. If mhagen is killed, the job goes on, and the same command finds it.
Exit status: 0 done, 1 a config failed, 2 the grid is wrong or the sweep could not go on.]])
end

return {
  name = "sweep", run = run, options = options,
  summary = "Check and time every config of a grid; continues a stopped sweep.",
  about = "Example: mhagen sweep examples/sweep.lua -o out. $CC is the compiler with its options (default: cc -O2).",
}
