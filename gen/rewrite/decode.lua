-- Replaces attention with lanes over queries by decode steps (stage/decode.lua), which write the context in rows.

local decode = require "schedule.decode"
local graph = require "graph.init"
local matrices = require "graph.matrices"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"

local M = {}

-- Whether keys and values have rows of their heads: in a cache, or as inputs that are not projected. With merged
-- weights all heads read the rows of the inputs.
function M.applies(plan)
  local cfg = plan.cfg
  return cfg.cache ~= "none" or not matrices.projects(cfg, "k") and not matrices.projects(cfg, "v")
end

function M.rewrite(plan, list)
  local attend, output = graph.find(list, "attend"), graph.find(list, "output")
  local step = decode.choose(plan, attend)
  if not step then return list end
  local own = graph.with(attend, { kind = "decode", step = step, of_group = decode.plan, touches = false })
  if not output then return graph.edited(list, { attend = { own } }) end
  local rows = tensors.rows("context", { row = output.steps, head = attend.out })
  if not plan.scheme.integers then -- of which words are made once all heads are there
    rows.row, rows.head = tiles.words(plan.scheme, output.steps), tiles.words(plan.scheme, attend.out)
  end
  return graph.edited(list, { attend = { graph.with(own, { context = rows }) },
                              output = { graph.with(output, { a = rows }) } })
end

return M
