-- `bench`: generate, compile, time.

local host = require "host"
local bench = require "lab.bench"
local build = require "command.build"
local errors = require "command.errors"
local isas = require "isa.init"
local kernel = require "command.kernel"
local native = require "command.native"
local predicted = require "command.predicted"
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

-- Times a program on so many threads: fills in a row of results.
local function time(row, recorded, program, threads, args)
  local run = { program, "--threads", ("%d"):format(threads) }
  if args.samples then run = build.joined(run, { "--samples", args.samples }) end
  local told_apart = args.phases and recorded.plan.cfg.unroll ~= "full"
  if told_apart then run = build.joined(run, { "--phases" }) end
  local output = step(row, "time", args.timeout, run)
  bench.add_result(row, output)
  if row.status ~= "ok" then error({ failed = row }, 0) end
  if told_apart then
    row.phases = bench.phases(recorded, output, step(row, "time", args.timeout, { "nm", "-n", program }))
  elseif args.phases then
    row.phases = { order = {}, ticks = 0 }
  end
  bench.add_floor(row, recorded, native.cpu())
end

-- Generates, compiles and times in `dir`: a row of results for each number of threads, and what was recorded.
local function bench_in(dir, cfg, args)
  local start = host.clock()
  local files, all = kernel.files_of(cfg)
  local recorded = all[1]
  local row = bench.row(cfg, recorded)
  row.generate_seconds = build.seconds_since(start)
  local why = build.obstacle(isas.list[cfg.isa]) -- under an emulator times mean nothing
  if why then
    row.status, row.message = "skipped", why
    return { row }
  end

  files[#files + 1] = { name = "mhagen_bench.c", text = bench.main(recorded) }
  files[#files + 1] = { name = "mhagen_peak.c", text = bench.peak() }
  build.add_embedded(files, cfg, "bench", build.joined(build.BENCH, build.REFERENCE))
  if not takes.made(dir .. "/mhagen_bench.c", bench.main(recorded)) then -- nor what was compiled
    takes.refuse_foreign(dir, { { name = cfg.name .. ".o" }, { name = "mhagen_bench" } }, args.force)
  end
  takes.write_files(dir, files, args.force)
  local program, rows = build_bench(dir, cfg, files, row, args.timeout), {}
  for i, threads in ipairs(args.threads or { 1 }) do
    rows[i] = {}
    for key, value in pairs(row) do rows[i][key] = value end
    time(rows[i], recorded, program, threads, args)
  end
  return rows, recorded
end

local function run(args)
  local cfg = kernel.load_one(args.config, "bench")
  local ok, rows, recorded = pcall(build.in_dir, args.output, bench_in, cfg, args)
  if not ok then rows = { rows.failed or error(rows, 0) } end
  for _, row in ipairs(args.json and rows or {}) do must(host.print(bench.json(row))) end
  if not ok then return 1, ("bench of %s: %s: %s"):format(cfg.name, rows[1].status, rows[1].message) end
  if args.json then return 0 end
  must(host.print(bench.text(rows[1])))
  if #rows > 1 then must(host.print(bench.threads_text(rows, predicted.of(recorded)))) end
  return 0
end

local function options(cmd)
  takes.config(cmd)
  cmd:flag("--json", "print the row of results as one JSON object")
  cmd:flag("--phases", "also print the time of each phase, on one thread")
  takes.threads(cmd, "threads, on as many cores; several make a table: 1,2,4 (default: 1)")
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
