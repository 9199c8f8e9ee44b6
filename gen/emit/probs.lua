-- The outputs with a number for each query and key of a head: scores, or attention weights.

local expr = require "base.expr"
local score = require "score.init"
local stat = require "emit.stats".at
local tiles = require "schedule.tiles"
local transpose = require "emit.transpose"
local types = require "machine.types"

local M = {}

local halves = { "low_half", "high_half" }

-- to[query][key] of one head from p[key][lane], or from pairs of keys. what:
--   name, doc, to         of the function, and the name of its parameter for the result
--   scores                the scores that have the span
--   none(name)            the value where no query of the group sees a key
--   of_vector(c, stats)   returns a function of (name, x) that maps x in vector c to its result
local function write(K, group, ptrs, what)
  local t, isa, m, by = K.t, K.plan.isa, K.plan.cfg.seq_kv, K.plan.attend.scheme.group
  local lanes, bounds, words = isa.lanes, what.scores.bounds, group.keys.words
  local params = {
    { "p", "out", ptrs.p }, { "stats", "in", ptrs.stats }, { what.to, "out", ptrs.to },
  }
  score.add_span(params, ptrs.span)
  params[#params + 1] = { "asked", "int", ptrs.asked }
  K:part(what.name .. "_" .. group.name, what.doc, params, function(p)
    local own = score.own_span(p, ptrs.span)
    local function clear(from, count)
      K:each("row", count, function(i)
        t:scope(function()
          for c = 1, #group.vecs do
            t:op("store", isa.full, nil, p.p:at((from + i) * group.width + (c - 1) * lanes),
              what.none("none_c" .. c - 1))
          end
        end)
      end)
    end
    if bounds.first then clear(0, own.begin * words) end
    if what.scores.masked then
      clear(own.finish * words, tiles.words(K.plan.attend.scheme, m) - own.finish * words)
    end
    local function read(key, r, c, name) -- the key's half of a word
      local at = p.p:at((expr.share(key, by) + r // by) * group.width + (c - 1) * lanes)
      local word = t:op("load", isa.full, (by > 1 and "pair_" or "p_") .. name, at)
      return by == 1 and word or t:op(halves[r % by + 1], isa.full, "p_" .. name, word)
    end
    local function squares(key, count)
      for c in ipairs(group.vecs) do
        local become = what.of_vector(c, p.stats)
        local rows = {}
        for r = 0, lanes - 1 do
          local name = ("r%d_c%d"):format(r, c - 1)
          if r < count then
            rows[r] = become(name, read(key, r, c, name))
          else
            rows[r] = t:op("zero", isa.full, "w_" .. name)
          end
        end
        transpose.store_columns(t, group, c, rows,
          { at = p[what.to]:at(key), row = m, columns = count, asked = p.asked })
      end
    end
    K:vectors("block", m, function(key, count) t:scope(function() squares(key, count) end) end)
  end)
end

-- The least weight that, divided by the sum, is no subnormal number.
function M.least(t, w, suffix, sum)
  local least = t:op("mul", w, "share" .. suffix, sum, t:op("set", w, "range" .. suffix, 2.0 ^ -125))
  return t:op("max", w, "least" .. suffix, t:op("set", w, "normal" .. suffix, 2.0 ^ -126), least)
end

-- The weight that is returned: times `inverse`, 1 over the sum. Weights below `least` become zero.
function M.normal(t, w, suffix, weight, inverse, least)
  local large = t:op("zero_if", w, "large" .. suffix, t:op("lt", w, "tiny" .. suffix, weight, least), weight)
  return t:op("mul", w, "w" .. suffix, large, inverse)
end

-- Returns the attention weights. ptrs: p, stats, to = where those of the first query go, span, asked.
function M.write(K, group, ptrs)
  local t, w = K.t, K.plan.isa.full
  write(K, group, ptrs, {
    name = "probs", to = "probs", scores = K.plan.scores,
    doc = "Normalizes, transposes and stores the attention weights.",
    none = function(name) return t:op("zero", w, name) end,
    of_vector = function(c, stats)
      local inverse = t:op("load", w, ("inverse_c%d"):format(c - 1), stat(group, stats, "inverse", c))
      local sum = t:op("load", w, ("sum_c%d"):format(c - 1), stat(group, stats, "sum", c))
      local least = M.least(t, w, ("_c%d"):format(c - 1), sum)
      return function(name, weight)
        return M.normal(t, w, "_" .. name, weight, inverse, least)
      end
    end,
  })
end

-- Returns the scores that head.show has left in P; ptrs as above.
function M.write_scores(K, group, ptrs)
  local t, w = K.t, K.plan.isa.full
  write(K, group, ptrs, {
    name = "show", to = "scores", scores = K.plan.scores.shown,
    doc = "Transposes and stores the scores, in base e.",
    none = function(name) return t:op("set", w, name, -math.huge) end,
    of_vector = function(c)
      local factor = t:op("set", w, ("ln2_c%d"):format(c - 1), 1.0 / types.LOG2E)
      return function(name, x) return t:op("mul", w, "s_" .. name, x, factor) end
    end,
  })
end

return M
