-- A row of results: all facts of one config after it was generated, compiled, checked and timed.
--
-- `bench --json` prints a row, a sweep stores one in each line, and `report` shows them all. The fields are the columns
-- of a CSV file and the keys of a JSON object, in this order.

local M = {}

-- { key, unit or "", meaning, type = (number by default), from_program = }. The program of a benchmark may print
-- only the fields that are `from_program`; mhagen fills in all others.
M.fields = {
  { "name", "", "prefix of the kernel's symbols", type = "string" },
  { "status", "", "ok, skipped, or the step that failed: generate, compile, check, time", type = "string" },
  { "message", "", "reason of a failure, one line", type = "string" },
  { "config", "", "every key of the config, with its defaults", type = "table" },
  { "command", "", "command that makes the same kernel", type = "string" },
  { "same_as", "", "config that was compiled and measured instead: its code is the same except for name and comments",
    type = "string" },
  { "version", "", "version of mhagen", type = "string" },
  { "compiler", "", "first line of its --version", type = "string" },
  { "flags", "", "compiler and its options", type = "string" },
  { "cpu", "", "model name of the CPU", type = "string", from_program = true },
  { "cores", "", "CPUs of the machine", from_program = true },
  { "system", "", "name and release of the operating system's kernel", type = "string", from_program = true },
  { "threads", "", "threads of the run", from_program = true },
  { "flops", "flop", "useful floating-point operations of one run" },
  { "statements", "", "C statements of the kernel's functions" },
  { "text_bytes", "bytes", "machine code and constants of the kernel's object file" },
  { "packed_bytes", "bytes", "packed weights", from_program = true },
  { "workspace_bytes", "bytes", "workspace", from_program = true },
  { "generate_seconds", "s", "time to generate" },
  { "compile_seconds", "s", "time to compile the kernel; in a sweep without that of its headers" },
  { "error", "", "norm of y - reference over norm of reference, against float64", from_program = true },
  { "repetitions", "", "timed samples", from_program = true },
  { "us_min", "us", "fastest sample, per run", from_program = true },
  { "us_median", "us", "lower median of the samples, per run", from_program = true },
  { "us_p99", "us", "99th percentile of the samples, per run", from_program = true },
  { "us_cold", "us", "one run with code, weights and data out of the caches, lower median",
    from_program = true },
  { "gflops", "GFLOP/s", "flops over us_median", from_program = true },
  { "peak_gflops", "GFLOP/s", "peak of this core in the same run: flops over their time at the peak of each type",
    from_program = true },
  { "peak_low", "GFLOP/s", "peak in the slowest tenth of the samples: less with throttling or other work",
    from_program = true },
  { "fma_gflops", "GFLOP/s", "speed of independent FMAs of float32 on this core, in the same run",
    from_program = true },
  { "fma_speedup", "x", "speed of FMA loops on all of several threads over that of one: how free the cores were",
    from_program = true },
  { "fraction", "", "fraction of the peak right before and after each sample; lower median",
    from_program = true },
  { "disturbed", "", "true if the peak dropped by more than 5 % during the measurement, or if " ..
    "others had the core for more than 5 % of the time", type = "boolean", from_program = true },
}

-- The column of a key of the config. The key `cpu` has another column, since the field `cpu` is the machine.
function M.column_of(key) return key == "cpu" and "for_cpu" or key end

return M
