-- What is known of one config after it was generated, compiled, checked and timed: one row of
-- results. `bench --json` prints a row, a sweep keeps one a line, `report` shows them all; the
-- columns of a CSV file and the keys of a JSON object are these, in this order.

local M = {}

-- { key, unit or "", meaning }
M.fields = {
  { "name", "", "prefix of the kernel's symbols" },
  { "status", "", "ok, skipped, or the step that failed: generate, compile, check, time" },
  { "message", "", "what went wrong, one line" },
  { "config", "", "every key of the config, with its defaults" },
  { "command", "", "makes the same kernel" },
  { "same_as", "", "config that was compiled and measured instead: its code is the same but for name and comments" },
  { "version", "", "of mhagen" },
  { "compiler", "", "first line of its --version" },
  { "flags", "", "compiler and its options" },
  { "cpu", "", "model name of the CPU" },
  { "cores", "", "CPUs of the machine" },
  { "system", "", "name and release of the operating system's kernel" },
  { "threads", "", "that the run used" },
  { "flops", "flop", "useful floating-point operations of one run" },
  { "statements", "", "C statements of the kernel's functions" },
  { "text_bytes", "bytes", "machine code and constants of the kernel's object file" },
  { "packed_bytes", "bytes", "packed weights" },
  { "workspace_bytes", "bytes", "workspace" },
  { "generate_seconds", "s", "time to generate" },
  { "compile_seconds", "s", "time to compile the kernel" },
  { "error", "", "norm of y - reference over norm of reference, against float64" },
  { "repetitions", "", "timed samples" },
  { "us_min", "us", "fastest sample, per run" },
  { "us_median", "us", "lower median of the samples, per run" },
  { "us_p99", "us", "99th percentile of the samples, per run" },
  { "us_cold", "us", "one run with code, weights and data out of the caches, lower median" },
  { "gflops", "GFLOP/s", "flops over us_median" },
  { "peak_gflops", "GFLOP/s", "of independent FMAs on this core, in the same run" },
  { "fma_speedup", "x", "what FMA loops on all of several threads do, over what one does: how free the cores were" },
  { "fraction", "", "of the FMA peak measured right before and after each sample; lower median" },
  { "disturbed", "", "true if the FMA peak dropped by more than 5 % during the measurement, or if " ..
    "others had the core for more than 5 % of the time" },
}

return M
