-- The ranges of keys that a run gives for its rows (gen/score/row_keys.lua), as groups of queries and decode steps need
-- them.

local expr = require "base.expr"
local score = require "score.init"
local tiles = require "schedule.tiles"
local transpose = require "emit.transpose"

local M = {}

-- From the first keys of a group's lanes to their last keys, and from there to the extremes.
local function stride(plan) return tiles.round_up(plan.widest, plan.isa.lanes) end

-- What a group needs to know of the ends of its lanes: the largest, or with sign -1 the smallest. `seen`: lanes that
-- see no key do not count. Each is a vector, so that one loop reduces all of them.
local extremes = {
  { name = "seen_from", of = "row_first", sign = -1, seen = true },
  { name = "seen_to", of = "row_last", sign = 1, seen = true },
  { name = "common_from", of = "row_first", sign = 1 },
  { name = "common_to", of = "row_last", sign = -1 },
}

-- How many numbers all these are.
function M.count(plan) return 2 * stride(plan) + #extremes * plan.isa.lanes end

local function place(plan, ends, i) return ends:at(2 * stride(plan) + i * plan.isa.lanes) end

-- Stores the ends of ranges, from lane `first` on: one by one, where there are fewer rows than lanes. Lanes without a
-- row have the range of the last one, `final`.
local function put_rows(K, p, first, final)
  local t, w = K.t, K.plan.isa.full
  K:each("lane", w.lanes, function(i)
    t:scope(function()
      local at = p.ranges.off + 2 * t:int("row", expr.min(first + i, final))
      local from, stop = t:int_at("from", p.ranges.base, at), t:int_at("stop", p.ranges.base, at + 1)
      t:write(w, p.ends:at(first + i), t:op("index", w, "row_first", from), 1)
      t:write(w, p.ends:at(first + i + stride(K.plan)), t:op("index", w, "row_last", stop - 1), 1)
    end)
  end)
end

-- The same for as many rows as lanes. Their pairs are two vectors, of which log2(L) steps make firsts and ends.
local function put_vectors(K, p, first)
  local t, w = K.t, K.plan.isa.full
  local block, halves = w.lanes // 2, {}
  for i = 0, 1 do
    local at = p.ranges:as(p.ends.type):at(2 * first + i * w.lanes)
    at.base = ("(const %s *)%s"):format(at.type.c, at.base)
    halves[i] = t:op("to_f", w, "pairs" .. i, t:op("load_words", w, "given" .. i, at))
  end
  while block >= 1 do
    local low = t:op("trn_lo", w, "low_" .. block, halves[0], halves[1], block)
    halves, block = { [0] = low, t:op("trn_hi", w, "high_" .. block, halves[0], halves[1], block) }, block // 2
  end
  t:op("store", w, nil, p.ends:at(first), halves[0])
  t:op("store", w, nil, p.ends:at(first + stride(K.plan)),
    t:op("sub", w, "row_last", halves[1], t:op("set", w, "one", 1.0)))
end

-- Stores the ends of the ranges as floats, a lane after the other.
local function put_ends(K, group, p)
  local t, lanes, rows = K.t, K.plan.isa.lanes, K.plan.isa.rows
  local stop = t:int("stop_row", p.left and expr.min(p.left, group.used) or group.used)
  K:each("vector", tiles.ceil_div(group.used, lanes), function(c)
    local first = c * lanes
    local function one_by_one() put_rows(K, p, first, stop - 1) end
    if not (rows.to_f and rows.load_words) then return one_by_one() end
    local function vectors() put_vectors(K, p, first) end
    t:when(first + lanes - 1, stop, K.full and function() t:scope(vectors) end or vectors, one_by_one)
  end)
end

-- Stores the extremes over vectors of lanes, each { row_first =, row_last =, blind = the lanes that see no key }.
local function put_extremes(K, p, vectors)
  local t, plan, w = K.t, K.plan, K.plan.isa.full
  local neutral = { row_first = plan.cfg.seq_kv + 0.0, row_last = -1.0 }
  for i, extreme in ipairs(extremes) do
    t:scope(function()
      local most
      for c, vector in ipairs(vectors) do
        local name, value = ("c%d"):format(c - 1), vector[extreme.of]
        if extreme.seen then
          local instead = t:op("set", w, "instead_" .. name, neutral[extreme.of])
          value = t:op("sel", w, "seen_" .. name, vector.blind, instead, value)
        end
        if extreme.sign < 0 then value = t:op("sub", w, "minus_" .. name, t:op("zero", w, "zero_" .. name), value) end
        most = most and t:op("max", w, "most_" .. name, value, most) or value
      end
      t:op("store", w, nil, place(plan, p.ends, i - 1), most)
    end)
  end
  K:each("extreme", #extremes, function(i)
    local at = place(plan, p.ends, i)
    t:op("store", w, nil, at, transpose.of_lanes(t, "max", t:op("load", w, "lanes", at), "most"))
  end)
end

-- Stores the ends of the ranges of a group's rows, and unless the code is straight-line, their extremes. ranges: those
-- of its first query on; left: how many queries are asked for from there on, or nil.
local function write(K, group, ranges, left, ends)
  local t, w, lanes = K.t, K.plan.isa.full, K.plan.isa.lanes
  local params = { { "ranges", "in", ranges }, { "left", "int", left }, { "ends", "out", ends } }
  K:part("row_keys_" .. group.name, "The first and the last key of the rows of a group, and their extremes.", params,
    function(p)
    put_ends(K, group, p)
    if K.full then return end
    local vectors = {}
    for c = 0, tiles.ceil_div(group.used, lanes) - 1 do
      local function load(end_of, at)
        return t:op("load", w, ("%s_c%d"):format(end_of, c), p.ends:at(at + c * lanes))
      end
      local first, last = load("row_first", 0), load("row_last", stride(K.plan))
      vectors[c + 1] = { row_first = first, row_last = last, blind = t:op("lt", w, "blind_c" .. c, last, first) }
    end
    put_extremes(K, p, vectors)
  end)
end

-- Adds to s of a group's first query, as rows of gen/score have it: `ends`, the ends by lane; inner and outer, as
-- score.span needs them. left: as above; to: the place for so many numbers as M.count says.
function M.of_group(K, group, s, left, to)
  write(K, group, s.ranges, left, to)
  local own = { ends = { first = to, last = to:at(stride(K.plan)) } }
  if not K.full then
    local found, range = {}, score.range_of_ends(K.plan.cfg)
    for i, extreme in ipairs(extremes) do
      local at, least, most = place(K.plan, to, i - 1), table.unpack(range[extreme.of])
      if extreme.sign < 0 then least, most = -most, -least end
      local usual = extreme.of == "row_last" and K.plan.cfg.seq_kv - 1 or 0
      found[i] = K.t:int_at(extreme.name, at.base, at.off,
        { floats = true, range = { least, most }, usual = extreme.sign * usual }) * extreme.sign
    end
    own.outer, own.inner = { row_first = found[1], row_last = found[2] }, { row_first = found[3], row_last = found[4] }
  end
  return setmetatable(own, { __index = s })
end

-- s for query number r of a decode step, with the ends of its range.
function M.of_query(K, s, r)
  local own = score.of_query(s, s.query + r)
  if not K.plan.scores.by_row then return own end
  local at, range = s.ranges:at(2 * r), score.range_of_ends(K.plan.cfg)
  own.row_first = K.t:int_at("row_first", at.base, at.off, { range = range.row_first })
  own.row_last = K.t:int_at("row_stop", at.base, at.off + 1,
    { range = range.row_first, usual = K.plan.cfg.seq_kv }) - 1
  return own
end

return M
