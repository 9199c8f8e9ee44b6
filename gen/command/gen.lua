-- `gen`: the files of a kernel.

local host = require "host"
local errors = require "command.errors"
local kernel = require "command.kernel"
local takes = require "command.takes"

local function run(args)
  errors.must(host.write_files(args.output, (kernel.files_of(kernel.load_config(args.config)))))
  return 0
end

local function options(cmd)
  takes.config(cmd)
  cmd:option("-o --output", "directory; made if it is missing"):argname("<DIR>"):count(1):overwrite(false)
end

return {
  name = "gen", run = run, options = options,
  summary = "Write the kernel: NAME.h, NAME.c, and the runtime beside them.",
  about = "Example: mhagen gen h=12 d_model=384 dk=32 seq=128 isa=avx2 -o out",
}
