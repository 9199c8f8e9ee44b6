-- `check`: generate, compile, run against the reference in double.

local host = require "host"
local config = require "options.config"
local build = require "command.build"
local errors = require "command.errors"
local isas = require "isa.init"
local kernel = require "command.kernel"
local ladder = require "kernel.ladder"
local takes = require "command.takes"
local template = require "base.template"

local must = errors.must

-- The program that checks a config and its members.
local function main_of(cfg)
  local includes, list = {}, {}
  for i, one in ipairs(ladder.tree(cfg)) do
    includes[i], list[i] = ('#include "%s.h"'):format(one.name), ("&%s_kernel"):format(one.name)
  end
  return template.file("check.c.in", { name = cfg.name, includes = table.concat(includes, "\n"),
                                       kernels = table.concat(list, ", "), count = tostring(#list) })
end

-- How to compile and run the check of a config: the compiler, the words before the program's, and whether these are
-- ours and may be missing. With a launcher $CC is the target's; it says nothing where it is this machine's.
local function toolchain(cfg, launcher)
  local foreign = build.emulated(cfg)
  if launcher then return foreign and host.cc == "cc" and foreign.cc or host.cc, {}, false end
  if foreign then return foreign.cc, foreign.run, true end
  return host.cc, {}, false
end

-- Compiles and runs the check in `dir` with these arguments, through the launcher if there is one, each for at
-- most so many seconds. Returns true, or false and what failed, or nil and why it is skipped.
local function check_in(dir, cfg, seconds, arguments, launcher)
  local files = kernel.files_of(cfg)
  local cc, runner, emulated = toolchain(cfg, launcher)
  local obstacle = not launcher and build.obstacle(isas.list[cfg.isa])
  -- Of several kernels the program finds out which ones can run.
  local some = emulated or config.members(cfg) and build.arch_of(cfg) == host.arch
  if obstacle and not some then return nil, obstacle end

  files[#files + 1] = { name = "mhagen_check.c", text = main_of(cfg) }
  build.add_embedded(files, cfg, "check", build.joined(build.CHECKER, build.REFERENCE))
  must(host.write_files(dir, files))

  local program = dir .. "/mhagen_check"
  local compile = build.joined(build.compiler(cc), { "-o", program },
                         build.sources(dir, files, function() return true end), { "-lm", "-pthread" })
  local run = build.joined(runner, { program }, arguments or {})
  for _, command in ipairs(launcher and { compile } or { compile, run }) do
    local status, message, why = build.run(command, seconds)
    if emulated and not status then return nil, message end
    must(status, message)
    if why then return false, ("check of %s: %s"):format(cfg.name, why) end
  end
  if not launcher then return true end
  -- A launcher may end well without having run anything.
  local status, output, why = build.run({ "/bin/sh", "-c", build.launched(run, launcher) }, seconds, true)
  must(host.print(must(status and output, output)))
  if not why and output:find("%f[%w]ok%f[%W]") or output:find("%f[^\n\0]skip ") then return true end
  why = why and why:gsub("^%S+", "the launcher") or "the launcher's program has not said ok"
  return false, ("check of %s: %s"):format(cfg.name, why)
end

local function run(args)
  local cfg = kernel.load_config(args.config)
  local passed, why = build.in_dir(nil, check_in, cfg, args.timeout, nil, args.launcher)
  if passed == nil then must(host.print(("%s: skipped: %s\n"):format(cfg.name, why))) end
  if passed == false then return 1, why end
  return 0
end

local function options(cmd)
  takes.config(cmd)
  takes.launcher(cmd)
  takes.timeout(cmd)
end

return {
  name = "check", run = run, options = options, check_in = check_in,
  summary = "Generate, compile, run against the reference in double.",
  about = "It compiles with $CC (default: cc). Code for another architecture runs under QEMU. With --launcher it\n" ..
    "runs on your target; then $CC must compile for that target.\n" ..
    "A kernel that cannot run here is skipped: check says so, and exits with status 0.",
}
