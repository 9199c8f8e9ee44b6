-- Places the query projection by its lanes. With lanes over columns it follows keys and values. With lanes over queries
-- it is part of attention, and needs X transposed. Merged weights are applied for each head.

local graph = require "graph.init"

local M = {}

-- The list for these lanes, "columns", "queries" or "none".
function M.moved(list, lanes)
  local queries, moved = graph.find(list, "queries"), nil
  if not queries then return list end
  if lanes == "columns" then
    moved = queries
  else
    local transpose = graph.moving { name = "transpose", a = queries.a }
    local first = 1
    while list[first].inputs do first = first + 1 end -- behind what makes X of the inputs
    list = graph.edited(list, {})
    table.insert(list, first, transpose)
    if not queries.merged then
      return graph.edited(list, { queries = { graph.with(queries, { name = "query", kind = "apply" }) } })
    end
    moved = graph.with(queries, { name = "key_query", kind = "apply", per = "head" })
  end
  local next_one = graph.find(list, "key_query") or graph.find(list, "attend")
  return graph.edited(list, { queries = {}, [next_one.name] = { moved, next_one } })
end

function M.rewrite(plan, list) return M.moved(list, plan.q_lanes) end

return M
