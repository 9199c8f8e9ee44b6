-- The commands. This file alone talks to the host: it reads configs, writes results and runs
-- compilers; all other modules are functions from values to values.

local argparse = require "argparse"
local bench = require "bench"
local host = require "host"
local config = require "config"
local explain = require "explain"
local generate = require "generate"
local isas = require "isa.init"
local measured = require "measured"
local report = require "report"
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
      cmd:option("--" .. option, text):argname("<N>")
        :convert(number_of("--" .. option, "^[1-9]%d?%d?%d?%d?%d?$", "a number from 1 to 999999"))
    end
    cmd:flag("--json", "print one JSON object")
    cmd:flag("--phases", "also say how the time divides between the phases, on one thread")
    number("threads", "threads, on as many cores (default: 1)")
    number("samples", "timed samples (default: what a second allows, 5 to 400)")
    cmd:option("-o --output", "keep the program and its sources here"):argname("<DIR>")
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
