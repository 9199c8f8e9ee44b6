-- `check`: generate, compile, run against the reference in double.

local host = require "host"
local build = require "command.build"
local errors = require "command.errors"
local isas = require "isa.init"
local kernel = require "command.kernel"
local takes = require "command.takes"
local template = require "template"

local must = errors.must

-- Compiles and runs the check in `dir` with these arguments, each for at most so many seconds. Returns true,
-- or false and what failed, or nil and why it is skipped.
local function check_in(dir, cfg, seconds, arguments)
  local files = kernel.files_of(cfg)
  local isa = isas.list[cfg.isa]
  local emulated = isa.arch ~= host.arch and build.foreign[isa.arch]
  if build.obstacle(isa) and not emulated then return nil, build.obstacle(isa) end

  files[#files + 1] = { name = "mhagen_check.c",
                        text = template.file("check.c.in", { name = cfg.name }) }
  build.add_embedded(files, cfg, "check", { "tests/checker.c", "tests/checker.h", "tests/reference.c",
                                      "tests/reference.h" })
  must(host.write_files(dir, files))

  local program = dir .. "/mhagen_check"
  local compile = build.joined(build.compiler(emulated and emulated.cc or host.cc), { "-o", program },
                         build.sources(dir, files, function() return true end), { "-lm", "-pthread" })
  local run = build.joined(emulated and emulated.run or {}, { program }, arguments or {})
  for _, command in ipairs { compile, run } do
    local status, message, why = build.run(command, seconds)
    if emulated and not status then return nil, message end
    must(status, message)
    if why then return false, ("check of %s: %s"):format(cfg.name, why) end
  end
  return true
end

local function run(args)
  local cfg = kernel.load_config(args.config)
  local passed, why = build.in_dir(nil, check_in, cfg, args.timeout)
  if passed == nil then must(host.print(("%s: skipped: %s\n"):format(cfg.name, why))) end
  if passed == false then return 1, why end
  return 0
end

local function options(cmd)
  takes.config(cmd)
  takes.timeout(cmd)
end

return {
  name = "check", run = run, options = options, check_in = check_in,
  summary = "Generate, compile, run against the reference in double.",
  about = "It compiles with $CC (default: cc). Code for another architecture runs under QEMU.\n" ..
    "A kernel that cannot run here is skipped: check says so, and exits with status 0.",
}
