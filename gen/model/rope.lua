-- Changes to the angles of rope, for texts longer than in training: `rope_scaling` or rope_parameters of a model's
-- config.
--
--   factor     a factor of cosines and sines
--   divide     (turns, places): new turns; turns[i] is the fraction of a turn of pair i - 1 from one position to the
--              next

local wording = require "base.wording"

local M = {}

-- Of factors: with the least one an angle is exact to a float's last bit at any place; the most stands for a pair that
-- is not turned.
local LEAST, MOST, HELD = 1e-3, 1e30, 1e29 -- the last divides those that a kind of scaling does not turn

-- Refuses what the angle of pair i may not be divided by.
function M.check_factor(factor, i, fail)
  if factor >= LEAST and factor <= MOST then return end
  fail("divides the angle of pair %d by %s: must be from %s to %s", i - 1, wording.short(factor), LEAST, MOST)
end

local function map(turns, change)
  local changed = {}
  for i, turn in ipairs(turns) do changed[i] = change(turn, i) end
  return changed
end

-- The turns, but for pairs, from 0 on, that are not turned: those that held(pair) is true of.
function M.hold(turns, held)
  return map(turns, function(turn, i) return held(i - 1) and turn / HELD or turn end)
end

-- A scaling as a function, or nil, without its factor: norms without gains behind rope undo that.
function M.without_factor(scaling)
  return scaling and function(...)
    local found = scaling(...)
    return found and { factor = 1, divide = found.divide }
  end
end

-- Each row: of (fields of the scaling, those of the config, theta, pairs).
local kinds = {}

-- All turns divided by one number.
function M.linear(by, factor)
  return { factor = factor, divide = function(turns) return map(turns, function(turn) return turn / by end) end }
end

function kinds.linear(s) return M.linear(s:positive "factor", 1.0) end

-- Within its length it changes nothing.
function kinds.dynamic(s, c)
  local most = c:int "max_position_embeddings"
  s:positive "factor" -- of the lengths that are refused
  return { factor = 1.0, divide = function(turns, places)
    if places > most then s:fail("rope_type", "dynamic is known up to %d places, not for %d", most, places) end
    return turns
  end }
end

-- The first pairs alone are turned.
function kinds.proportional(s, _, _, pairs)
  local by, turned = s:positive("factor", 1), math.floor(s:positive("partial_rotary_factor", 1) * pairs)
  return { factor = 1.0, divide = function(turns)
    return map(turns, function(turn, i) return turn / (i <= turned and by or HELD) end)
  end }
end

-- Llama 3.1: waves that are longer than `low` are stretched, those shorter than `high` stay.
function kinds.llama3(s, c)
  local factor, low, high = s:positive "factor", s:positive "low_freq_factor", s:positive "high_freq_factor"
  local trained = s:int("original_max_position_embeddings", c:int("max_position_embeddings", 8192))
  if high <= low then s:fail("high_freq_factor", "must be larger than low_freq_factor") end
  return { factor = 1.0, divide = function(turns)
    return map(turns, function(turn)
      local stay = math.min(1.0, math.max(0.0, (trained * turn - low) / (high - low)))
      return (1.0 - stay) * turn / factor + stay * turn
    end)
  end }
end

-- Peng et al., YaRN, 2023. y: { by = factor of the angles, factor = that of cosines and sines, trained = rows,
-- beta_fast, beta_slow, truncate, step }. step: a part between the betas that would end before it begins is a step.
function M.yarn(y, theta, pairs)
  local function pair_of(rotations) return pairs * math.log(y.trained / (rotations * 2 * math.pi)) / math.log(theta) end
  local first, last = pair_of(y.beta_fast), pair_of(y.beta_slow)
  if y.truncate then first, last = math.floor(first), math.ceil(last) end
  first, last = math.max(first, 0), math.min(last, 2 * pairs - 1)
  local span = last - first
  if span == 0 or y.step and span < 0 then span = 0.001 end
  return { factor = y.factor, divide = function(turns)
    return map(turns, function(turn, i)
      local stretched = math.min(1.0, math.max(0.0, (i - 1 - first) / span))
      return stretched * turn / y.by + (1.0 - stretched) * turn
    end)
  end }
end

function kinds.yarn(s, c, theta, pairs)
  local by = s:positive "factor"
  local function magnitude(weight) return by <= 1 and 1.0 or 0.1 * weight * math.log(by) + 1.0 end
  local some, all = s:number("mscale", 0), s:number("mscale_all_dim", 0)
  local by_default = some ~= 0 and all ~= 0 and magnitude(some) / magnitude(all) or magnitude(1)
  if theta <= 1 then c:fail("rope_theta", "must be larger than 1 with yarn") end
  return M.yarn({ by = by, factor = s:positive("attention_factor", by_default), beta_fast = s:positive("beta_fast", 32),
                  trained = s:int("original_max_position_embeddings", c:int("max_position_embeddings", 1 << 12)),
                  beta_slow = s:positive("beta_slow", 1), truncate = s:flag("truncate", true) }, theta, pairs)
end

-- Ding et al., LongRoPE, 2024: a list of factors for short texts, and one for long ones.
function kinds.longrope(s, c, _, pairs)
  local most = c:int("max_position_embeddings", 1 << 12)
  local trained = c:int("original_max_position_embeddings", s:int("original_max_position_embeddings", most))
  local ratio = trained ~= most and most / trained or nil
  local factor = s:positive("factor", ratio or 1)
  local by_default = factor > 1 and math.sqrt(1 + math.log(factor) / math.log(math.max(trained, 2))) or 1.0
  local attention = s:positive("attention_factor", by_default)
  if not s:has "attention_factor" and ratio and factor ~= ratio then -- versions of transformers take either
    s:fail("factor", "%s, and max_position_embeddings / original_max_position_embeddings is %s", factor, ratio)
  end
  local lists = {}
  for _, name in ipairs { "short_factor", "long_factor" } do
    local list = s:list(name) or s:fail(name, "is missing")
    if #list ~= pairs then s:fail(name, "has %d numbers, not %d", #list, pairs) end
    for _, value in ipairs(list) do
      if type(value) ~= "number" then s:fail(name, "has what is no number") end
    end
    lists[name] = list
  end
  return { factor = attention, divide = function(turns, places)
    local list = lists[places > trained and "long_factor" or "short_factor"]
    return map(turns, function(turn, i) return turn / list[i] end)
  end }
end

kinds.su = kinds.longrope -- its name in the first configs of Phi-3

-- The scaling of a config, or nil; s: the fields of its rope_scaling.
function M.of(s, c, theta, pairs)
  local kind = s and s:word("rope_type", s:word("type", "default"))
  if not s or kind == "default" or kind == "mrope" then return nil end -- texts have plain places
  local of = kinds[kind] or s:fail("rope_type", "%s is not known", kind)
  local scaling = of(s, c, theta, pairs)
  return { factor = scaling.factor, divide = function(turns, places)
    local divided = scaling.divide(turns, places)
    for i, turn in ipairs(divided) do
      M.check_factor(turns[i] / turn, i, function(...) s:fail("rope_type", "%s: %s", kind, string.format(...)) end)
    end
    return divided
  end }
end

-- The turns of a model whose file has a factor for each pair; fail: of a format and its values.
function M.divided(turns, factors, fail)
  return map(turns, function(turn, i)
    M.check_factor(factors[i], i, fail)
    return turn / factors[i]
  end)
end

return M
