-- Toy rows of gen/score, and their meaning for the reference: a change of scores with a pointer of its own, a
-- bias by the key, and an interval with a first key. They show what a row takes. Shapes switch them on.

local LOG2E = 1.4426950408889634

local function on(key, divisor)
  return function(cfg) return cfg[key] % divisor == 1 and not cfg.strassen end
end

return {
  { -- s + key / 16
    on = on("dv", 3),
    bias = function(t, w, name, at)
      local key = t:op("index", w, "key_" .. name, at.key)
      return t:op("mul", w, name, key, t:op("set", w, "slope_" .. name, LOG2E / 16))
    end,
  },
  { -- s - x s^2 / 64, x being the first number of q
    on = on("dk", 2),
    reads = { { name = "bend", kind = "in", from = "args->q",
                floats = function(cfg) return cfg.seq * cfg.d_model end } },
    change = function(t, w, name, at, score)
      local square = t:op("mul", w, name .. "_square", score, score)
      local bend = t:op("dup", w, name .. "_bend", at.bend)
      local factor = t:op("mul", w, name .. "_factor", bend, t:op("set", w, name .. "_by", -1 / 64 / LOG2E))
      return t:op("fma", w, name, square, factor, score)
    end,
  },
  { on = on("h", 2), first = function(s) return s.place - 5 end },
  meaning = [[
#define TOY(key, divisor) (shape->key % (divisor) == 1 && !(shape->options & MHAGEN_STRASSEN))
#define BEND(sign, s) (TOY(dk, 2) ? sign (double)x[0] * (s) * (s) : 0)
#define SLOPED(s) ((s) + (TOY(dv, 3) ? (double)key / 16 : 0))
#define MHAGEN_FIRST_KEY (TOY(h, 2) && place > 5 ? place - 5 : 0)
#define MHAGEN_SCORE(s) (SLOPED(s) + BEND(-, SLOPED(s)) / 64)
#define MHAGEN_SCORE_SIZE(s) (SLOPED(s) + fabs(BEND(+, SLOPED(s))) / 32)
]],
}
