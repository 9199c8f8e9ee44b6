-- Toy rows of gen/score, and their meaning for the reference: a change of scores with a pointer of its own, a
-- bias by the key, and an interval with a first key. They show what a row takes. Shapes switch them on.
-- The tests leave out the keys that they have no meaning for.

local LOG2E = 1.4426950408889634

local function on(key, divisor)
  return function(cfg) return cfg[key] % divisor == 1 end
end

return {
  { -- s + key / 16
    on = on("dv", 3),
    bias = function(t, w, name, at)
      local key = at.index(t, w, "key_" .. name)
      return t:op("mul", w, name, key, t:op("set", w, "slope_" .. name, LOG2E / 16))
    end,
  },
  { -- s / 2 - x s / 64, x being the first number of q, where it is read; what is large may not overflow. Not
    -- where rows of q are queries alone: no row of Y may depend on the query of another one.
    on = function(cfg) return on("dk", 2)(cfg) and not cfg.kv_start and not cfg.q_len and cfg.attention ~= "cross" end,
    reads = { { name = "bend", kind = "in", from = "args->q",
                floats = function(cfg) return cfg.seq * cfg.d_model end } },
    change = function(t, w, name, at, score)
      local bend = t:op("dup", w, name .. "_bend", at.bend)
      local factor = t:op("mul", w, name .. "_factor", bend, t:op("set", w, name .. "_by", -1 / 64))
      local half = t:op("mul", w, name .. "_half", score, t:op("set", w, name .. "_less", 0.5))
      return t:op("fma", w, name, score, factor, half)
    end,
  },
  { on = on("h", 2), first = function(s) return s.place - 5 end },
  meaning = [[
#define TOY(key, divisor) (shape->key % (divisor) == 1)
#define BENDS (TOY(dk, 2) && !(shape->options & (MHAGEN_KV_START | MHAGEN_Q_LEN | MHAGEN_CROSS)))
#define BENT(s, by) (BENDS ? (s) / 2 + (s) * (by) / 64 : (s))
#define SLOPED(s) ((s) + (TOY(dv, 3) ? (double)key / 16 : 0))
#define MHAGEN_FIRST_KEY (TOY(h, 2) && place > 5 ? place - 5 : 0)
#define MHAGEN_SCORE(s) BENT(SLOPED(s), -(double)x[0])
#define MHAGEN_SCORE_SIZE(s) BENT(SLOPED(s), fabs((double)x[0]))
]],
}
