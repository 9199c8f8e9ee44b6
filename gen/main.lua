-- The commands. This file alone talks to the host: it reads configs, writes results and runs
-- compilers; all other modules are functions from values to values.

local argparse = require "argparse"
local bench = require "bench"
local host = require "host"
local config = require "config"
local explain = require "explain"
local generate = require "generate"
local isas = require "isa.init"
local json = require "dkjson"
local measured = require "measured"
local report = require "report"
local sweep = require "sweep"
local template = require "template"
local version = require "version"

-- How code for another architecture is compiled and run (Debian's cross compilers and emulators).
local foreign = {
  aarch64 = { cc = "aarch64-linux-gnu-gcc",
              run = { "qemu-aarch64", "-L", "/usr/aarch64-linux-gnu" } },
  x86_64 = { cc = "x86_64-linux-gnu-gcc",
             run = { "qemu-x86_64", "-cpu", "max", "-L", "/usr/x86_64-linux-gnu" } },
}

-- ---- errors ----
-- Raised as tables: { key, value, rule } for a config, { message } for anything else of the user's
-- making, { status } to end. A text is a mistake in the generator, and gets its traceback.

local function must(result, message)
  if result == nil then error({ message = message }, 0) end
  return result
end

local function on_error(e)
  return type(e) == "table" and e or { internal = "internal error: " .. host.traceback(e) }
end

-- A value for a message: short, printable.
local function show(value)
  if math.type(value) == "float" then
    if value ~= value then return "nan" end -- which some machines print as -nan
    return tostring(value)
  end
  local text = tostring(value):gsub("[^\32-\126]", "?")
  return #text <= 64 and text or text:sub(1, 61) .. "..."
end

local function one_line(e)
  local text = e.message
  if e.rule then
    local value = e.value ~= nil and " = " .. show(e.value) or ""
    text = ("config: %s%s: %s"):format(show(e.key), value, e.rule)
  end
  text = text:gsub("%c", "?")
  return #text <= 400 and text or text:sub(1, 200) .. "..." .. text:sub(-197)
end

-- ---- commands ----

-- CONFIG.lua and key=value arguments -> cfg
local function load_config(arguments)
  local file
  local assignments = {}
  for _, argument in ipairs(arguments) do
    if argument:find("=", 1, true) then
      assignments[#assignments + 1] = argument
    elseif file then
      error({ message = ("config: %s: %s is the config file already"):format(show(argument),
                                                                             show(file)) }, 0)
    else
      file = argument
    end
  end
  local entries, message
  if file then
    entries, message = host.eval_config(file)
    must(entries, message and "config: " .. message)
  end
  return config.load(entries, assignments)
end

-- The files of a kernel, with the runtime; and what was recorded for them.
local function files_of(cfg)
  local files, recorded = generate(cfg)
  for _, name in ipairs { "mhagen.h", "mhagen.c" } do
    files[#files + 1] = { name = name, text = host.embedded("runtime/" .. name) }
  end
  return files, recorded
end

local commands = {}

function commands.gen(args)
  must(host.write_files(args.output, (files_of(load_config(args.config)))))
  return 0
end

function commands.explain(args)
  must(host.print(explain(load_config(args.config))))
  return 0
end

-- Why this machine can not run an ISA's code itself, or nil.
local function obstacle(isa)
  if isa.arch and isa.arch ~= host.arch then return "it is code for " .. isa.arch end
  if not host.cpu_has(isa.cpu) then return "this CPU does not have it" end
end

local function words_of(text)
  local words = {}
  for word in text:gmatch("%S+") do words[#words + 1] = word end
  return words
end

local function joined(...)
  local all = {}
  for _, list in ipairs { ... } do table.move(list, 1, #list, #all + 1, all) end
  return all
end

-- The words that compile, for $CC or a cross compiler: -O2, unless they say another level.
local function compiler(cc)
  return joined(words_of(cc), { "-std=c11" }, cc:find("%f[%S]%-O") and {} or { "-O2" })
end

-- Adds the embedded files of a command to those of a kernel.
local function add_embedded(files, cfg, command, names)
  for _, name in ipairs(names) do
    local base = name:match("[^/]+$")
    if base:match("%w+") == cfg.name then
      error({ key = "name", value = cfg.name,
              rule = ("must not be the name of a file of the %s"):format(command) }, 0)
    end
    files[#files + 1] = { name = base, text = host.embedded(name) }
  end
end

-- The paths of the C files that `wanted` accepts.
local function sources(dir, files, wanted)
  local paths = {}
  for _, file in ipairs(files) do
    if file.name:match("%.c$") and wanted(file.name) then
      paths[#paths + 1] = dir .. "/" .. file.name
    end
  end
  return paths
end

-- work(dir, ...); without a directory in a new one, which is removed afterwards.
local function in_dir(dir, work, ...)
  local new = not dir and must(host.temp_dir())
  local results = table.pack(xpcall(work, on_error, dir or new, ...))
  if new then host.remove_dir(new) end
  if not results[1] then error(results[2], 0) end
  return table.unpack(results, 2, results.n)
end

-- Compiles and runs the check in `dir`: true, false and what failed, or nil and why it is skipped.
local function check_in(dir, cfg)
  local files = files_of(cfg)
  local isa = isas.list[cfg.isa]
  local emulated = isa.arch ~= host.arch and foreign[isa.arch]
  if obstacle(isa) and not emulated then return nil, obstacle(isa) end

  files[#files + 1] = { name = "mhagen_check.c",
                        text = template.file("check.c.in", { name = cfg.name }) }
  add_embedded(files, cfg, "check", { "tests/checker.c", "tests/checker.h", "tests/reference.c",
                                      "tests/reference.h" })
  must(host.write_files(dir, files))

  local program = dir .. "/mhagen_check"
  local compile = joined(compiler(emulated and emulated.cc or host.cc), { "-o", program },
                         sources(dir, files, function() return true end), { "-lm", "-pthread" })
  local run = joined(emulated and emulated.run or {}, { program })
  for _, command in ipairs { compile, run } do
    local status, message = host.run(command)
    if emulated and not status then return nil, message end
    if must(status, message) ~= 0 then
      return false, ("check of %s: %s ended with status %d"):format(cfg.name, command[1], status)
    end
  end
  return true
end

function commands.check(args)
  local cfg = load_config(args.config)
  local passed, why = in_dir(nil, check_in, cfg)
  if passed == nil then must(host.print(("%s: skipped: %s\n"):format(cfg.name, why))) end
  if passed == false then return 1, why end
  return 0
end

local OUTPUT_BYTES = 1 << 20 -- the most that is read of a program

-- Runs a command that is a step of a benchmark and returns its output. If it fails, the row says
-- so, and is raised.
local function step(row, name, command)
  local status, output = host.run(command, OUTPUT_BYTES)
  if must(status, output) == 0 then return output end
  row.status, row.message = name, ("%s ended with status %d"):format(command[1], status)
  bench.add(row, output)
  error({ failed = row }, 0)
end

local function seconds_since(start) return math.floor((host.clock() - start) * 1e3 + 0.5) / 1e3 end

-- Compiles the files of a benchmark; returns the path of its program.
local function build_bench(dir, cfg, files, row)
  local cc, program = compiler(host.cc), dir .. "/mhagen_bench"
  local kernel, object = cfg.name .. ".c", dir .. "/" .. cfg.name .. ".o"
  row.flags = table.concat(cc, " ")
  local start = host.clock()
  step(row, "compile", joined(cc, { "-c", "-o", object, dir .. "/" .. kernel }))
  row.compile_seconds = seconds_since(start)
  local others = sources(dir, files, function(name) return name ~= kernel end)
  step(row, "compile", joined(cc, { "-o", program, object }, others, { "-lm", "-pthread" }))
  row.compiler = step(row, "compile", joined(words_of(host.cc), { "--version" })):match("^[^\n]*")
  row.text_bytes = bench.text_bytes(step(row, "compile", { "size", object }))
  return program
end

-- Generates, compiles and times in `dir`: a row of results.
local function bench_in(dir, cfg, args)
  local start = host.clock()
  local files, recorded = files_of(cfg)
  local row = bench.row(cfg, recorded)
  row.generate_seconds = seconds_since(start)
  local why = obstacle(isas.list[cfg.isa]) -- under an emulator times mean nothing
  if why then
    row.status, row.message = "skipped", why
    return row
  end

  files[#files + 1] = { name = "mhagen_bench.c", text = bench.main(recorded) }
  files[#files + 1] = { name = "mhagen_peak.c", text = bench.peak() }
  add_embedded(files, cfg, "bench", { "bench/bench.c", "bench/bench.h", "tests/reference.c",
                                      "tests/reference.h" })
  must(host.write_files(dir, files))
  local run = { build_bench(dir, cfg, files, row) }
  for _, option in ipairs { "threads", "samples" } do
    if args[option] then run = joined(run, { "--" .. option, args[option] }) end
  end
  if not args.phases or cfg.unroll == "full" then
    bench.add(row, step(row, "time", run))
    if args.phases then row.phases = {} end
  else
    local output = step(row, "time", joined(run, { "--phases" }))
    bench.add(row, output)
    row.phases = bench.phases(output, step(row, "time", { "nm", "-n", run[1] }))
  end
  return row
end

function commands.bench(args)
  local cfg = load_config(args.config)
  local ok, row = pcall(in_dir, args.output, bench_in, cfg, args)
  if not ok then row = row.failed or error(row, 0) end
  if args.json then must(host.print(bench.json(row))) end
  if not ok then return 1, ("bench of %s: %s: %s"):format(cfg.name, row.status, row.message) end
  if not args.json then must(host.print(bench.text(row))) end
  return 0
end

function commands.isas()
  local lines = { ("%-8s %5s %9s  %-8s  %s"):format("isa", "lanes", "registers", "this CPU",
                                                     "what it is") }
  for _, isa in ipairs(isas.list) do
    local why = obstacle(isa)
    local how = isa.title
    if why and isa.arch ~= host.arch and foreign[isa.arch] then
      how = how .. "; check runs it with " .. table.concat(foreign[isa.arch].run, " ")
    end
    lines[#lines + 1] = ("%-8s %5d %9d  %-8s  %s"):format(isa.name, isa.lanes, isa.registers,
                                                          why and "no" or "yes", how)
  end
  must(host.print(table.concat(lines, "\n") .. "\n"))
  return 0
end

-- ---- sweep ----

-- What the programs for one architecture share: the runtime, the check, the benchmark.
local shared_files = { "runtime/mhagen.c", "runtime/mhagen.h", "bench/bench.c", "bench/bench.h",
                       "tests/checker.c", "tests/checker.h", "tests/reference.c", "tests/reference.h" }

local function arch_of(cfg) return isas.list[cfg.isa].arch or host.arch end

-- A word for the shell: in quotes where it needs them.
local function quoted(word)
  return word:find("^[%w_@%%+=:,./-]+$") and word or "'" .. word:gsub("'", "'\\''") .. "'"
end

local function command_line(words)
  local all = {}
  for i, word in ipairs(words) do all[i] = quoted(word) end
  return table.concat(all, " ")
end

-- Puts a text in the place of each {name} of a launcher or a stage.
local function put(text, values)
  return (text:gsub("{(%w*)}", values))
end

-- The line that says most about a failure.
local function telling_line(output)
  local last = ""
  for line in output:gmatch("[^\n]+") do
    if line:find("error:", 1, true) or line:find("^FAIL ") then return line end
    last = line
  end
  return last
end

-- Runs a command of a step, through the launcher if there is one; returns its output. If it fails,
-- the row says so, and is raised.
local function shell_step(row, name, words, launcher)
  local text = command_line(words)
  if launcher then text = put(launcher, { [""] = text }) end
  local status, output = host.run({ "/bin/sh", "-c", "exec 2>&1; " .. text }, OUTPUT_BYTES)
  if must(status, output) == 0 then return output end
  local line = telling_line(output):gsub("[^\32-\126]", "?"):sub(1, 300)
  if output:find("No space left on device", 1, true) then error({ message = line }, 0) end -- no result
  row.status = name
  row.message = ("%s ended with status %d: %s"):format(words[1], status, line)
  if name == "time" then bench.add(row, output) end
  error({ failed = row }, 0)
end

local function skip(row, why)
  row.status, row.message = "skipped", why
  error({ failed = row }, 0)
end

-- How programs for an architecture are compiled.
local function compiler_for(arch, settings)
  return compiler(arch == host.arch and settings.cc or foreign[arch].cc)
end

-- Compiles what programs for one architecture share. The file that it leaves says what it is made
-- of, or why it can not be made, which only another architecture's may not.
local function build_common(arch, settings)
  local dir, files = "common/" .. arch, { { name = "mhagen_peak.c", text = bench.peak() } }
  add_embedded(files, { name = "" }, "sweep", shared_files)
  local cc, texts = compiler_for(arch, settings), { settings.compiler }
  for _, file in ipairs(files) do texts[#texts + 1] = file.text end
  local key = host.hash(table.concat(texts, "\0") .. table.concat(cc, " "))
  if host.read_file(dir .. "/built") == key then return end
  must(host.remove_file(dir .. "/built"))
  must(host.write_files(dir, files))
  for _, path in ipairs(sources(dir, files, function() return true end)) do
    local status, why = host.run(joined(cc, { "-c", "-o", path:gsub("c$", "o"), path }))
    if not status and arch ~= host.arch then
      key = "skip " .. why
      break
    end
    if must(status, why) ~= 0 then
      error({ message = ("%s: %s ended with status %d"):format(path, cc[1], status) }, 0)
    end
  end
  must(host.write_files(dir, { { name = "built", text = key } }))
end

-- What each step after the first adds to the row. at: { id, dir, cfg, settings, arch }.
local steps = {}

function steps.compile(at, row)
  local cc, dir, name, settings = compiler_for(at.arch, at.settings), at.dir, at.cfg.name, at.settings
  local common = "common/" .. at.arch
  local why = must(host.read_file(common .. "/built")):match("^skip (.*)")
  if why then skip(row, why) end
  local launcher = settings.launch_compile and settings.launcher
  local object, program = dir .. "/" .. name .. ".o", dir .. "/program"
  row.compiler, row.flags = settings.compiler, table.concat(cc, " ")
  if at.arch ~= host.arch then
    row.compiler = shell_step(row, "compile", { cc[1], "--version" }):match("^[^\n]*")
  end
  local start = host.clock()
  local function compile(...)
    shell_step(row, "compile", joined(cc, { "-I" .. common }, ...), launcher)
  end
  compile { "-c", "-o", object, ("%s/%s.c"):format(dir, name) }
  row.compile_seconds = seconds_since(start)
  local objects = { common .. "/mhagen_peak.o" }
  for _, path in ipairs(shared_files) do
    local base = path:match("([^/]+)%.c$")
    if base then objects[#objects + 1] = ("%s/%s.o"):format(common, base) end
  end
  compile({ "-o", program, dir .. "/mhagen_main.c", object }, objects, { "-lm", "-pthread" })
  row.text_bytes = bench.text_bytes(shell_step(row, "compile", { "size", object }))
end

-- Runs the program of a config where the settings say.
local function run_program(at, row, step, arguments)
  local program, settings = { at.dir .. "/program" }, at.settings
  if settings.stage then
    local places = { src = quoted(program[1]), dst = quoted(at.id) }
    shell_step(row, step, { "/bin/sh", "-c", put(settings.stage, places) })
    program = { "./" .. at.id }
  end
  if not settings.launcher then
    local isa = isas.list[at.cfg.isa]
    if at.arch == host.arch then
      if obstacle(isa) then skip(row, obstacle(isa)) end
    else
      local emulator = foreign[at.arch].run
      local status, why = host.run({ emulator[1], "--version" }, OUTPUT_BYTES)
      if not status then skip(row, why) end
      program = joined(emulator, program)
    end
  end
  return shell_step(row, step, joined(program, arguments), settings.launcher)
end

function steps.check(at, row) run_program(at, row, "check", { "check", "--terse" }) end

local MOST_TIMES = 4 -- that a disturbed measurement is made

function steps.time(at, row)
  local settings = at.settings
  if settings.launcher and settings.launcher:find("qemu", 1, true)
    or not settings.launcher and at.arch ~= host.arch then
    skip(row, "checked by an emulator, under which times mean nothing")
  end
  local arguments = {}
  for _, option in ipairs { "threads", "samples" } do
    if settings[option] then arguments = joined(arguments, { "--" .. option, settings[option] }) end
  end
  for _ = 1, MOST_TIMES do
    bench.add(row, run_program(at, row, "time", arguments))
    if row.status ~= "ok" then
      row.status, row.message = "time", "the program has not said ok"
    end
    if not row.disturbed then break end
  end
end

-- The settings that a step depends on: with others it is made again.
local depends = {
  compile = { "cc", "compiler", "launch_compile" }, check = { "launcher", "stage" },
  time = { "threads", "samples" },
}

-- The first step of a config: the hash of its texts, the row, the files.
local function generate_in(at)
  local start, cfg = host.clock(), at.cfg
  local ok, files, recorded = pcall(function()
    add_embedded({}, cfg, "sweep", shared_files) -- refuses their names
    return generate(cfg)
  end)
  local row
  if ok then
    row = bench.row(cfg, recorded)
    files[#files + 1] = { name = "mhagen_main.c", text = sweep.main(recorded) }
  elseif type(files) == "table" and files.rule then
    row = sweep.refused(cfg, one_line(files))
    files = {}
  else
    error(files, 0)
  end
  row.generate_seconds = seconds_since(start)
  local texts = { row.message }
  for _, file in ipairs(files) do texts[#texts + 1] = file.text end
  return host.hash(table.concat(texts, "\0")), row, files
end

-- Makes DIR/configs/ID/STEP.row, unless it is made of the same: then nothing is touched, so that
-- Ninja goes no further. What is there of another make is removed first: a kill leaves no mixture.
local function make_row(path)
  local dir, id, step = path:match("^(configs/([^/]+))/(%l+)%.row$")
  local settings = json.decode(must(host.read_file("settings.json")))
  local cfg = config.load(must(host.eval_config(dir .. "/config.lua")), {})
  local at = { id = id, dir = dir, cfg = cfg, settings = settings, arch = arch_of(cfg) }
  local key, row, files
  if step == "generate" then
    key, row, files = generate_in(at)
  else
    local parts = {}
    parts[1], row = sweep.read_row(must(host.read_file(("%s/%s.row"):format(dir, sweep.before(step)))))
    for _, setting in ipairs(depends[step]) do parts[#parts + 1] = tostring(settings[setting]) end
    if step == "compile" then
      parts[#parts + 1] = must(host.read_file(("common/%s/built"):format(at.arch)))
    end
    key, files = host.hash(table.concat(parts, "\0")), {}
  end
  if (host.read_file(path) or ""):match("^%x+") == key then return end
  must(host.remove_file(path))
  if steps[step] and not row.status then
    local ok, failed = pcall(steps[step], at, row)
    if not ok and not (type(failed) == "table" and failed.failed) then error(failed, 0) end
  end
  files[#files + 1] = { name = step .. ".row", text = sweep.row_file(key, row) }
  must(host.write_files(dir, files))
end

-- Not for people: what the edges of a sweep's build.ninja call, in its directory.
commands["sweep-step"] = function(args)
  if not must(host.locked(".sweep")) then
    error({ message = "sweep-step: no sweep is running here; `mhagen sweep` starts the steps" }, 0)
  end
  local arch = args.file:match("^common/(.*)/built$")
  if arch then
    build_common(arch, json.decode(must(host.read_file("settings.json"))))
  else
    make_row(args.file)
  end
  return 0
end

-- The first line of a program's --version; an error where it can not be started.
local function version_of(words)
  local status, output = host.run(joined(words, { "--version" }), OUTPUT_BYTES)
  if must(status, output) ~= 0 then
    error({ message = ("%s --version ended with status %d"):format(words[1], status) }, 0)
  end
  return output:match("^[^\n]*")
end

-- One sweep at a time. Two locks: `.sweep` is that of the process that runs Ninja, without which
-- steps do not start; `.steps` passes to Ninja and all that it starts, and outlives a kill.
local function lock_sweep(dir, quiet)
  must(host.write_files(dir, {}))
  if not must(host.lock(dir .. "/.steps", false, true)) then
    if must(host.locked(dir .. "/.sweep")) then
      error({ message = dir .. ": a sweep is running in it" }, 0)
    end
    if not quiet then must(host.print("waiting for what an earlier sweep has left running\n")) end
    must(host.lock(dir .. "/.steps", false, true, true))
  end
  must(host.lock(dir .. "/.sweep", false, false, true))
end

-- Refuses a directory that holds something else than a part of this sweep.
local function refuse_others(dir, configs, settings, force)
  local list = host.read_file(dir .. "/configs.txt")
  local why
  if list then
    why = sweep.missing(list, configs)
      or sweep.changed(json.decode(host.read_file(dir .. "/settings.json") or "{}"), settings)
  elseif host.read_file(dir .. "/build.ninja") then
    why = "its build.ninja is not that of a sweep"
  end
  if why and not force then
    error({ message = ("%s: holds another sweep: %s; --force replaces it"):format(show(dir), why) }, 0)
  end
end

local function reason(one) return one.command .. ": " .. one_line(one.broken) end

local function write_plan(dir, configs, invalid, settings)
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
    { name = "build.ninja", text = sweep.ninja(configs, host.program, arch_of) },
  }))
end

-- Runs Ninja on a target; nil and why if it could not do all.
local function run_ninja(dir, target, args, ninja)
  local command = { "env", "NINJA_STATUS=[%f/%t, %es" .. (ninja.eta and ", %Es left] " or "] "),
                    "ninja", "-C", dir, target }
  if args.jobs then command = joined(command, { "-j", args.jobs }) end
  local status, output = host.run(command, args.quiet and OUTPUT_BYTES or nil)
  if must(status, output) == 0 then return true end
  return nil, ("%s: ninja ended with status %d%s"):format(dir, status,
    output and ": " .. (output:match("mhagen: ([^\n]*)") or telling_line(output)) or "")
end

-- The rows that there are, in the order of the configs.
local function rows_of(dir, configs)
  local rows = {}
  for _, one in ipairs(configs) do
    local text = host.read_file(("%s/configs/%s/time.row"):format(dir, one.id))
    local _, row = sweep.read_row(text or "")
    if row then
      row.id = one.id
      rows[#rows + 1] = row
    end
  end
  return rows
end

-- Removes what failing steps have left, so that they run again; returns the other rows.
local function forget_failures(dir, rows)
  local kept = {}
  for _, row in ipairs(rows) do
    if row.status == "ok" or row.status == "skipped" then
      kept[#kept + 1] = row
    else
      for _, step in ipairs(sweep.steps) do
        if step.name ~= "generate" then -- always says the same
          must(host.remove_file(("%s/configs/%s/%s.row"):format(dir, row.id, step.name)))
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

function commands.sweep(args)
  local start = host.clock()
  local function say(...)
    if not args.quiet then must(host.print(string.format(...) .. "\n")) end
  end
  local lists, message = host.eval_grid(args.grid, sweep.axes, tonumber(args.limit))
  local configs, invalid = sweep.expand(must(lists, message and "sweep: " .. message))
  for i = 1, math.min(#invalid, 5) do say("invalid: %s", reason(invalid[i])) end
  if #invalid > 5 then say("and %d more, in %s/invalid.txt", #invalid - 5, args.output) end
  if #configs == 0 then
    error({ message = ("sweep: all %d configs are invalid; %s"):format(#invalid, reason(invalid[1])) }, 0)
  end
  local settings = {
    cc = host.cc, compiler = version_of(words_of(host.cc)), launcher = args.launcher,
    launch_compile = args.launch == "compile" or nil, stage = args.stage, threads = args.threads,
    samples = args.samples,
  }
  refuse_others(args.output, configs, settings, args.force)
  if args.dry_run then
    say("%d configs, %d invalid; nothing is written", #configs, #invalid)
    return 0
  end
  local major, minor = version_of({ "ninja" }):match("^(%d+)%.(%d+)")
  local ninja = { eta = major and tonumber(major) * 1000 + tonumber(minor) >= 1012 }

  lock_sweep(args.output, args.quiet)
  write_plan(args.output, configs, invalid, settings)
  local rows = rows_of(args.output, configs)
  if args.retry then rows = forget_failures(args.output, rows) end
  say("%d configs, %d invalid, planned in %.1f s; %d have results", #configs, #invalid,
      host.clock() - start, #rows)
  if args.plan_only then return 0 end

  local done, why = run_ninja(args.output, "checked", args, ninja)
  local each = sweep.average(host.read_file(args.output .. "/.ninja/.ninja_log") or "", "time")
  if done and each then
    say("%d to time, about %s", #configs - #rows, duration(each * (#configs - #rows)))
  end
  if done then done, why = run_ninja(args.output, "timed", args, ninja) end

  rows = rows_of(args.output, configs)
  local counts = sweep.count(rows)
  must(host.write_files(args.output, { { name = "results.jsonl", text = sweep.jsonl(rows) },
                                       { name = "results.csv", text = sweep.csv(rows) } }))
  local failed = #counts.by_step > 0 and " (" .. table.concat(counts.by_step, ", ") .. ")" or ""
  say("%d of %d configs: %d ok, %d failed%s, %d skipped, %d invalid; %d disturbed; %s; %s/results.jsonl",
      #rows, #configs, counts.ok, counts.failed, failed, counts.skipped, #invalid, counts.disturbed,
      duration(host.clock() - start), args.output)
  if not done then return 2, why end
  return counts.failed > 0 and 1 or 0
end

-- ---- report ----

-- The results of a sweep in a directory.
local function load_sweep(dir, filters)
  local path = dir .. "/results.jsonl"
  local sweep = measured.read(must(host.read_file(path)), path)
  measured.filter(sweep, filters)
  local tuning = dir .. "/tune.jsonl"
  if host.exists(tuning) then
    measured.read_tuning(sweep, must(host.read_file(tuning)), tuning)
  end
  return sweep
end

function commands.report(args)
  if args.fail_on and not args.compare then
    error({ message = "report: --fail-on needs --compare" }, 0)
  end
  local sweep = load_sweep(args.dir, args.filter)
  if args.compare then
    measured.compare(sweep, load_sweep(args.compare, args.filter), tonumber(args.band))
  end
  local options = { sort = args.sort, reverse = args.reverse, limit = tonumber(args.limit) }
  local text = report.text(sweep, options)
  local path = args.output or args.dir .. "/report.html"
  local dir, name = path:match("^(.-)([^/]*)$")
  must(name ~= "" or nil, "output file: its name is empty")
  must(host.write_files(dir == "" and "." or dir, { { name = name, text = report.page(sweep) } }))
  must(host.print(("%s\nPage: %s\n"):format(text, path)))
  local regression = args.fail_on and measured.regression(sweep)
  if regression then return 1, regression end
  return 0
end

-- ---- the command line ----

-- Converts the value of an option that is a number; `what` says which ones the pattern matches.
local function number_of(option, pattern, what)
  return function(text)
    if text:match(pattern) then return text end
    return nil, ("option '%s': '%s' is not %s"):format(option, show(text), what)
  end
end

local function count(option)
  return number_of(option, "^[1-9]%d?%d?%d?%d?%d?$", "a number from 1 to 999999")
end

local function build_parser()
  local parser = argparse("mhagen", "Writes specialized C for multi-head attention.")
  parser:command_target("command")
  parser:flag("--version"):description("Print the version and exit."):action(function()
    must(host.print("mhagen " .. version .. "\n"))
    error({ status = 0 }, 0)
  end)
  parser.error = function(_, message)
    local told, tip = message:match("^(.*)\nDid you(.*)$")
    error({ message = told and told .. ", did you" .. tip or message .. "; see --help" }, 0)
  end

  local function command(name, summary, description)
    return parser:command(name):summary(summary):description(summary .. "\n" .. description)
  end
  local function takes_config(cmd)
    cmd:argument("config", "CONFIG.lua (at most one) and key=value, which win over the file")
      :args("*"):argname("<CONFIG.lua or key=value>")
    cmd:epilog(config.help() .. "\n\n" .. [[
A CONFIG.lua is one table: return { h = 12, d_model = 384, dk = 32, seq = 128, isa = "avx2" }
Exit status: 0 done, 1 a check failed, 2 the command line or the config is wrong.]])
    return cmd
  end

  local function takes_bench_options(cmd)
    local function number(option, text)
      cmd:option("--" .. option, text):argname("<N>"):convert(count("--" .. option))
    end
    cmd:flag("--json", "print one JSON object")
    cmd:flag("--phases", "also say how the time divides between the phases, on one thread")
    number("threads", "threads, on as many cores (default: 1)")
    number("samples", "timed samples (default: what a second allows, 5 to 400)")
    cmd:option("-o --output", "keep the program and its sources here"):argname("<DIR>")
  end

  local function takes_sweep_options(cmd)
    local function number(option, text, default)
      return cmd:option(option, text, default):argname("<N>"):convert(count(option:match("%S+$")))
    end
    cmd:argument("grid", "the axes: return { h = { 1, 2 }, d_model = 64, isa = \"avx2\", ... }")
      :argname("<GRID.lua>")
    cmd:option("-o --output", "directory; the results of an earlier run in it are kept")
      :argname("<DIR>"):count(1):overwrite(false)
    cmd:flag("--dry-run", "check the grid; write nothing")
    cmd:flag("--plan-only", "write DIR/build.ninja; run nothing")
    cmd:flag("--force", "replace another sweep in DIR")
    cmd:flag("--retry", "run again what has failed; it may have been the machine")
    cmd:flag("--quiet", "say nothing but errors")
    number("--limit", "the most configs of a grid", "10000")
    number("--jobs", "steps at a time, but for timing (default: Ninja's)")
    number("--threads", "threads of the kernels (default: 1)")
    number("--samples", "timed samples (default: what a second allows, 5 to 400)")
    cmd:option("--launcher", "shell command that runs a program, which takes the place of {}, " ..
      "as 'taskset -c 1 {}', 'ssh board {}'"):argname("<CMD>")
      :convert(function(text)
        if text:find("{}", 1, true) then return text end
        return nil, ("option '--launcher': '%s' has no {}"):format(show(text))
      end)
    cmd:option("--launch", "use the launcher also for these"):choices { "compile" }
    cmd:option("--stage", "shell command before that, as 'scp {src} board:{dst}'"):argname("<CMD>")
    cmd:epilog([[
A GRID.lua is one table. Each config key may be an axis: a list of values, or one. `configs`: a list
of tables, an axis of several keys. `where`: a function of a config, or a list of patterns such as
{ isa = "avx2", seq = { 16, 32 } } of which one must match.
Exit status: 0 done, 1 a config failed, 2 the grid is wrong or the sweep could not go on.]])
  end

  takes_config(command("gen", "Write the kernel: NAME.h, NAME.c, and the runtime beside them.",
                       "Example: mhagen gen h=12 d_model=384 dk=32 seq=128 isa=avx2 -o out"))
    :option("-o --output", "directory; made if it is missing"):argname("<DIR>")
    :count(1):overwrite(false)
  takes_config(command("explain", "Print the plan: phases, tiles, buffers, cost, and why.",
                       "Writes nothing."))
  takes_config(command("check", "Generate, compile, run against the reference in double.",
                       "Uses $CC (default cc); another architecture's code runs under QEMU.\n" ..
                       "What can not run here is skipped: it says so, and exits with status 0."))
  takes_bench_options(takes_config(command("bench",
    "Generate, compile, time: us, GFLOP/s, fraction of the FMA peak.",
    "On one pinned core. $CC is the compiler and its options (default: cc, -O2).")))
  takes_sweep_options(command("sweep",
    "Check and time every config of a grid; goes on where it was stopped.",
    "Example: mhagen sweep examples/sweep.lua -o out. $CC is the compiler and its options."))
  parser:command("sweep-step"):hidden(true):argument("file")
  command("isas", "List the instruction sets, and whether this CPU has each.",
          "Code for another architecture is checked with a cross compiler and QEMU, if installed.")
  local reporting = command("report", "Show the results of a sweep: tables here, and a page.",
    "Writes DIR/report.html, one file that a browser opens offline.")
  reporting:argument("dir", "directory of results.jsonl and, if there was tuning, tune.jsonl")
    :argname("<DIR>")
  reporting:option("-o --output", "the page"):argname("<FILE>")
  reporting:option("--filter", "keep the rows with one of these values in a column or config key")
    :argname("<KEY=VALUE,...>"):count("*")
  reporting:option("--sort", "column or config key to order the first table by", "shape")
    :argname("<KEY>")
  reporting:flag("--reverse", "from the greatest")
  reporting:option("--limit", "lines of a table here; 0: all", "20"):argname("<N>")
    :convert(number_of("--limit", "^%d+$", "an integer from 0"))
  reporting:option("--compare", "a second sweep: its times over those of DIR, config by config")
    :argname("<DIR2>")
  reporting:option("--band", "differences within so many percent are noise", "3")
    :argname("<PERCENT>"):convert(number_of("--band", "^%d+%.?%d*$", "a number from 0"))
  reporting:option("--fail-on", "exit status 1 if a config is slower in DIR2, or fails only there")
    :choices { "regression" }
  reporting:epilog(
    "Exit status: 0 done, 1 a regression, 2 the command line or the results are wrong.")
  return parser
end

local function run(arguments)
  for _, argument in ipairs(arguments) do -- suggestions for long texts take long
    if #argument > 4096 then
      error({ message = show(argument) .. ": argument longer than 4096 characters" }, 0)
    end
  end
  local args = build_parser():parse(arguments)
  return commands[args.command](args)
end

-- The arguments -> exit status, and the error message if there is one.
return function(arguments)
  local ok, status, message = xpcall(run, on_error, arguments)
  if ok then return status, message end
  local e = status
  if e.status then return e.status end
  return 2, e.internal or one_line(e)
end
