-- Places the query projection by its lanes. With lanes over columns it follows keys and values. With lanes over queries
-- it is part of attention, and needs X transposed. Merged weights are applied for each head.

local graph = require "graph.init"
local tensors = require "graph.tensor"

local M = {}

-- Inserts the transposition, for all queries, after the stages that convert inputs.
local function with_transpose(list, transpose)
  local first = list[graph.behind_inputs(list)]
  return graph.edited(list, { [first] = { transpose, first } })
end

-- The list with these lanes, "columns", "queries" or "none".
function M.moved(list, lanes)
  local attend = graph.attend(list)
  local queries, last = graph.projection(list, attend.queries), graph.maker(list, attend.queries)
  if not queries then return list end
  local next_one = last ~= queries and last or attend -- the stage that reads them
  if lanes == "columns" then return graph.edited(list, { [queries] = {}, [next_one] = { queries, next_one } }) end
  local xt = tensors.lanes("xt", { scheme = queries.scheme })
  local transpose = graph.moving { name = "transpose", a = queries.a, c = xt }
  local name = queries.merged and "key_query" or "query"
  local applied = graph.with(queries, { name = name, nest = "lanes", per = queries.merged and "head" or nil,
                                        a = transpose.c })
  local edits = { [queries] = { applied } }
  if queries.merged then edits = { [queries] = {}, [attend] = { applied, attend } } end
  return with_transpose(graph.edited(list, edits), transpose)
end

function M.rewrite(plan, list) return M.moved(list, plan.q_lanes) end

return M
