-- The steps of a sweep. The edges of its build.ninja call them in its directory; users do not.

local host = require "host"
local bench = require "lab.bench"
local build = require "command.build"
local config = require "options.config"
local errors = require "command.errors"
local generate = require "kernel.generate"
local isas = require "isa.init"
local row_files = require "command.row_files"
local same = require "lab.same"
local shell = require "base.shell"
local sweep = require "lab.sweep"

local must = errors.must

-- The files that all programs for one architecture share: the runtime, the check, the benchmark.
local shared_files = build.joined(build.RUNTIME, build.BENCH, build.CHECKER, build.REFERENCE)

local INTERRUPTED = 128 + 2

-- Runs a command of a step for at most so many seconds, through the launcher if there is one, and returns its
-- output. If the command fails, the row says so, and is raised as the error.
local function shell_step(row, name, seconds, words, launcher)
  local text = build.launched(words, launcher)
  local status, output, why = build.run({ "/bin/sh", "-c", "exec 2>&1; " .. text }, seconds, true)
  must(status, output)
  if not why then return output end
  if status == INTERRUPTED then error({ message = "interrupted" }, 0) end -- no result
  if status >= 128 then host.run { "sleep", "1" } end -- a signal that ends us too says nothing of the config
  local line = bench.plain(build.telling_line(output))
  if output:find("No space left on device", 1, true) then error({ message = line }, 0) end -- no result
  row.status = name
  row.message = words[1] .. why:match(" .*") .. (line ~= "" and ": " .. line or "")
  if name == "time" then bench.add_failure(row, output) end
  error({ failed = row }, 0)
end

local function skip(row, why)
  row.status, row.message = "skipped", why
  error({ failed = row }, 0)
end

-- How to compile programs for an architecture.
local function compiler_for(arch, settings)
  return build.compiler(arch == host.arch and settings.cc or build.foreign[arch].cc)
end

-- What kernels for an architecture include.
local function headers_of(arch)
  for _, isa in ipairs(isas.list) do
    if (isa.arch or host.arch) == arch and isa.headers ~= "" then return isa.headers end
  end
  return ""
end

-- Precompiles these, for compilers that can; others read them each time. On another CPU, clang refuses what depends on
-- one.
local function precompile(cc, path, seconds)
  local made = path .. ".gch"
  must(host.remove_file(made))
  if table.concat(cc, " "):find("=native", 1, true) then return end
  local status, message, why = build.run(build.joined(cc, { "-x", "c-header", "-o", made, path }), seconds, true)
  must(status, message)
  if status == INTERRUPTED then error({ message = "interrupted" }, 0) end
  if why then must(host.remove_file(made)) end
  if host.exists(made) then must(host.sync_file(made)) end
end

-- Compiles what programs for one architecture share. It leaves a file that says what they are made of, or why
-- they cannot be made; the latter is allowed for another architecture only.
local function build_common(arch, settings)
  local dir, files = "common/" .. arch, { { name = "mhagen_peak.c", text = bench.peak() } }
  build.add_embedded(files, { name = "" }, "sweep", shared_files)
  files[#files + 1] = { name = build.HEADERS, text = headers_of(arch) .. "\n" }
  local cc, texts = compiler_for(arch, settings), { settings.compiler }
  for _, file in ipairs(files) do texts[#texts + 1] = file.text end
  local key = host.hash(table.concat(texts, "\0") .. table.concat(cc, " "))
  if host.read_file(dir .. "/built") == key then return end
  must(host.remove_file(dir .. "/built"))
  must(host.write_files(dir, files))
  for _, path in ipairs(build.sources(dir, files, function() return true end)) do
    local object = path:gsub("c$", "o")
    local status, message, why = build.run(build.joined(cc, { "-c", "-o", object, path }), settings.timeout)
    if not status and arch ~= host.arch then
      key = "skip " .. message
      break
    end
    must(status, message)
    if why then error({ message = ("%s: %s"):format(path, why) }, 0) end
    must(host.sync_file(object))
  end
  if not key:find "^skip" then precompile(cc, dir .. "/" .. build.HEADERS, settings.timeout) end
  must(host.write_files(dir, { { name = "built", text = key } }, true))
end

-- The fields that each step after the first adds to the row. at: { id, dir, cfg, settings, arch }.
local steps = {}

function steps.compile(at, row)
  local cc, dir, name, settings = compiler_for(at.arch, at.settings), at.dir, at.cfg.name, at.settings
  local common = "common/" .. at.arch
  local why = must(host.read_file(common .. "/built")):match("^skip (.*)")
  if why then skip(row, why) end
  local launcher = settings.launch_compile and settings.launcher
  local object, program = dir .. "/" .. name .. ".o", dir .. "/program"
  row.compiler, row.flags = settings.compiler, table.concat(cc, " ")
  local function step(words, through) return shell_step(row, "compile", settings.timeout, words, through) end
  if at.arch ~= host.arch then row.compiler = step({ cc[1], "--version" }):match("^[^\n]*") end
  local start = host.clock()
  local function compile(...) step(build.joined(cc, { "-I" .. common }, ...), launcher) end
  -- The launcher's compiler may be another one.
  local includes = isas.list[at.cfg.isa].headers ~= "" and not launcher
  local before = includes and { "-include", common .. "/" .. build.HEADERS } or {}
  compile(before, { "-c", "-o", object, ("%s/%s.c"):format(dir, name) })
  row.compile_seconds = build.seconds_since(start)
  local objects = { common .. "/mhagen_peak.o" }
  for _, path in ipairs(shared_files) do
    local base = path:match("([^/]+)%.c$")
    if base then objects[#objects + 1] = ("%s/%s.o"):format(common, base) end
  end
  compile({ "-o", program, dir .. "/mhagen_main.c", object }, objects, { "-lm", "-pthread" })
  row.text_bytes = bench.text_bytes(step { "size", object })
  must(host.sync_file(program)) -- an empty one would be a script that succeeds
end

-- Runs the program of a config on the machine that the settings name.
local function run_program(at, row, step, arguments)
  local program, settings = { at.dir .. "/program" }, at.settings
  if settings.stage then
    local places = { src = shell.word(program[1]), dst = shell.word(at.id) }
    shell_step(row, step, settings.timeout, { "/bin/sh", "-c", build.put(settings.stage, places) })
    program = { "./" .. at.id }
  end
  if not settings.launcher then
    local isa = isas.list[at.cfg.isa]
    if at.arch == host.arch then
      if build.obstacle(isa) then skip(row, build.obstacle(isa)) end
    else
      local emulator = build.foreign[at.arch].run
      local status, why = build.run({ emulator[1], "--version" }, settings.timeout, true)
      if not status then skip(row, why) end
      program = build.joined(emulator, program)
    end
  end
  return shell_step(row, step, settings.timeout, build.joined(program, arguments), settings.launcher)
end

function steps.check(at, row)
  local output = run_program(at, row, "check", { "check", "--terse" })
  if not output:find("%f[%w]ok%f[%W]") then row.status, row.message = "check", "the program has not said ok" end
end

local MOST_TIMES = 4 -- that a disturbed measurement is made

function steps.time(at, row)
  local settings = at.settings
  if settings.launcher and settings.launcher:find("qemu", 1, true)
    or not settings.launcher and at.arch ~= host.arch then
    skip(row, "checked by an emulator, under which times mean nothing")
  end
  local arguments = {}
  for _, option in ipairs { "threads", "samples" } do
    if settings[option] then arguments = build.joined(arguments, { "--" .. option, settings[option] }) end
  end
  for _ = 1, MOST_TIMES do
    bench.add_result(row, run_program(at, row, "time", arguments))
    if row.status ~= "ok" or not row.disturbed then break end
  end
end

-- The first step of a config. Returns the hash of its texts, the hash of its code, the row, and the files.
local function generate_in(at)
  local start, cfg = host.clock(), at.cfg
  local ok, files, recorded = pcall(function()
    build.add_embedded({}, cfg, "sweep", shared_files) -- refuses their names
    return generate.kernel(cfg)
  end)
  local row, code
  if ok then
    row = bench.row(cfg, recorded)
    files[#files + 1] = { name = "mhagen_main.c", text = sweep.main(recorded) }
    code = host.hash(same(cfg.name, files))
  elseif type(files) == "table" and files.rule then
    row = sweep.refused(cfg, errors.one_line(files))
    files = {}
  else
    error(files, 0)
  end
  row.generate_seconds = build.seconds_since(start)
  local texts = { row.message }
  for _, file in ipairs(files) do texts[#texts + 1] = file.text end
  return host.hash(table.concat(texts, "\0")), code, row, files
end

-- Makes DIR/configs/ID/STEP.row. If the row there is made of the same inputs, nothing is touched, so that Ninja
-- goes no further. Otherwise the old files are removed first, so that a kill leaves no mixture.
local function make_row(path)
  local dir, id, step = path:match("^(configs/([^/]+))/(%l+)%.row$")
  local settings = row_files.settings(".")
  local cfg = config.load(must(host.eval_config(dir .. "/config.lua")), {})
  -- A program that a killed job has left running here may be at work on the config, in another shard.
  must(host.lock(dir .. "/.step", false, true, true))
  local at = { id = id, dir = dir, cfg = cfg, settings = settings, arch = build.arch_of(cfg) }
  local this, before = sweep.step(step)
  local key, code, row, files
  if this.first then
    key, code, row, files = generate_in(at)
  else
    local text = must(host.read_file(row_files.path(".", id, before.name)))
    key = row_files.key(this, sweep.read_key(text), settings, must(row_files.built(".", at.arch)))
    row, files = sweep.read_row(text), {}
    if not row then error({ message = ("%s: %s.row is broken; start the sweep again"):format(dir, before.name) }, 0) end
  end
  if (host.read_file(path) or ""):match("^%x+") == key then return end
  must(host.remove_file(path))
  if steps[step] and not row.status then
    local ok, failed = pcall(steps[step], at, row)
    if not ok and not (type(failed) == "table" and failed.failed) then error(failed, 0) end
  end
  files[#files + 1] = { name = step .. ".row", text = sweep.row_file(key, row, code) }
  must(host.write_files(dir, files, true))
end

local function run(args)
  if not must(host.locked(args.under .. "/.sweep")) then
    error({ message = "sweep-step: no sweep is running here; `mhagen sweep` starts the steps" }, 0)
  end
  local arch = args.file:match("^common/(.*)/built$")
  if arch then
    build_common(arch, row_files.settings("."))
  else
    make_row(args.file)
  end
  return 0
end

return {
  name = "sweep-step", run = run,
  options = function(cmd)
    cmd:hidden(true):argument("file")
    cmd:option("--under", "the directory of the locks", ".")
  end,
}
