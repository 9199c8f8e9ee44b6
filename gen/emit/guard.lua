-- A block of keys: its tiles of scores, then a check of their sums. A block whose maximum must rise is computed again
-- (stored.lua).
--
--   tile, products, context           record tiles of scores and of the context; a profile counts the two separately
--   always_rises, rest_rises, is_ahead    which kind of blocks a group of queries gets
--   idle                              lanes of queries that the run does not ask for
--   each_tile                         the tiles of a block
--   block                             the tiles of a block, with the check

local context = require "emit.context"
local score_tiles = require "emit.score_tiles"
local softmax = require "emit.softmax"
local stat = require "emit.stats".at
local statistics = require "emit.stats"
local stored = require "emit.stored"

local M = {}

-- Group at most 1/MINOR of the queries; at least MANY tiles of keys: see `rises` in base/measured_choices.lua.
local MINOR, MANY = 10, 5
-- Whether all blocks of a group may take the path in which the maximum can rise (stored.lua). `always_rises` does it
-- for groups of few queries, because they would need tiles of their own otherwise.
local function can_always_rise(K, group)
  return group.keys.rises and K.plan.cfg.unroll ~= "full" and not score_tiles.buffered(K)
end

function M.always_rises(K, group)
  return can_always_rise(K, group)
    and group.count * group.used * MINOR <= K.plan.cfg.seq
end

-- Whether only the partial last tile of keys takes that path.
function M.rest_rises(K, group)
  return can_always_rise(K, group) and not (K.plan.scores.masked or M.always_rises(K, group)) and group.keys.rest > 0
    and group.keys.tiles >= MANY
end

-- The mask of the lanes in vector c whose queries the run does not ask for; name(word): names values.
function M.idle(K, group, ptrs, c, v, name)
  local t = K.t
  local last = t:op("index", v.w, name "asked", ptrs.asked - 1 - (c - 1) * group.lanes)
  return t:op("lt", v.w, name "idle", last, t:op("iota", v.w, name "lane"))
end

-- A profile counts the time of scores and of the context separately.
local function part_of_attend(name, record)
  return function(K, ...) return K:of(name, record, ...) end
end
M.context = part_of_attend("context", context.block)
M.products = part_of_attend("scores", score_tiles.products)
M.tile = part_of_attend("scores", score_tiles.record)

-- Whether the products of each tile are interleaved with the softmax of the tile before. This needs sums in a buffer,
-- as with tile registers. Blocks in which m may rise do not do it.
function M.is_ahead(K, group)
  return score_tiles.buffered(K) and group.keys.tiles > 1 and not K.full
end

-- The tiles of a block of keys; part: see stored.block.
function M.each_tile(K, group, ptrs, part)
  local probs, p_tile = K.plan.whole_p, group.keys.words * group.width
  for _, run in ipairs(stored.runs(K, group, part, true, part.edge)) do
    part.each(run, function(i)
      local at = run.from + i
      M.tile(K, group, ptrs, { pass = softmax.passes.next, key = at * group.keys.rows, rows = run.rows, edge = run.edge,
                               p_at = (probs and at or at - part.from) * p_tile,
                               next = ptrs.sums and part.behind(at) })
    end)
  end
end

-- The tiles of a block, computed again by stored.lua if m has to rise. From then on all blocks of the task take that
-- path. Lanes that need no rise get the same bits either way.
local function guarded_block(K, group, ptrs, part)
  local t, plan = K.t, K.plan
  t:scope(function()
    local w = group.vecs[1].w
    statistics.each(K, group, ptrs.stats, function(_, _, load, put) put("before", load("sum", "sum_before")) end)
    local on = t:op("lt", w, "on", t:op("zero", w, "off"), t:op("load", w, "task_mode", ptrs.steady))
    t:unless({ t:op("all", w, "all_on", on) }, function()
      M.each_tile(K, group, ptrs, part)
    end, true)
    local good = {}
    for c, v in ipairs(group.vecs) do
      local function name(word) return ("%s_c%d"):format(word, c - 1) end
      local sum = t:op("load", v.w, name "whole_sum", stat(group, ptrs.stats, "sum", c))
      if ptrs.asked then sum = t:op("zero_if", v.w, name "asked_sum", M.idle(K, group, ptrs, c, v, name), sum) end
      local both = t:op("add", v.w, name "known", sum, t:op("load", v.w, name "mode", ptrs.steady))
      local calm = t:op("lt", v.w, name "calm", both, t:op("set", v.w, name "most", softmax.calm(plan.attend.scheme)))
      good[c] = t:op("all", v.w, name "good", calm)
    end
    t:unless(good, function()
      statistics.each(K, group, ptrs.stats, function(_, _, load, put) put("sum", load "before") end)
      t:op("store", plan.isa.full, nil, ptrs.steady, t:op("set", plan.isa.full, "always", math.huge))
      stored.block(K, group, ptrs, part)
    end)
  end)
end

-- The same as a function that several blocks share.
local function shared_block(K, group, ptrs, part)
  local plan, params = K.plan, stored.params(K, ptrs, part)
  params[#params + 1] = { "steady", "out", ptrs.steady }
  params[#params + 1] = { "asked", "int", ptrs.asked }
  local edge = plan.scores.masked or group.keys.rest > 0 and not M.rest_rises(K, group)
  K:part("block_" .. group.name, "Weights of a block of keys, and their sum.", params, function(p)
    local own = setmetatable({ reads = p, each = function(run, tile) K:each("tile", run.to - run.from, tile) end,
                               edge = edge }, { __index = p })
    guarded_block(K, group, own, own)
  end)
end

-- part: as in each_tile; shared: whether there are several such blocks.
function M.block(K, group, ptrs, part)
  local record = part.shared and not (K.full or ptrs.sums) and shared_block or guarded_block
  record(K, group, ptrs, part)
end

return M
