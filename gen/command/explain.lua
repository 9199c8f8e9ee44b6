-- `explain`: the plan of a config.

local host = require "host"
local config = require "options.config"
local describe = require "kernel.describe"
local errors = require "command.errors"
local kernel = require "command.kernel"
local ladder = require "kernel.ladder"
local predicted = require "command.predicted"
local record = require "plan.record"
local takes = require "command.takes"

local function run(args)
  local cfg = kernel.load_config(args.config)
  local texts = {}
  for _, one in ipairs(ladder.tree(cfg)) do
    if not config.members(one) then
      local recorded = record(one)
      local threads = args.threads and predicted.lines(recorded, args.threads)
      texts[#texts + 1] = describe.explain(recorded, { why = args.why, types = args.types, threads = threads })
    end
  end
  errors.must(host.print(table.concat(texts, "\n")))
  return 0
end

local function options(cmd)
  takes.config(cmd)
  cmd:flag("--why", "also print the reasons of all choices, and the rejected ones with their figures")
  cmd:flag("--types", "also print the cost of other number types")
  takes.threads(cmd, "also print what so many threads are predicted to gain: 2,4,8")
end

return {
  name = "explain", run = run, options = options,
  summary = "Print the plan: phases, tiles, buffers, cost, and why.",
  about = "It writes no file.",
}
