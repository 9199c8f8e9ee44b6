-- Tiles of scores, and the softmax that is fused into them.
--
-- A score tile holds S^T[key][query lanes]. Its scores were multiplied by log2(e) * scale at pack time, so the weights
-- are exp2(S - max). There is one pass: the maximum m of the first tile serves for all keys, and accumulators of later
-- tiles start at -m and are exponentiated at once. Any m gives the same softmax as long as nothing overflows. The
-- caller checks the sums after each block of keys. If one is too large, emit/stored.lua computes the block again in two
-- passes: `stored` tiles first, then, once m has risen, `weighed` ones. Lanes whose m does not rise get the same bits
-- either way.
--
-- Some ISAs have an op that makes weights as pairs of bfloat16 (isa/powers.lua). Accumulators of scores then start at
-- zero, and one FMA subtracts m and converts a score to a logarithm in fixed point.

local begin = require "emit.begin"
local choices = require "base.choices"
local epilogue = require "emit.epilogue"
local exp = require "tape.exp"
local gemm = require "emit.gemm"
local stat = require "emit.stats".at
local types = require "machine.types"
local ways = require "way.init"
local weights = require "emit.weights"

local M = {}

-- Sums and tests below this are accepted: 65536 weights below M.calm have a smaller sum.
M.accepted = 2.0 ^ 120
local LEAST = 2.0 ^ -32

-- If a sum of weights is below this, none of them requires m to rise.
function M.calm(scheme) return scheme.b.most or 2.0 ^ 100 end

-- The least sum of a lane that sees a key. It is small, because m may be above all of the lane's scores.
function M.least_sum(t, w, name, plan)
  return t:op("set", w, "least_" .. name, plan.attend.scheme.b.least or LEAST)
end

-- 1 over a sum. With `plan`, it is zero for a lane that sees no key, whose sum is below the least one.
function M.inverse(t, w, name, sum, plan)
  local one = t:op("set", w, "one_" .. name, 1.0)
  if not plan then return t:op("div", w, "inverse_" .. name, one, sum) end
  local none = t:op("lt", w, "none_" .. name, sum, M.least_sum(t, w, name, plan))
  local some = t:op("sel", w, "some_" .. name, none, one, sum)
  return t:op("zero_if", w, "scale_" .. name, none, t:op("div", w, "inverse_" .. name, one, some))
end

-- What is done in a tile:
--   word     for the name of the function
--   from_m   accumulators start at the -m of the statistics, or it is subtracted from the scores
--   new_m    m is found from the scores of this tile
--   stores   stores the scores and their maximum; accumulators start as the statistics say (max_start)
--   stored   the scores are read from memory, and no products are made
--   weighs   makes weights; adds: their sum is added to that of earlier tiles
--   shows    stores the scores where weights go later
--   ahead    the products may be interleaved with the softmax of the tile before
M.passes = {
  first = { word = "_first", new_m = true, weighs = true, ahead = true,
            doc = "Scores of the first keys, their maximum, the weights and their sum." },
  next = { word = "", from_m = true, weighs = true, adds = true, ahead = true,
           doc = "Weights exp2(score - maximum) of some keys, added to the sum." },
  -- These two together do what `next` does, except that m may rise between them, or may be any value that is known.
  stored = { word = "_stored", from_m = true, stores = true,
             doc = "Stores the scores of some keys, and updates their maximum." },
  weighed = { stored = true, weighs = true, adds = true,
              doc = "Weights exp2(score - maximum) of stored scores, added to the sum." },
  shown = { word = "_shown", shows = true, doc = "Scores of some keys as they are before softmax, in base 2." },
}

-- The m of lanes that see no key: the lowest float. Where weights are powers any m but that one will do, so it is 0.
function M.unseen(scheme) return scheme.powers and 0.0 or types.LOWEST end

-- Masks of the lanes that do not see a key, { mask, name } each: those of the ends of the interval, as M.ends returns
-- them, and those of the rows of gen/score that hide keys.
function M.hidden(t, tile, r, c, ends, name)
  local w = tile.group.vecs[c].w
  local index = t:op("index", w, "key_" .. name, tile.key + r)
  local list = {}
  if ends.last then list[1] = { t:op("lt", w, "hide_" .. name, ends.last, index), name } end
  if ends.first then
    list[#list + 1] = { t:op("lt", w, "early_" .. name, index, ends.first), name .. (ends.last and "_early" or "") }
  end
  for i, row in ipairs(tile.scores.hides) do
    local of = ("%s_by%d"):format(name, i)
    list[#list + 1] = { row.hides(t, w, "hide_" .. of, M.place(tile, r, c)), of }
  end
  return list
end

-- The ends of the interval of keys for the lanes of vector c: { last =, first = }, as far as the interval has them.
function M.ends(t, scores, group, stats, c, name)
  local ends, w = {}, group.vecs[c].w
  for _, which in ipairs { "last", "first" } do
    if scores.bounds[which] then
      ends[which] = t:op("load", w, ("%s_%s"):format(which, name), stat(group, stats, which, c))
    end
  end
  return ends
end

-- Replaces hidden scores by -inf, or by weights.FAR where m is already subtracted. The key of row r is tile.key + r.
-- Also returns where the maximum of a first tile starts: at -inf, but at the lowest float for a lane that sees no key,
-- so that its weights are zero.
local function hide(t, tile, acc)
  local out, least = {}, {}
  for r = 0, tile.rows - 1 do out[r] = {} end
  for c, v in ipairs(tile.group.vecs) do
    local ends = tile.edge and M.ends(t, tile.scores, tile.group, tile.stats, c, "c" .. c - 1) or {}
    local hidden_score = t:op("set", v.w, ("hidden_c%d"):format(c - 1), tile.far and weights.FAR or -math.huge)
    for r = 0, tile.rows - 1 do
      out[r][c] = acc[r][c]
      for _, hidden in ipairs(M.hidden(t, tile, r, c, ends, ("r%d_c%d"):format(r, c - 1))) do
        local mask, name = table.unpack(hidden)
        out[r][c] = t:op("sel", v.w, "s_" .. name, mask, hidden_score, out[r][c])
        if r == 0 and ends.last and not least[c] then
          local lowest = t:op("set", v.w, ("lowest_c%d"):format(c - 1), M.unseen(tile.scheme))
          least[c] = t:op("sel", v.w, ("least_c%d"):format(c - 1), mask, lowest, hidden_score)
        end
      end
    end
  end
  return out, least
end

function M.start_of_sums(t, w, name) return t:start("set", w, name, begin.START) end

-- The initial values of the accumulators: biases plus -m.
local function start(t, tile, from_m)
  local group, biases = tile.group, tile.scores.biases
  if not from_m and #biases == 0 then return tile.rest end
  local at = tile.pass.stores and "max_start" or "negmax"
  return function(r, c, w, name)
    if #biases == 0 then return t:start("load", w, name, stat(group, tile.stats, at, c)) end
    local terms = {}
    for i, row in ipairs(biases) do
      terms[i] = row.bias(t, w, ("bias%d_%s"):format(i, name), M.place(tile, r, c))
    end
    terms[#terms + 1] = from_m and t:op("load", w, ("%s_%s"):format(at, name), stat(group, tile.stats, at, c)) or nil
    if #terms == 1 then terms[2] = t:op("zero", w, "zero_" .. name) end
    local last = table.remove(terms)
    return t:start("add", w, name, weights.reduce(t, w, "add", terms, "biases_" .. name .. "_"), last)
  end
end

-- The place of a vector of scores, for the rows of gen/score that bias or change it.
function M.place(tile, r, c)
  local group, origin = tile.group, tile.origin or {}
  local key = tile.key + r
  local function index(t, w, name) return t:op("index", w, name, key) end
  return setmetatable({ key = key, index = index, c = c, lane = (c - 1) * group.lanes, width = group.width,
                        cfg = tile.scores.cfg, origin = origin[c], softcap = tile.scores.cfg.softcap },
                      { __index = tile.reads })
end

-- The positions of the queries of each vector.
local function places(t, tile)
  local list = {}
  for c, v in ipairs(tile.group.vecs) do
    list[c] = t:op("load", v.w, ("place_c%d"):format(c - 1), stat(tile.group, tile.stats, "place", c))
  end
  return list
end

-- The last key that each lane sees, by vectors.
local function final_keys(t, tile)
  local list = {}
  for c, v in ipairs(tile.group.vecs) do
    local name = ("final_c%d"):format(c - 1)
    list[c] = tile.scores.bounds.last and t:op("load", v.w, name, stat(tile.group, tile.stats, "last", c))
      or t:op("index", v.w, name, tile.scores.cfg.seq_kv - 1)
  end
  return list
end

-- A maximum, or the score of no key (a sink) if that is larger. It does not use the op `max`, because a NaN must not
-- reach a row that sees no key.
function M.with_extras(t, w, name, of, m)
  for i, row in ipairs(of.scores.extras) do
    local extra = row.extra(t, w, ("extra%d_%s"):format(i, name), of.reads)
    m = t:op("sel", w, ("most%d_%s"):format(i, name), t:op("lt", w, ("less%d_%s"):format(i, name), m, extra), extra, m)
  end
  return m
end

-- The largest of a list of scores.
local function largest(t, tile, w, list, prefix)
  t:open(("max_%dx%d"):format(tile.rows, w.lanes), "The largest score of a tile.")
  local top = weights.reduce(t, w, "max", list, prefix)
  t:close()
  return top
end

-- The step that provides m for each vector.
--   old        take the m of the statistics; otherwise find a new one
--   least      without `old`: where the maximum of vector c starts, if it is given; rows of gen/score may raise it
--   out[c]     receives m
--   small[c]   receives whether a new m is small, where weights are powers or rounded
local function maximum(t, tile, old, least, out, small)
  local scores, list, zero = tile.scores, nil, nil
  local function negmax_at(c) return stat(tile.group, tile.stats, "negmax", c) end
  return {
    start = function(c, v)
      local name = "c" .. c - 1
      zero = t:op("zero", v.w, "zero_" .. name)
      if old then out[c] = t:op("sub", v.w, "m_" .. name, zero, t:op("load", v.w, "negmax_" .. name, negmax_at(c))) end
      list = { out[c] }
      if scores.keyless and #scores.hides == 0 and not old then list[1] = least[c] end
    end,
    apply = function(value)
      list[#list + 1] = value
      return value
    end,
    finish = tile.pass.new_m and function(c, v)
      local w, name = v.w, "c" .. c - 1
      local m = largest(t, tile, w, list, ("max_%s_"):format(name))
      if #scores.hides > 0 then -- all keys of this tile may be hidden, or almost hidden
        local lowest = t:op("set", w, "lowest_" .. name, exp.lowest)
        m = t:op("zero_if", w, "seen_m_" .. name, t:op("lt", w, "unseen_" .. name, m, lowest), m)
      end
      m = M.with_extras(t, w, name, tile, m)
      if tile.scheme.b.round then m, small[c] = weights.whole(t, w, "top_" .. name, m) end
      t:op("store", w, nil, negmax_at(c), t:op("sub", w, "minus_m_" .. name, zero, m))
      out[c] = m
    end,
  }
end

-- The step that keeps track of the largest score of a block.
local function raise_top(t, tile)
  local list
  return {
    start = function() list = {} end,
    apply = function(value)
      list[#list + 1] = value
      return value
    end,
    finish = function(c, v)
      local w, name, at = v.w, "c" .. c - 1, stat(tile.group, tile.stats, "top", c)
      local top = largest(t, tile, w, list, ("top_%s_"):format(name))
      t:op("store", w, nil, at, t:op("max", w, "top_" .. name, t:op("load", w, "old_top_" .. name, at), top))
    end,
  }
end

-- Opens the section that equal tiles share: weights and their sum. weights.lua closes it.
local function opened(t, tile)
  return { start = function(_, v)
             t:open(("weigh_%dx%d"):format(tile.rows, v.w.lanes), "Stores exp2 of each score, and adds it to the sum.")
           end,
           apply = function(value) return value end }
end

-- Subtracts m[c], if it is given.
local function less(t, m)
  return { apply = function(value, at)
    return m[at.c] and t:op("sub", at.v.w, "x_" .. at.name, value, m[at.c]) or value
  end }
end

-- Makes weights of scores, less m[c] if given; stores them and adds them up.
local function weigh(t, tile, acc, m, small)
  local target = { p = tile.out, row = tile.group.width }
  if tile.scheme.powers then
    choices.add(t.why, "powers")
    local interleaved = tile.next and ways.of(tile.scheme).buffered.interleaved(t, tile.next, tile.sums, tile.rows)
    return epilogue.run(tile, acc, { weights.pairs(t, tile, target, weights.powers(t, tile, m, small)) }, interleaved)
  end
  local steps = { opened(t, tile), less(t, m), weights.weight(t, tile) }
  if tile.scheme.group > 1 then
    steps[4] = weights.pairs(t, tile, target)
  else
    steps[4], steps[5] = epilogue.store(t, target), weights.add(t, tile, acc)
  end
  epilogue.run(tile, acc, steps)
end

-- The weights of scores that are stored at `kept`. The other fields of `tile` are those of M.tile. All code after the
-- subtraction is text that tiles of `next` have too.
function M.weigh(t, tile)
  local acc, m, group = {}, {}, tile.group
  tile.vecs = group.vecs
  for c, v in ipairs(group.vecs) do
    m[c] = t:op("load", v.w, ("fall_c%d"):format(c - 1), stat(group, tile.stats, "fall", c))
  end
  for r = 0, tile.rows - 1 do
    acc[r] = {}
    for c, v in ipairs(group.vecs) do
      local name = ("r%d_c%d"):format(r, c - 1)
      local score = t:op("load", v.w, "s_" .. name, epilogue.place(tile.kept, group.lanes, { r = r, c = c }))
      acc[r][c] = t:op("sub", v.w, "x_" .. name, score, m[c])
    end
  end
  weigh(t, tile, acc, {}, {})
end

-- tile: what gemm.tile takes, and
--   group, pass, scores
--   test         makes the sum NaN if a score is infinite
--   key          that of the first row
--   edge         some lanes do not see some keys
--   reads        values that the rows of gen/score read
--   out, stats   weights and statistics
--   kept         { p, row }: where scores are stored
--   sums, next   the scores, if they are made already; the tile whose products are made meanwhile, into the same place
function M.tile(t, tile)
  choices.add(t.why, "short_chains")
  local group, stats, pass, scores = tile.group, tile.stats, tile.pass, tile.scores
  -- If a score was changed, -m is subtracted afterwards, as in the first tile.
  local by_powers = tile.scheme.powers
  local from_m = pass.from_m and #scores.changes == 0 and not by_powers
  local old_m = pass.from_m and not (from_m or by_powers or pass.stores)
  tile.far = from_m and not pass.stores and #scores.biases + #scores.hides == 0
  tile.origin = scores.places and places(t, tile) or scores.rises and final_keys(t, tile) or {}
  tile.rest = tile.scheme.group == 1 and not pass.shows and function(_, _, w, name)
    return M.start_of_sums(t, w, name)
  end or nil
  tile.vecs, tile.init = group.vecs, start(t, tile, from_m)
  local acc = tile.sums and ways.of(tile.scheme).buffered.sums(t, tile, tile.sums) or gemm.tile(t, tile)
  for i, row in ipairs(scores.changes) do
    for r = 0, tile.rows - 1 do
      for c, v in ipairs(group.vecs) do
        local name, at = ("s%d_r%d_c%d"):format(i, r, c - 1), M.place(tile, r, c)
        if row.bias then acc[r][c] = t:op("add", v.w, name, acc[r][c], row.bias(t, v.w, "bias_" .. name, at)) end
        if row.change then acc[r][c] = row.change(t, v.w, name .. (row.bias and "_changed" or ""), at, acc[r][c]) end
      end
    end
  end
  local least = {}
  if tile.edge or #scores.hides > 0 then acc, least = hide(t, tile, acc) end

  local m, small = {}, {}
  if pass.shows then epilogue.run(tile, acc, { epilogue.store(t, { p = tile.out, row = group.width }) }) end
  if pass.stores then
    local is_changed = not tile.sums or tile.init or #scores.changes > 0 or weights.hides_keys(tile)
    epilogue.run(tile, acc, { raise_top(t, tile), is_changed and epilogue.store(t, tile.kept) or nil })
  end
  if old_m or pass.new_m then epilogue.run(tile, acc, { maximum(t, tile, old_m, least, m, small) }) end
  if pass.weighs then weigh(t, tile, acc, m, small) end
end

return M
