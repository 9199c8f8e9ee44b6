-- `tune`: searches the schedule of one shape by measuring, and stores the fastest.

local host = require "host"
local build = require "command.build"
local check = require "command.check"
local config = require "options.config"
local cpu = require "machine.cpu"
local errors = require "command.errors"
local isas = require "isa.init"
local json = require "base.json"
local kernel = require "command.kernel"
local name = require "options.name"
local options = require "options.init"
local laboratory = require "command.tune_lab"
local shell = require "base.shell"
local takes = require "command.takes"
local tune = require "lab.tune"
local tuning = require "lab.tuning"
local version = require "base.version"

local must = errors.must

-- Seconds of 60, 60s, 5m or 1h.
local function seconds(text)
  local number, unit = text:match("^(%d+%.?%d*)([smh]?)$")
  local value = number and tonumber(number) * ({ s = 1, m = 60, h = 3600 })[unit ~= "" and unit or "s"]
  if value and value >= 1 and value <= 86400 then return value end
  return nil, ("option '--budget': '%s' is not a time from 1s to 24h"):format(errors.show(text))
end

-- What a CPU's tuning file is called: its model, as the system names it, and numbers, for one name is of many models.
local function file_of(name)
  local base = name:lower():gsub("%(.-%)", ""):gsub("[^%w]+", "_"):gsub("_*$", "")
  local numbers = cpu.numbers(host.read_file("/proc/cpuinfo") or "")
  return base .. (numbers ~= "" and "_" or "") .. numbers .. ".lua"
end

-- The words of the config to tune, without its name. Schedule keys that are given are among them, even with
-- their default values.
local function base_of(cfg, given)
  local words, told = {}, {}
  for word in config.canonical(cfg):gmatch("%S+") do
    local key = word:match("^[^=]*")
    if key == "tuned" then error({ key = key, value = cfg.tuned, rule = "is what tune writes; leave it out" }, 0) end
    told[key] = true
    if key ~= "name" then words[#words + 1] = word end
  end
  for _, row in ipairs(config.schema) do
    if row.schedule and given[row.key] and not told[row.key] then
      words[#words + 1] = ("%s=%s"):format(row.key, cfg[row.key])
    end
  end
  return words
end

local TRACE_MARK = '{"shape":"' -- what a line of a trace begins with

local function append(path, rows, force)
  local lines = {}
  for i, row in ipairs(rows) do
    lines[i] = json.encode(row, { keyorder = { "shape", "method", "second", "us", "default_us" } }) .. "\n"
  end
  takes.write_file(path, (host.read_file(path) or "") .. table.concat(lines), force, TRACE_MARK)
end

-- The rows of the trace: the best ratio so far, and when it was found.
local function trace_rows(lab, cfg, way, default)
  local rows = {}
  local shape = name.shape(cfg)
  for i, event in ipairs(lab.trace) do
    rows[i] = { shape = shape, method = way, second = event.seconds, us = event.ratio * default.us,
                default_us = default.us }
  end
  return rows
end

local function median(values)
  local sorted = table.move(values, 1, #values, 1, {})
  table.sort(sorted)
  return sorted[(#sorted + 1) // 2]
end

-- The schedule keys among the words of a config.
local function schedule_words(words)
  local schedule = {}
  for _, word in ipairs(words) do
    if options.list[word:match("^[^=]*")].schedule then schedule[#schedule + 1] = word end
  end
  return schedule
end

-- Whether the winner has passed all of `check` in time.
local function passes(winner, lab, args)
  local passed, why, short
  tune.in_time(function()
    local seconds
    seconds, short = lab.allowed(tonumber(args.timeout))
    passed, why = build.in_dir(nil, check.check_in, winner.cfg, seconds, { "--terse" })
  end)
  if passed then return true end
  if why and not (short and why:find("timed out", 1, true)) then laboratory.bug(winner, "%s", why) end
  lab.say("the time is over before the check of %s", winner.words)
  return false
end

-- Tunes in `dir`. Returns
--   record     for the tuning file
--   ratio      the winner's to the default, or nil
--   least      the budget with which another schedule would be tried, where that is known; false where none has a
--              chance
local function tune_in(dir, cfg, base, args)
  local lab = laboratory.new(dir, args)
  local default, winner, ratios, tried, complete = tune.search(base, args.search, lab)
  if winner and not passes(winner, lab, args) then winner, ratios = nil, {} end
  local best = winner or default
  if args.trace then append(args.trace, trace_rows(lab, cfg, args.search, default), args.force) end
  local words, machine = {}, lab.machine()
  for i, ratio in ipairs(ratios) do words[i] = ("%.4f"):format(ratio) end
  return {
    shape = config.shape(cfg), schedule = table.concat(schedule_words(best.arguments), " "),
    us = winner and default.us * median(ratios) or default.us, default_us = default.us,
    ratios = table.concat(words, " "), error = lab.error_of(best), tried = tried, seconds = lab.seconds(),
    compiler = lab.compiler, flags = lab.flags, cpu = machine.cpu, cores = machine.cores,
    system = machine.system, version = version,
  }, winner and median(ratios), not complete and lab.least
end

-- What a search has found, and how it is used.
local function outcome(record, path, ratio, least)
  if record.tried == 0 and least == false then
    return "nothing was tried, the default is kept: no other schedule has a chance by the cost model\n"
  elseif record.tried == 0 then
    return ("nothing was tried, the default is kept: there is no time to try another; the least is --budget %ds\n")
      :format(math.ceil(least or 2 * record.seconds))
  end
  local what = ratio and ("%s: %.3f of the default's time"):format(record.schedule, ratio)
    or "the default is kept: nothing was faster by more than 1 % in 4 of 5 paired runs"
  return ("%s\n%s: %d schedules tried in %.0f s\nmhagen gen %s %s -o DIR\n"):format(what, path, record.tried,
    record.seconds, record.shape, shell.word("tuned=" .. path))
end

local function run(args)
  local cfg, given = kernel.load_one(args.config, "tune")
  local why = build.obstacle(isas.list[cfg.isa])
  if why then error({ message = ("tune: isa = %s: can not be timed here: %s"):format(cfg.isa, why) }, 0) end
  kernel.files_of(cfg) -- refuses the config
  build.version_of { "ninja" }
  local folder, file = (args.output or "tuned/"):match("^(.-)([^/]*)$")
  if folder == "" then folder = "./" end
  local tuned = options.list.tuned -- what is written must be a value of this key
  if args.output and not options.accept(tuned, args.output) then
    error({ message = ("option '--output': '%s': %s"):format(errors.show(args.output), options.rule(tuned)) }, 0)
  end
  local function records(path) return takes.made(path, nil, tuning.MARK) and kernel.read_records(path) or {} end
  if file ~= "" then -- what is no tuning file is refused before the work
    takes.refuse_foreign(folder, { { name = file, mark = tuning.MARK } }, args.force)
    records(folder .. file)
  end
  if args.trace then
    local dir, trace = takes.split(args.trace)
    takes.refuse_foreign(dir, { { name = trace, mark = TRACE_MARK } }, args.force)
  end
  local work = folder .. ".tune"
  must(host.write_files(work, {}))
  -- The lock is inherited: programs that a killed tune has left running hold it.
  if not must(host.lock(work .. "/lock", false, true)) then
    error({ message = work .. ": a tune is running here" }, 0)
  end
  local base = base_of(cfg, given)
  local dir = ("%s/%s"):format(work, host.hash(table.concat(base, " ") .. args.search))
  local record, ratio, least = tune_in(dir, cfg, base, args)
  if file == "" then file = file_of(record.cpu) end
  local path = folder .. file
  local before = records(path)
  if record.tried > 0 or not tuning.schedules(before)[record.shape] then -- an older search may have tried some
    takes.write_files(folder, { { name = file, text = tuning.text(before, record) } }, args.force)
  end
  host.remove_dir(dir)
  if not args.quiet then must(host.print(outcome(record, path, ratio, least))) end
  return 0
end

local function options(cmd)
  takes.config(cmd)
  cmd:option("--budget", "time for the whole search, such as 60s, 5m or 1h", "60s"):argname("<TIME>"):convert(seconds)
  cmd:option("-o --output", "tuning file; its other shapes stay (default: tuned/<cpu>_<numbers>.lua)"):argname("<FILE>")
    :overwrite(false)
  cmd:option("--search", "how schedules are chosen; random is for comparison", "model")
    :choices { "model", "random" }
  cmd:option("--trace", "append each improvement to FILE; `report` reads DIR/tune.jsonl"):argname("<FILE>")
  takes.force(cmd)
  takes.timeout(cmd)
  takes.quiet(cmd)
end

return {
  name = "tune", run = run, options = options,
  summary = "Search the schedule for one shape on this machine.",
  about = "Example: mhagen tune h=12 d_model=384 dk=32 seq=128 isa=avx2 --budget 2m\n" ..
    "It times schedules in turn with the default, in the order of the cost model. A schedule wins if it is\n" ..
    "faster by more than 1 % in 4 of 5 paired runs. The same command continues a killed search.",
}
