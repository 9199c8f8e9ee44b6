-- `explain`: the plan of a config.

local host = require "host"
local describe = require "describe"
local errors = require "command.errors"
local kernel = require "command.kernel"
local record = require "record"
local takes = require "command.takes"

local function run(args)
  errors.must(host.print(describe.explain(record(kernel.load_config(args.config)))))
  return 0
end

return {
  name = "explain", run = run, options = takes.config,
  summary = "Print the plan: phases, tiles, buffers, cost, and why.",
  about = "It writes no file.",
}
