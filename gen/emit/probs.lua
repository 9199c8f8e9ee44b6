-- The attention weights of a head, for configs that return them.

local score = require "score.init"
local stat = require "emit.stats".at
local transpose = require "emit.transpose"

local M = {}

-- probs[query][key] of one head from the weights P[key][lane] and the sums.
function M.write(K, group, ptrs, span)
  local t, isa, m, rows = K.t, K.plan.isa, K.plan.cfg.seq_kv, group.keys.rows
  local lanes = isa.lanes
  local params = {
    { "p", "out", ptrs.p }, { "stats", "in", ptrs.stats }, { "probs", "out", ptrs.probs },
  }
  score.add_span(params, span)
  K:part("probs_" .. group.name, "Normalizes, transposes and stores the attention weights.", params,
    function(p)
    local own = score.own_span(p, span)
    -- Keys that no query of the group sees.
    local function clear(from, count)
      K:each("row", count, function(i)
        t:block(function()
          for c = 1, #group.vecs do
            t:op("store", isa.full, nil, p.p:at((from + i) * group.width + (c - 1) * lanes),
              t:op("zero", isa.full, "none_c" .. c - 1))
          end
        end)
      end)
    end
    if K.plan.scores.bounds.first then clear(0, own.begin * rows) end
    if K.plan.scores.masked then clear(own.finish * rows, m - own.finish * rows) end
    local function square(key, count)
      for c, v in ipairs(group.vecs) do
        local inverse = t:op("load", isa.full, ("inverse_c%d"):format(c - 1),
          stat(group, p.stats, "inverse", c))
        local least = t:op("set", isa.full, ("least_c%d"):format(c - 1), 2.0 ^ -126)
        local rows = {}
        for r = 0, lanes - 1 do
          local name = ("r%d_c%d"):format(r, c - 1)
          if r < count then
            local weight = t:op("load", isa.full, "p_" .. name,
              p.p:at((key + r) * group.width + (c - 1) * lanes))
            local scaled = t:op("mul", isa.full, "scaled_" .. name, weight, inverse)
            local tiny = t:op("lt", isa.full, "tiny_" .. name, scaled, least)
            rows[r] = t:op("zero_if", isa.full, "w_" .. name, tiny, scaled)
          else
            rows[r] = t:op("zero", isa.full, "w_" .. name)
          end
        end
        local out = transpose.square(t, rows, ("t_c%d_"):format(c - 1))
        for j = 0, v.used - 1 do
          local at = p.probs:at(((c - 1) * lanes + j) * m + key)
          if count < lanes then
            t:op("store_n", isa.full, nil, at, out[j], count)
          else
            t:op("store", isa.full, nil, at, out[j])
          end
        end
      end
    end
    K:each("block", m // lanes, function(i) t:block(function() square(i * lanes, lanes) end) end)
    if m % lanes > 0 then t:block(function() square(m - m % lanes, m % lanes) end) end
  end)
end

return M
