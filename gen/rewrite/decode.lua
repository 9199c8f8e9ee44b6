-- Replaces attention with queries in the lanes by decode steps (stage/decode.lua), which store the context in rows.

local decode = require "schedule.decode"
local graph = require "graph.init"
local matrices = require "graph.matrices"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"

local M = {}

-- Whether each head has rows of keys and values: in a cache, or as inputs that are not projected. With merged weights,
-- all heads would read the rows of the inputs instead.
function M.applies(plan)
  local cfg = plan.cfg
  return cfg.cache ~= "none" or not matrices.projects(cfg, "k") and not matrices.projects(cfg, "v")
end

function M.rewrite(plan, list)
  local attend, output = graph.attend(list), graph.output(list)
  local step = decode.choose(plan, attend)
  if not step then return list end
  local own = graph.with(attend, { kind = "decode", step = step, of_group = decode.of_group, touches = false })
  list = graph.edited(list, { [attend] = { own } })
  if not output then return list end
  -- Integer words are made only once the context of all heads is complete.
  local function width(n) return output.scheme.integers and n or tiles.words(output.scheme, n) end
  local context = tensors.rows("context", { row = width(output.steps), head = width(attend.out) })
  return graph.replaced(list, attend.context, context)
end

return M
