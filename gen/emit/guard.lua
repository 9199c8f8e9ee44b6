-- A block of keys: its tiles of scores, then a check of their sums. A block whose maximum must rise is computed anew.
--
--   tile, products, context           record tiles of scores and of the context; a profile counts them by phase
--   is_guarded, always_rises, rest_rises, is_ahead    which of these checks a group of queries has
--   idle                              lanes of queries that the run does not compute
--   each_tile                         tiles of a block
--   block                             tiles of a block, with the check

local context = require "emit.context"
local expr = require "base.expr"
local score = require "score.init"
local score_tiles = require "emit.score_tiles"
local softmax = require "emit.softmax"
local stat = require "emit.stats".at
local statistics = require "emit.stats"

local M = {}

-- Whether sums are looked at behind each block: of few keys that would take longer than what it saves, and their heads
-- are done again.
local FEW = 32
local MINOR, MANY = 10, 5 -- a share of the queries, and tiles of keys: see `rises` in base/measured_choices.lua
function M.is_guarded(K, group) return group.keys.tiles > 1 and K.plan.cfg.seq_kv > FEW end

-- Whether the maxima of a group may rise in each tile: of few queries, whose tiles are not those of other groups.
function M.always_rises(K, group)
  return M.is_guarded(K, group) and not (K.full or score_tiles.buffered(K))
    and group.count * group.used * MINOR <= K.plan.cfg.seq
end

-- The same of the last tile of keys alone, which is lower than the others.
function M.rest_rises(K, group, ptrs)
  return M.is_guarded(K, group) and not (K.full or K.plan.scores.masked or ptrs.sums) and group.keys.rest > 0
    and group.keys.tiles >= MANY
end

-- The mask of the lanes of vector c that nobody asks for; name(word): of values.
function M.idle(K, group, ptrs, c, v, name)
  local t = K.t
  local last = t:op("index", v.w, name "asked", ptrs.asked - 1 - (c - 1) * group.lanes)
  return t:op("lt", v.w, name "idle", last, t:op("iota", v.w, name "lane"))
end

-- The time of scores and of context is told apart in attention.
local function part_of_attend(name, record)
  return function(K, ...) return K:of(name, record, ...) end
end
M.context = part_of_attend("context", context.block)
M.products = part_of_attend("scores", score_tiles.products)
M.tile = part_of_attend("scores", function(K, group, ptrs, tile)
  if ptrs.in_turn and tile.pass.ahead then
    score_tiles.products(K, group, ptrs, tile.key, tile.rows or group.keys.rows)
    tile.next = nil
  end
  score_tiles.record(K, group, ptrs, tile)
end)

-- Whether the products of each tile are interleaved with the softmax of the one before: where they are made by tile
-- registers. On the safe path the products come first (ptrs.in_turn).
function M.is_ahead(K, group)
  return score_tiles.buffered(K) and group.keys.tiles > 1 and not K.full
end

-- The tiles of keys of a block behind the lead tile, in two runs: those that all lanes see, and those at the edge of a
-- mask, or the shorter one without a mask. part: from, the first tile of the block; start, the first that is made now;
-- made, the first whose weights are kept, up to the one at hand, or to `upto`.
function M.each_tile(K, group, ptrs, part, pass)
  local plan, rows = K.plan, group.keys.rows
  local probs, p_tile = plan.whole_p, group.keys.words * group.width
  local runs = { { from = part.start, to = part.bound, tile = {} } }
  if part.edge then
    runs[2] = { from = part.bound, to = part.stop, tile = plan.scores.masked and { edge = true }
      or { rows = group.keys.rest } }
  end
  for _, run in ipairs(runs) do
    local function tile(i, last)
      local at, of = run.from + i, run.tile
      local p_rows = pass.lifts and (expr.max(at, part.upto) - part.made) * group.keys.words
      M.tile(K, group, ptrs, { pass = pass, key = at * rows, rows = of.rows, edge = of.edge,
                                   p_at = (probs and at or at - part.from) * p_tile, p_rows = p_rows,
                                   p_first = probs and part.made * p_tile or 0, o_rows = part.o_rows,
                                   next = ptrs.sums and not last and part.behind(at) })
    end
    part.each(run, tile)
  end
end

-- Whether blocks that are looked at may have tiles of another kind.
local function has_edge(K, group, ptrs)
  return K.plan.scores.masked or group.keys.rest > 0 and not M.rest_rises(K, group, ptrs)
end

-- A block as parameters of a function.
local function block_params(K, ptrs, part)
  local params = { { "q", "in", ptrs.q }, { "k", "in", ptrs.k }, { "p", "out", ptrs.p }, { "stats", "out", ptrs.stats },
                   { "o", "out", ptrs.o }, { "steady", "out", ptrs.steady } }
  for _, name in ipairs { "o_rows", "from", "start", "bound", "stop", "made", "upto" } do
    params[#params + 1] = { name, "int", part[name] }
  end
  score.add_head_params(K.plan.scores, params, ptrs.reads)
  return params
end

-- The tiles of a block again, where m may rise. From there on that is how all blocks of a task are made.
local function steady_block(K, group, ptrs, part)
  local t, rows, params = K.t, group.keys.rows, block_params(K, ptrs, part)
  local edge = has_edge(K, group, ptrs)
  K:part("steady_" .. group.name, "Scores of a block of keys, whose maximum may rise.", params, function(p)
    statistics.each(K, group, p.stats, function(_, _, load, put)
      put("sum", load "before")
    end)
    t:op("store", K.plan.isa.full, nil, p.steady, t:op("set", K.plan.isa.full, "on", math.huge))
    local own = { q = p.q, k = p.k, p = p.p, stats = p.stats, o = p.o, reads = p }
    local ahead = M.is_ahead(K, group)
    if ahead then own.sums = t:buffer("sums", score_tiles.buffered(K).size(K.plan.isa, rows, group.vecs)) end
    M.each_tile(K, group, own, {
      from = p.from, start = p.start, bound = p.bound, stop = p.stop, made = p.made, upto = p.upto,
      o_rows = p.o_rows,
      edge = edge,
      behind = function(at) return { key = (at + 1) * rows, rows = rows } end,
      each = function(run, tile)
        local count = run.to - run.from
        if not ahead then return K:each("tile", count, tile) end
        t:when(0, count, function()
          M.products(K, group, own, run.from * rows, run.tile.rows or rows)
          if not run.tile.rows then K:each("tile", count - 1, tile) end -- of lower ones there is one
          tile(count - 1, true)
        end)
      end,
    }, softmax.passes.steady)
  end, K.full and "cold" or nil)
end

-- The tiles of a block, and again where m has to rise. Whether that is so has no influence on other lanes.
local function guarded_block(K, group, ptrs, part)
  local t, plan = K.t, K.plan
  t:scope(function()
    local w = group.vecs[1].w
    statistics.each(K, group, ptrs.stats, function(_, _, load, put) put("before", load("sum", "sum_before")) end)
    local on = t:op("lt", w, "on", t:op("zero", w, "off"), t:op("load", w, "task_mode", ptrs.steady))
    t:unless({ t:op("all", w, "all_on", on) }, function()
      M.each_tile(K, group, ptrs, part, softmax.passes.next)
    end, true)
    local good = {}
    for c, v in ipairs(group.vecs) do
      local function name(word) return ("%s_c%d"):format(word, c - 1) end
      local sum = t:op("load", v.w, name "whole_sum", stat(group, ptrs.stats, "sum", c))
      if ptrs.asked then sum = t:op("zero_if", v.w, name "asked_sum", M.idle(K, group, ptrs, c, v, name), sum) end
      local both = t:op("add", v.w, name "known", sum, t:op("load", v.w, name "mode", ptrs.steady))
      local calm = t:op("lt", v.w, name "calm", both, t:op("set", v.w, name "most", softmax.calm(plan.attend_scheme)))
      good[c] = t:op("all", v.w, name "good", calm)
    end
    t:unless(good, function() steady_block(K, group, ptrs, part) end)
  end)
end

-- The same as a function, which several blocks share.
local function shared_block(K, group, ptrs, part)
  local params = block_params(K, ptrs, part)
  if ptrs.asked then params[#params + 1] = { "asked", "int", ptrs.asked } end
  K:part("block_" .. group.name, "Weights of a block of keys.", params, function(p)
    local own = setmetatable({ reads = p, each = function(run, tile) K:each("tile", run.to - run.from, tile) end,
                               edge = has_edge(K, group, ptrs) }, { __index = p })
    guarded_block(K, group, own, own)
  end)
end

-- part: as each_tile has it, and shared, whether there are several such blocks.
function M.block(K, group, ptrs, part)
  local record = part.shared and not (K.full or ptrs.sums) and shared_block or guarded_block
  record(K, group, ptrs, part)
end

return M
