-- `gen`: the files of a kernel.

local host = require "host"
local build = require "command.build"
local describe = require "kernel.describe"
local errors = require "command.errors"
local kernel = require "command.kernel"
local shell = require "base.shell"
local takes = require "command.takes"

-- Raises all mistakes at once: -o is missing, and the config may be wrong too.
local function refuse_no_output(args)
  local ok, e = pcall(kernel.load_config, args.config)
  if not ok and type(e) ~= "table" then error(e, 0) end
  error({ message = "missing option '-o'", more = not ok and { e } or nil }, 0)
end

local function run(args)
  if not args.output then refuse_no_output(args) end
  local cfg = kernel.load_config(args.config)
  local files, all = kernel.files_of(cfg, args)
  if args.cxx then files[#files + 1] = kernel.cxx() end
  takes.write_files(args.output, files, args.force)
  if args.quiet then return 0 end

  local paths, bytes, emulated = {}, 0, build.emulated(cfg)
  for i, file in ipairs(files) do
    paths[i] = shell.word(args.output .. "/" .. file.name)
    if not file.name:match("^mhagen%.") then bytes = bytes + #file.text end
  end
  local sources = build.sources(args.output, files, function() return true end)
  local cc = emulated and emulated.cc or "cc"
  local compile = shell.line(build.joined({ cc, "-O2", "-c" }, sources))
  errors.must(host.print(describe.written(all, paths, bytes, compile)))
  return 0
end

local function options(cmd)
  takes.config(cmd)
  cmd:option("-o --output", "output directory, created if missing"):argname("<DIR>"):overwrite(false)
  cmd:flag("--selftest", "write also NAME_known_answer, by which a product's start compares result bits with the " ..
    "generator's")
  cmd:flag("--single", "write kernel and runtime as one NAME.c and one NAME.h, also for a bundle or a ladder")
  takes.cxx(cmd)
  takes.force(cmd)
  takes.quiet(cmd)
end

return {
  name = "gen", run = run, options = options,
  summary = "Write the kernel (NAME.h, NAME.c) and the runtime.",
  about = "Example: mhagen gen h=12 d_model=384 dk=32 seq=128 isa=avx2 -o out",
}
