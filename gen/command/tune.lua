-- `tune`: searches the schedule of one shape by measuring, and stores the fastest.

local host = require "host"
local bench = require "lab.bench"
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
local takes = require "command.takes"
local template = require "base.template"
local tune = require "lab.tune"
local tuning = require "lab.tuning"
local version = require "base.version"

local must = errors.must

local shared_files = build.joined(build.RUNTIME, build.BENCH, build.REFERENCE)
local MOST = 63 -- candidates of a generation: mhagen_compare_main takes the default and so many
local MOST_BYTES = 4 << 30 -- of the buffers of all of them
-- Parts of the budget: for the search and the winner's check, for one generation at most, for a paired run.
local SEARCH, GENERATION, PAIR = 0.8, 0.3, 0.015
-- A search ends with the budget, and all of it when that is over by this part, or so many seconds if these are more.
local SLACK, LEAST_SLACK = 0.25, 10

-- Prints a bug of mhagen, which the user is asked to report.
local function bug(candidate, what, ...)
  error({ status = 1, message = ("tune: a schedule failed, please report it as a bug: %s; mhagen check %s")
    :format(what:format(...):sub(1, 120), table.concat(candidate.arguments, " ")) }, 0)
end

-- Runs a command for at most so many seconds. Returns its output, or how it failed, and the output.
local function output_of(words, seconds)
  local status, output, why = build.run(words, seconds, true)
  must(status, output)
  if (status == 128 + 2 or status == 128 + 15) and not why:find("timed out", 1, true) then
    error({ message = "tune: interrupted; the same command goes on" }, 0)
  end
  if not why then return output end
  return nil, why, output
end

-- ---- the laboratory: builds and times in `dir`, and keeps what it has measured in log.jsonl ----

-- The rows of a log by their key, its lines, and the seconds that were spent; nothing, if it begins with
-- something else than `first`: another generator, compiler or shape.
local function read_log(path, first)
  local rows, lines, seconds = {}, { first }, 0
  local text = host.read_file(path) or ""
  if text:match("^[^\n]*") ~= first then return rows, lines, 0 end
  for line in text:gmatch("[^\n]+", #first + 2) do
    local row = json.decode(line)
    rows[row.key], seconds = row, row.seconds
    lines[#lines + 1] = line
  end
  return rows, lines, seconds
end

-- The text of a generation's build.ninja; paths: of the C files, and of the program.
local function ninja_file(paths, program, compiler)
  local objects, inputs = {}, {}
  for i, path in ipairs(paths) do
    local base = template.ninja_path(path:match("^(.*)%.c$"))
    objects[i] = ("build %s.o: compile %s.c\n"):format(base, base)
    inputs[i] = base .. ".o"
  end
  return template.file("tune.ninja.in", { version = version, cc = (compiler:gsub("%$", "$$")),
    program = template.ninja_path(program), dir = (program:match("^(.*)/"):gsub("%$", "$$")),
    objects = table.concat(objects), inputs = table.concat(inputs, " ") })
end

-- The program of a generation.
local function main_file(candidates)
  local includes, entries = {}, {}
  for i, candidate in ipairs(candidates) do
    local id = candidate.cfg.name
    includes[i] = ('#include "%s.h"\n'):format(id)
    entries[i] = ('      {"%s", &%s_kernel},\n'):format(id, id)
  end
  return template.file("tune.c.in", { includes = table.concat(includes), entries = table.concat(entries),
                                      flops = ("%.17g"):format(candidates[1].flops) })
end

local function new_lab(dir, args)
  local lab = { trace = {}, compiler = build.version_of(build.words_of(host.cc)),
                flags = table.concat(build.compiler(host.cc), " "),
                command = build.command_line(build.compiler(host.cc)) }
  local start, before = host.clock(), 0
  local log, lines, default, cost
  local generations = 0

  lab.hash = host.hash
  function lab.name(words) return "c_" .. host.hash(words) end
  function lab.seconds() return before + host.clock() - start end
  local last = args.budget + math.max(SLACK * args.budget, LEAST_SLACK)
  local ends = last -- seconds when what runs is ended: of a search the budget

  -- Seconds that a command may take, and whether that is less than `most`.
  function lab.allowed(most)
    local left = ends - lab.seconds()
    if left <= 0 then error({ out_of_time = true }, 0) end
    return math.min(left, most), left < most
  end
  function lab.tick() lab.allowed(1) end

  -- As output_of; raises an error where it is the budget that ended the command.
  local function output_in_time(words, most)
    local seconds, short = lab.allowed(most)
    local output, how, told = output_of(words, seconds)
    if not output and short and how:find("timed out", 1, true) then error({ out_of_time = true }, 0) end
    return output, how, told
  end

  function lab.say(...)
    if not args.quiet then must(host.print(("%6.1f s  %s\n"):format(lab.seconds(), string.format(...)))) end
  end

  local function note(row)
    row.seconds = lab.seconds()
    log[row.key] = row
    lines[#lines + 1] = json.encode(row)
    must(host.write_files(dir, { { name = "log.jsonl", text = table.concat(lines, "\n") .. "\n" } }))
  end

  local function compile(list)
    local all = list[1] == default and list or build.joined({ default }, list)
    generations = generations + 1
    local main = "generation" .. generations
    local files, paths = { { name = "mhagen_peak.c", text = bench.peak() } }, {}
    build.add_embedded(files, { name = "" }, "tune", shared_files)
    files[#files + 1] = { name = main .. ".c", text = main_file(all) }
    for _, candidate in ipairs(all) do table.move(candidate.files, 1, #candidate.files, #files + 1, files) end
    for _, file in ipairs(files) do
      if file.name:find("%.c$") then paths[#paths + 1] = dir .. "/" .. file.name end
    end
    local program = dir .. "/" .. main
    files[#files + 1] = { name = "build.ninja", text = ninja_file(paths, program, lab.command) }
    must(host.write_files(dir, files))
    local done, how, output = output_in_time({ "ninja", "-f", dir .. "/build.ninja", program },
                                             args.timeout * #paths) -- one core may have to make them all
    if not done then
      local why = ("%s: %s"):format(how, build.telling_line(output))
      if list[1] == default then error({ message = "tune: the default: " .. why }, 0) end
      local failed = list[1]
      for _, candidate in ipairs(list) do
        if output:find("FAILED: [^\n]*" .. candidate.cfg.name) then failed = candidate end
      end
      bug(failed, "%s", why)
    end
    for _, candidate in ipairs(list) do candidate.program = program end
  end

  -- A row of the log belongs to the code of a candidate.
  local function key_of(key, candidate) return key .. candidate.words .. " " .. candidate.code end

  -- For each candidate the row of the log with that key; where there is none, row_of(candidate, output)
  -- of their program, run once for all of these.
  local function measure(list, key, arguments, row_of)
    local missing, rows = {}, {}
    for _, candidate in ipairs(list) do
      if not log[key_of(key, candidate)] then missing[#missing + 1] = candidate end
    end
    if #missing > 0 then
      local words = build.joined({ list[1].program }, arguments)
      for _, candidate in ipairs(missing) do words[#words + 1] = candidate.cfg.name end
      local output, how, told = output_in_time(words, args.timeout + args.budget) -- it times for so long
      if not output then
        local why = told:match("message ([^\n]*)") or ""
        if why == "out of memory" then error({ message = "tune: out of memory" }, 0) end
        bug(missing[1], "the program %s: %s", how:match(" (.*)"), why)
      end
      for _, candidate in ipairs(missing) do
        local row = row_of(candidate, output)
        row.key = key_of(key, candidate)
        note(row)
      end
    end
    for i, candidate in ipairs(list) do rows[i] = log[key_of(key, candidate)] end
    return rows
  end

  -- Candidates are compared with the reference in double.
  local function check_all(list)
    return measure(list, "check ", {}, function(candidate, output)
      local verdict, error_, bound = output:match(("(%%l+) %s (%%S+) (%%S+)\n"):format(candidate.cfg.name))
      if verdict ~= "right" then bug(candidate, "the error is %s, more than %s", error_, bound) end
      local row = { error = tonumber(error_) }
      bench.add(row, output)
      return row
    end)
  end

  local function time(list, samples, number)
    local key = ("%d samples%s "):format(samples, number and " #" .. number or "")
    return measure(list, key, { "--samples", tostring(samples) }, function(candidate, output)
      local us, ratio = output:match(("time %s (%%S+) (%%S+)\n"):format(candidate.cfg.name))
      return { us = tonumber(us), ratio = tonumber(ratio) }
    end)
  end

  -- A sample is half a millisecond or a run, and a run before. Half of what was built is common to all.
  local function begin(list)
    default = list[1]
    local depends = { lab.compiler, lab.flags, default.code, host.read_file("/proc/cpuinfo") or "" }
    depends[4] = depends[4]:match("model name[^\n]*") or ""
    for _, name in ipairs(shared_files) do depends[#depends + 1] = host.embedded(name) end
    local first = json.encode { made_of = host.hash(table.concat(depends, "\0")) }
    log, lines, before = read_log(dir .. "/log.jsonl", first)
    if #lines > 1 then lab.say("goes on: %d figures are there", #lines - 1) end
    local at = lab.seconds()
    compile(list)
    local built = lab.seconds()
    lab.machine = check_all(list)[1]
    local checked = lab.seconds()
    default.us = time(list, tune.SAMPLES)[1].us
    local once = default.us * 1e-6
    if not log.cost then
      note { key = "cost", build = (built - at) / 4, check = checked - built, winner = checked - at,
             sample = math.max(5e-4, once) + once }
    end
    cost = log.cost
    lab.say("the default takes %.6g us", default.us)
  end

  function lab.build(list)
    if not default then
      begin(list)
      ends = args.budget
      return
    end
    local at = lab.seconds()
    compile(list)
    local built = lab.seconds()
    local known = log[key_of("check ", list[1])]
    check_all(list)
    if not known then
      note { key = "cost", build = (built - at) / #list, check = cost.check, winner = cost.winner,
             sample = cost.sample }
      cost = log.cost
    end
  end

  function lab.time(list, samples)
    local ratios = {}
    for i, row in ipairs(time(list, samples)) do
      ratios[i] = row.ratio
      if samples > tune.SAMPLES then lab.trace[#lab.trace + 1] = row end
    end
    return ratios
  end

  -- All paired runs of the finalists together may take what the search leaves of the budget.
  function lab.pair(candidate, number)
    ends = last
    local samples = args.budget * PAIR / (2 * cost.sample) // 1 | 0
    local row = time({ candidate }, math.max(5, math.min(samples, 1000)), number)[1]
    lab.trace[#lab.trace + 1] = row
    return row.ratio
  end

  -- Seconds that a generation of `count` will take: each halving takes as long as the first measurement.
  local function predicted(count)
    return cost.check + count * (cost.build + math.log(count, 2) * tune.SAMPLES * cost.sample)
  end

  -- As in the log, for the same generations: a search that goes on is the same one. The check of the winner
  -- takes about as long as building and checking the default, and needs its time as well.
  function lab.room(n)
    local key = ("room %d"):format(n)
    if log[key] then return log[key].count end
    local most, spent = math.min(MOST, MOST_BYTES // default.bytes), lab.seconds() + cost.winner
    local left = SEARCH * args.budget - spent
    local count = predicted(2) > left and 0 or 2
    if n == 1 and count == 0 then lab.least = (spent + predicted(2)) / SEARCH end
    while 0 < count and count < most and predicted(count + 1) < math.min(left, GENERATION * args.budget) do
      count = count + 1
    end
    note { key = key, count = count }
    return count
  end

  function lab.error_of(candidate) return log[key_of("check ", candidate)].error end
  return lab
end

-- ---- the command ----

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
  if why and not (short and why:find("timed out", 1, true)) then bug(winner, "%s", why) end
  lab.say("the time is over before the check of %s", winner.words)
  return false
end

-- Tunes in `dir`; returns the record for the tuning file, the winner's ratio to the default or nil, and the least
-- budget with which another schedule would be tried, where that is known.
local function tune_in(dir, cfg, base, args)
  local lab = new_lab(dir, args)
  local default, winner, ratios, tried = tune.search(base, args.search, lab)
  if not default.us then
    error({ message = ("tune: --budget %gs is over before the default is built and timed: take more"):format(
      args.budget) }, 0)
  end
  if winner and not passes(winner, lab, args) then winner, ratios = nil, {} end
  local best = winner or default
  if args.trace then append(args.trace, trace_rows(lab, cfg, args.search, default), args.force) end
  local words, machine = {}, lab.machine
  for i, ratio in ipairs(ratios) do words[i] = ("%.4f"):format(ratio) end
  return {
    shape = config.shape(cfg), schedule = table.concat(schedule_words(best.arguments), " "),
    us = winner and default.us * median(ratios) or default.us, default_us = default.us,
    ratios = table.concat(words, " "), error = lab.error_of(best), tried = tried, seconds = lab.seconds(),
    compiler = lab.compiler, flags = lab.flags, cpu = machine.cpu, cores = machine.cores,
    system = machine.system, version = version,
  }, winner and median(ratios), lab.least
end

-- What a search has found, and how it is used.
local function outcome(record, path, ratio, least)
  if record.tried == 0 then
    return ("nothing was tried, the default is kept: there is no time to try another; the least is --budget %ds\n")
      :format(math.ceil(least or 2 * record.seconds))
  end
  local what = ratio and ("%s: %.3f of the default's time"):format(record.schedule, ratio)
    or "the default is kept: nothing was faster by more than 1 % in 4 of 5 paired runs"
  return ("%s\n%s: %d schedules tried in %.0f s\nmhagen gen %s %s -o DIR\n"):format(what, path, record.tried,
    record.seconds, record.shape, build.quoted("tuned=" .. path))
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
