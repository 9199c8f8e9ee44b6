-- Attention of decode steps (stage/decode.lua) in the place of that with lanes over queries: it makes rows of the
-- context.

local decode = require "schedule.decode"
local graph = require "graph.init"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"

local M = {}

-- Whether keys and values have rows: in a cache, or as inputs that are not projected.
function M.applies(plan, list)
  local attend = graph.find(list, "attend")
  return plan.cfg.cache ~= "none" or attend.keys.at == "input" and attend.values.at == "input"
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
