-- The lanes of the query projection: "queries", as in attention; "columns" (the result is transposed); "none" where Q
-- is not projected.
--
--   M.possible(plan, list)   the lanes that a plan may have; plan/arrange.lua takes the cheapest. Refuses keys without
--                            effect
--   M.tell(plan, list, lanes, possible)   adds the reasons for the lanes
--   M.spans_heads, M.cached, M.one_head   which heads must be projected together

local choices = require "base.choices"
local graph = require "graph.init"
local matrices = require "graph.matrices"
local joint = require "rewrite.joint"
local queries = require "rewrite.queries"
local tiles = require "schedule.tiles"
local ways = require "way.init"

local M = {}

-- With lanes over columns, merged weights are as wide as the model, so they are packed for one head at a time.
function M.one_head(list, lanes)
  return lanes == "columns" and graph.projection(list, graph.attend(list).queries).merged
end

-- Whether keys and values are kept between runs. Their layout then must not depend on a kernel's schedule.
function M.cached(plan) return plan.cfg.cache ~= "none" end

-- Whether a norm spans all heads, which then must be in one block.
function M.spans_heads(list)
  local qk = graph.attend(list).qk
  return qk and qk.norm and qk.all
end

-- The keys that would have no effect, or another one than given, with these lanes in the query projection ("none":
-- there is no such projection). Each comes with its rule.
local function disobeyed(plan, list, lanes)
  local cfg = plan.cfg
  local found = {}
  local function unless_obeyed(keys, rule)
    for _, key in ipairs(keys) do
      if cfg[key] then found[#found + 1] = { key, cfg[key], "has no effect with " .. rule } end
    end
  end
  local project, with = "project = " .. cfg.project, "q_lanes = " .. lanes
  if plan.stored.quant and lanes == "queries" then
    local key = graph.scheme(list).integers and "dtype" or "weight_dtype"
    found[1] = { "q_lanes", lanes, ("must be columns with %s = %s, whose words have weights of one column"):format(
      key, cfg[key]) }
  end
  if lanes == "none" then
    with = project
    unless_obeyed({ "q_lanes" }, project .. ", which does not project Q")
  end
  if not graph.output(list) then
    unless_obeyed({ "out_rows", "out_vectors" }, project .. ", which does not project Y")
  end
  local attend, applied = graph.attend(list), false
  for _, stage in ipairs(list) do applied = applied or stage.nest == "lanes" end
  if lanes ~= "queries" and not applied then
    unless_obeyed({ "q_rows" }, with .. ": no product has lanes over queries")
  end
  local none = not graph.projection(list, attend.keys) and not graph.projection(list, attend.values)
  if lanes ~= "columns" and none then
    local both = matrices.projects(cfg, "k") and matrices.projects(cfg, "v")
    unless_obeyed({ "kv_rows", "kv_vectors" },
      with .. " where neither K nor V is projected" .. (both and "; with fold = off both are" or ""))
  end
  local against = cfg.qkv == "joint" and joint.against(plan, queries.moved(list, lanes))
  if against then found[#found + 1] = { "qkv", cfg.qkv, against } end
  local sharing = cfg.h // cfg.h_kv
  if M.cached(plan) and not M.spans_heads(list) and cfg.head_block and cfg.head_block ~= sharing then
    found[#found + 1] = { "head_block", cfg.head_block,
                          ("must be h / h_kv = %d with a cache, which lies head by head"):format(sharing) }
  end
  if M.spans_heads(list) and cfg.head_block and cfg.head_block ~= cfg.h then
    found[#found + 1] = { "head_block", cfg.head_block, "must be h with norm_span = all, a norm of all heads" }
  end
  if M.one_head(list, lanes) and cfg.head_block ~= 1 then
    if cfg.head_block then
      found[#found + 1] = { "head_block", cfg.head_block,
                            "must be 1 with q_lanes = columns where Wq Wk^T is made when packing" }
    end
  end
  return found
end

local QUANTS = "a vector of words has weights of as many columns; for lanes over queries each would be unpacked alone"

-- The possible lanes: those with which all given keys have their effect.
function M.possible(plan, list)
  local cfg = plan.cfg
  local refused, lanes = {}, {}
  local projected = graph.projection(list, graph.attend(list).queries)
  local one_way = plan.stored.quant or projected and ways.columns(projected.scheme)
  local possible = one_way and { cfg.q_lanes or "columns" } or { "queries", "columns" }
  for _, one in ipairs(projected and possible or { "none" }) do
    if not projected or one == (cfg.q_lanes or one) then
      local first = disobeyed(plan, list, one)[1]
      refused[#refused + 1] = first
      if not first then lanes[#lanes + 1] = one end
    end
  end
  if #lanes == 0 then tiles.refuse(table.unpack(refused[1])) end
  return lanes
end

-- Adds the reasons for the lanes, if there was a choice.
function M.tell(plan, list, lanes, possible)
  local cfg = plan.cfg
  if lanes == "none" then return end
  local function say(reason) choices.say(plan.why, ("lanes are %s in the query projection"):format(lanes), reason) end
  if not possible[2] then
    say(cfg.q_lanes and "as q_lanes says" or plan.stored.quant and QUANTS or ways.columns(graph.scheme(list))
      or "the only way in which the given keys have an effect")
  elseif cfg.q_len then
    say "its tiles end where q_len does; of a group of queries, which are lanes else, all would be projected"
  else
    local by_columns = lanes == "columns"
    choices.add(plan.why, by_columns and "q_columns" or "q_queries")
  end
end

return M
