-- The biases of a mask for a group of queries, as gen/score/mask.lua reads them: in base 2, with -inf for a hidden key.

local expr = require "base.expr"
local mask = require "score.mask"
local tiles = require "schedule.tiles"
local transpose = require "emit.transpose"
local types = require "machine.types"

local M = {}

local kinds = {} -- kinds of masks, by name

local function kind_of(plan) return kinds[plan.scores.hides[1].kind] end

-- A lane without a query counts as one that sees all keys.
kinds.bool = { load = "load_bytes", none = 1.0, bias = function(t, w, name, x)
  local zero = t:op("zero", w, "zero_" .. name)
  return t:op("sel", w, "bias_" .. name, t:op("lt", w, "allowed_" .. name, zero, x), zero,
    t:op("set", w, "never_" .. name, -math.huge))
end }

local LEAST = types.LOWEST / types.LOG2E -- the least number that is still finite after the change to base 2

-- Finite biases stay finite in base 2; infinity and NaN become NaN. Values are bounded before the multiplication,
-- because gcc 14 takes the factor of an infinite product for infinite.
kinds.add = { load = "load", none = 0.0, bias = function(t, w, name, x)
  local least = t:op("max", w, "least_" .. name, t:op("set", w, "low_" .. name, LEAST), x)
  local finite = t:op("min", w, "finite_" .. name, t:op("set", w, "high_" .. name, -LEAST), least)
  local scaled = t:op("mul", w, "scaled_" .. name, finite, t:op("set", w, "log2e_" .. name, types.LOG2E))
  local tested = t:op("fma", w, "tested_" .. name, x, t:op("zero", w, "zero_" .. name), scaled)
  return t:op("sel", w, "bias_" .. name,
    t:op("lt", w, "below_" .. name, x, t:op("set", w, "lowest_" .. name, types.LOWEST)),
    t:op("set", w, "never_" .. name, -math.huge), tested)
end }

-- A row of biases, one for each key in the range of a group, or for all keys. from: the mask of a head and a query.
function M.row(K, group, from, to, range)
  local t, cfg, w = K.t, K.plan.cfg, K.plan.isa.full
  local kind, params = kind_of(K.plan), { { "mask", "in", from }, { "biases", "out", to } }
  local own = K:add_range(params, range)
  local name, which = "mask_row", "all"
  if range then name, which = "mask_row_" .. group.name, "some" end
  K:part(name, ("Biases of %s keys from a mask, in base 2."):format(which), params, function(p)
    K:vectors("block", cfg.seq_kv, function(key, count)
      t:scope(function()
        local x = t:read(kind.load, w, "given", p.mask:at(key), count)
        t:op("store", w, nil, p.biases:at(key), kind.bias(t, w, "given", x))
      end)
    end, own(p))
  end)
end

-- The length of a row of biases.
function M.row_count(plan) return tiles.round_up(plan.cfg.seq_kv, plan.isa.lanes) end

-- Whether heads have biases of their own.
function M.by_head(plan) return mask.steps(plan.cfg).h > 0 end

-- How many numbers the biases of the widest group need.
function M.count(plan)
  local scheme = plan.attend.scheme
  local words = tiles.ceil_div(plan.kv_rows, scheme.group)
  -- Also those of a partial last word, and of words that only tiles read.
  local rows = scheme.group * tiles.padded(scheme, words)
  if mask.steps(plan.cfg).q > 0 then return rows * plan.widest end
  return math.max(rows, M.row_count(plan))
end

-- The range of keys that a group reads for a span of tiles, which is at least one tile; nil: all keys.
function M.range(plan, group, span)
  local rows = group.keys.rows
  local range = { from = span.begin * rows, stop = expr.max(span.finish, span.begin + 1) * rows }
  if expr.is_const(range.stop) then range.stop = math.min(range.stop, plan.cfg.seq_kv) end
  return not (range.from == 0 and range.stop == plan.cfg.seq_kv) and range or nil
end

-- Writes the biases of a group. from: the mask of a head and of the group's first query; range: as M.range returns it.
function M.write(K, group, from, to, range)
  local cfg = K.plan.cfg
  if mask.steps(cfg).q == 0 then return M.row(K, group, from, to, range) end
  local kind = kind_of(K.plan)
  transpose.panel(K, "mask", group, {
    p = from, row = cfg.seq_kv, columns = cfg.seq_kv, range = range, letter = "M", load = kind.load, none = kind.none,
    change = function(w, name, x) return kind.bias(K.t, w, name, x) end,
  }, to)
end

return M
