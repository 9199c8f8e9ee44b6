-- `bench`: generate, compile, time.

local host = require "host"
local bench = require "lab.bench"
local build = require "command.build"
local errors = require "command.errors"
local isas = require "isa.init"
local kernel = require "command.kernel"
local native = require "command.native"
local takes = require "command.takes"

local must = errors.must

-- Runs a command of a benchmark for at most so many seconds and returns its output. If the command
-- fails, the row of results says so, and is raised as the error.
local function step(row, name, seconds, command)
  local status, output, why = build.run(command, seconds, true)
  must(status, output)
  if not why then return output end
  row.status, row.message = name, why
  if name == "time" then bench.add_failure(row, output) end
  error({ failed = row }, 0)
end

-- Compiles the files of a benchmark; returns the path of its program.
local function build_bench(dir, cfg, files, row, seconds)
  local cc, program = build.compiler(host.cc), dir .. "/mhagen_bench"
  local kernel, object = cfg.name .. ".c", dir .. "/" .. cfg.name .. ".o"
  row.flags = table.concat(cc, " ")
  local start = host.clock()
  local function compile(...) return step(row, "compile", seconds, build.joined(...)) end
  compile(cc, { "-c", "-o", object, dir .. "/" .. kernel })
  row.compile_seconds = build.seconds_since(start)
  local others = build.sources(dir, files, function(name) return name ~= kernel end)
  compile(cc, { "-o", program, object }, others, { "-lm", "-pthread" })
  row.compiler = compile(build.words_of(host.cc), { "--version" }):match("^[^\n]*")
  row.text_bytes = bench.text_bytes(compile { "size", object })
  return program
end

-- Generates, compiles and times in `dir`: a row of results.
local function bench_in(dir, cfg, args)
  local start = host.clock()
  local files, all = kernel.files_of(cfg)
  local recorded = all[1]
  local row = bench.row(cfg, recorded)
  row.generate_seconds = build.seconds_since(start)
  local why = build.obstacle(isas.list[cfg.isa]) -- under an emulator times mean nothing
  if why then
    row.status, row.message = "skipped", why
    return row
  end

  files[#files + 1] = { name = "mhagen_bench.c", text = bench.main(recorded) }
  files[#files + 1] = { name = "mhagen_peak.c", text = bench.peak() }
  build.add_embedded(files, cfg, "bench", build.joined(build.BENCH, build.REFERENCE))
  if not takes.made(dir .. "/mhagen_bench.c", bench.main(recorded)) then -- nor what was compiled
    takes.refuse_foreign(dir, { { name = cfg.name .. ".o" }, { name = "mhagen_bench" } }, args.force)
  end
  takes.write_files(dir, files, args.force)
  local run = { build_bench(dir, cfg, files, row, args.timeout) }
  for _, option in ipairs { "threads", "samples" } do
    if args[option] then run = build.joined(run, { "--" .. option, args[option] }) end
  end
  local told_apart = args.phases and cfg.unroll ~= "full"
  if told_apart then run = build.joined(run, { "--phases" }) end
  local output = step(row, "time", args.timeout, run)
  bench.add_result(row, output)
  if row.status ~= "ok" then error({ failed = row }, 0) end
  if told_apart then
    row.phases = bench.phases(recorded, output, step(row, "time", args.timeout, { "nm", "-n", run[1] }))
  elseif args.phases then
    row.phases = { order = {}, ticks = 0 }
  end
  bench.add_floor(row, recorded, native.cpu())
  return row
end

local function run(args)
  local cfg = kernel.load_one(args.config, "bench")
  local ok, row = pcall(build.in_dir, args.output, bench_in, cfg, args)
  if not ok then row = row.failed or error(row, 0) end
  if args.json then must(host.print(bench.json(row))) end
  if not ok then return 1, ("bench of %s: %s: %s"):format(cfg.name, row.status, row.message) end
  if not args.json then must(host.print(bench.text(row))) end
  return 0
end

local function options(cmd)
  takes.config(cmd)
  local function number(option, text)
    cmd:option("--" .. option, text):argname("<N>"):convert(takes.count("--" .. option))
  end
  cmd:flag("--json", "print the row of results as one JSON object")
  cmd:flag("--phases", "also print the time of each phase, on one thread")
  number("threads", "threads, on as many cores (default: 1)")
  takes.samples(cmd)
  takes.timeout(cmd)
  cmd:option("-o --output", "save the program and its sources here"):argname("<DIR>")
  takes.force(cmd)
end

return {
  name = "bench", run = run, options = options,
  summary = "Generate, compile, time: us, GFLOP/s, fraction of the peak.",
  about = "It runs on one pinned core. $CC is the compiler with its options (default: cc -O2).",
}
