-- The angles of rope in GGUF files, and windows in some layers, as gen/model/gguf_keys.lua has keys.

local angles = require "model.rope"
local fields = require "model.fields"
local wording = require "base.wording"

local M = {}

-- Each kind of scaling: of (fields, factor of the angles, that of cosines and sines, y) to a function of (rope_theta,
-- pairs) to what model.rope makes of them.
local scalings = {}

function scalings.none(_, _, factor)
  return function() return angles.linear(1, factor) end
end

function scalings.linear(_, by, factor)
  return function() return angles.linear(by, factor) end
end

scalings.longrope = scalings.linear -- besides, its angles are divided by tensors

function scalings.yarn(c, by, factor, y)
  if by < 1 then c:fail("rope.scaling.factor", "%s must be at least 1 with yarn", by) end
  local trained = c:int("rope.scaling.original_context_length", c:int "context_length")
  local magnitude = (0.1 * math.log(by) + 1) / (0.1 * y.weight * math.log(by) + 1)
  return function(theta, pairs)
    if theta <= 1 then c:fail("rope.freq_base", "must be larger than 1 with yarn") end
    return angles.yarn({ by = by, trained = trained, beta_fast = y.fast, beta_slow = y.slow, truncate = true,
                         step = true, factor = factor * magnitude }, theta, pairs)
  end
end

-- Its betas are these two, whatever the file says: llama.cpp reads them for some types of models only, `reads`.
local BETAS = { fast = 32, slow = 1, weight = 0 }
M.BETAS = "rope.scaling.yarn_beta_fast=32 rope.scaling.yarn_beta_slow=1 rope.scaling.yarn_ext_factor=1"

local function betas(c, reads)
  if not reads then return BETAS end
  return { fast = c:positive("rope.scaling.yarn_beta_fast", reads.fast),
           slow = c:positive("rope.scaling.yarn_beta_slow", 1),
           weight = reads.weight and c:number("rope.scaling.yarn_log_multiplier", 0) or 0 }
end

local function factor_of(c) return fields.agreed({ { c, "rope.scaling.factor" }, { c, "rope.scale_linear" } }, 1) end

local function scaling(c, reads)
  local kind, y = c:word("rope.scaling.type", "linear"), betas(c, reads)
  local of = scalings[kind] or c:fail("rope.scaling.type", "%s is not supported", wording.short(kind))
  return of(c, factor_of(c), c:positive("rope.scaling.attn_factor", 1), y)
end

-- Rows of Q and K of Llama's family are permuted in these files, so that rope turns neighbours. reads: the default of
-- the fast beta, `fast`, where a file says those of yarn, and whether it has a weight, too.
function M.rope(kind, reads)
  return function(c, _, sizes)
    return { rope = kind, rope_theta = c:positive("rope.freq_base", 10000), scaling = scaling(c, reads),
             rope_dims = c:int("rope.dimension_count", sizes.dk) }
  end
end

local rope = M.rope

-- Whether a layer has a window: by a list, or all have but each so many-th, by default `period`; 0 says all. first: of
-- so many layers the first has none, else the last. Without a period there must be a list.
function M.slides(c, i, s)
  local name, period = "attention.sliding_window_pattern", s.period
  if not c:is_list(name) then
    if not period then c:fail(name, c:has(name) and "must be a list" or "is missing") end
    period = c:number(name, period) ~= 0 and c:int(name, period) or 0
    return period == 0 or i % period ~= (s.first and 0 or period - 1)
  end
  local list, count = c:list(name), c:int "block_count"
  if #list ~= count then c:fail(name, "has %d elements, and there are %d blocks", #list, count) end
  return list[i + 1] ~= 0
end

-- The keys of a window of so many rows. both: half of them are before a row, and half behind it.
local function window_of(rows, both)
  if both then return rows // 2, rows // 2 end
  return rows - 1
end

-- Rope, and a window in some layers.
--
--   kind      of rope; half if it is not given
--   period, first   as above
--   window    the default of sliding_window; without one it is required, and 0 says that no layer has a window
--   fixed     what it is where there is one
--   both      true where windows reach both ways
--   base      that of rope in them, else the same base
--   only      true where there is no other base
--   scaled    of (fields) to what scales it in them, else the same scaling
--   turned    of (fields, number, whether it has a window): whether a layer has rope, else all have
function M.sliding(s)
  return function(c, i, sizes)
    local keys = rope(s.kind or "half")(c, i, sizes)
    local base = c:positive("rope.freq_base_swa", s.base or keys.rope_theta)
    if s.only and base ~= keys.rope_theta then
      c:fail("rope.freq_base_swa", "%s must be rope.freq_base, %s, which llama.cpp takes in all layers of this model",
             base, keys.rope_theta)
    end
    local has = M.slides(c, i, s)
    if s.window == 0 and c:number("attention.sliding_window", 0) == 0 then return keys end
    local rows = c:int("attention.sliding_window", s.window)
    if s.turned and not s.turned(c, i, has) then keys = {} end
    if not has then return keys end
    if not s.scaled and not s.only and c:word("rope.scaling.type", "linear") == "none" and factor_of(c) ~= 1 then
      c:fail("rope.scaling.factor", "%s must be 1 with rope.scaling.type none: llama.cpp takes it in layers with a " ..
        "window alone", factor_of(c))
    end
    keys.window_left, keys.window_right = window_of(s.fixed or rows, s.both)
    if keys.rope then
      keys.rope_theta = base
      if s.scaled then keys.scaling = s.scaled(c) end
    end
    return keys
  end
end

-- Windows of some models have the factor of cosines and sines alone.
function M.factor_alone(c)
  local factor = c:positive("rope.scaling.attn_factor", 1)
  return function() return angles.linear(1, factor) end
end

function M.plain() return nil end

-- Rope where a layer has a window.
function M.in_windows(_, _, has) return has end

-- Also in the first layers, whose feed-forward has no experts.
function M.in_first(c, i, has)
  local first = c:number "leading_dense_block_count"
  return has or i < first
end

-- Every fourth layer has no rope, from the first on.
function M.not_first(_, i) return i % 4 ~= 0 end

-- Every fourth layer has no rope.
function M.some_rope(kind)
  local of = rope(kind)
  return function(c, i, sizes)
    local keys = of(c, i, sizes)
    return (i + 1) % 4 ~= 0 and keys or {}
  end
end

local SECTIONS = "rope.dimension_sections"

local function sections_of(c)
  local list = c:list(SECTIONS) or c:fail(SECTIONS, "is missing")
  if #list ~= 4 or list[4] ~= 0 then c:fail(SECTIONS, "must be 4 numbers, of which the last is 0") end
  return list
end

-- Rope whose pairs have places of three kinds, which are the same in texts; the fourth is always 0 there.
function M.sections(c, i, sizes)
  sections_of(c)
  return rope "half"(c, i, sizes)
end

-- The same where there are sections, else rope of a kind.
function M.some_sections(kind)
  return function(c, i, sizes)
    local list = c:has(SECTIONS) and sections_of(c)
    return rope(list and list[1] > 0 and list[2] > 0 and "half" or kind)(c, i, sizes)
  end
end

-- Kinds of places take turns. Pairs of a kind that has no more of them have the fourth place.
function M.turns_of_sections(c, i, sizes)
  local keys, list = rope "half"(c, i, sizes), sections_of(c)
  local count, of = list[1] + list[2] + list[3], keys.scaling
  if count < 1 then c:fail(SECTIONS, "has no pairs") end
  keys.scaling = function(theta, pairs)
    local scaled = of(theta, pairs)
    return { factor = scaled.factor, divide = function(turns, places)
      return angles.hold(scaled.divide(turns, places), function(pair)
        return pair % count >= 3 * list[pair % count % 3 + 1]
      end)
    end }
  end
  return keys
end

return M
