-- The keys of attention in decoders whose layers differ, as gen/model/family_keys.lua has them for others; and which
-- layers of a model are attention at all.

local k = require "model.family_keys"
local wording = require "base.wording"

local M = {}

-- Windows in all layers but each so many-th, by a field; a list of layers is read instead.
function M.pattern(default)
  return function(i, c)
    return not c:list "layer_types" and (i + 1) % c:int("sliding_window_pattern", default) ~= 0
  end
end

-- Rope in the layers that have a window. slides: of (number of the layer, fields) where there is no list of layers.
-- always: also in those without one, where the config has no window.
local function slid_rope(kind, slides, always)
  local rope, window = k.rope(kind), k.window(slides)
  return function(c, i, sizes)
    local slides_here = k.kind_of(c, i, not slides(i, c)) == "sliding_attention"
    local turned, keys = rope(c, i, sizes), window(c, i)
    local with = always and not c:has "sliding_window" or slides_here and c:has "sliding_window"
    for key, value in pairs(with and turned or {}) do keys[key] = value end
    return keys
  end
end

function M.cohere2() return slid_rope("interleaved", M.pattern(4)) end

function M.exaone4(slides) return k.joined(slid_rope("half", slides, true), k.rms) end

-- Both kinds of layers have a rope of their own.
function M.mellum(c, i, sizes)
  local kind = k.kind_of(c, i, true)
  return k.turned(c, sizes, { kind = "half", layers = kind, theta = kind == "full_attention" and 5e5 or 1e4,
                              theta_of = {}, part = 1 })
end

function M.late(i, c) return i >= c:number("max_window_layers", 62) end

function M.all_but_each(n)
  return function(i) return i % n ~= 0 end
end

function M.glm4_moe(c)
  if not c:flag("use_qk_norm", false) then return {} end
  return { qk_norm = "rms", norm_eps = c:positive("rms_norm_eps", 1e-5) }
end

-- Two fields say how many columns are turned.
function M.minimax_m2(c, _, sizes)
  local dims = c:int("rotary_dim", false)
  local keys = k.turned(c, sizes, { kind = "half", theta = 5e6, part = dims and dims / sizes.dk or 1 })
  if dims and keys.rope_dims ~= dims then c:fail("rotary_dim", "%d, and another part of a head is turned", dims) end
  return keys
end

-- Angles that grow the other way round, which norms without gains follow; they undo a factor of the tables.
function M.turned_back(c, i, sizes)
  local keys = k.rope "half"(c, i, sizes)
  local scaling = keys.scaling
  keys.scaling = function(theta, pairs)
    local found = scaling and scaling(theta, pairs)
    return { factor = 1, back = true, divide = function(turns, places)
      local back = {}
      for pair, turn in ipairs(found and found.divide and found.divide(turns, places) or turns) do
        back[pair] = -turn
      end
      return back
    end }
  end
  return k.joined(k.always(keys), k.rms)(c)
end

function M.norm_eps(c) return { qk_norm = "rms", norm_eps = c:positive("norm_eps", 1e-5) } end

function M.multiplier(c, _, sizes) return { scale = c:positive("attention_multiplier", sizes.dk ^ -0.5) } end

-- The model multiplies its keys by a factor.
function M.falcon_h1(c, _, sizes)
  local factor = c:positive("key_multiplier", 1)
  return { scale = factor ~= 1 and factor * sizes.dk ^ -0.5 or nil }
end

function M.granite_hybrid(c, i, sizes)
  local rope = k.rope "half"(c, i, sizes)
  if c:word("position_embedding_type", "none") == "rope" then return rope end
  if rope.scaling then rope.scaling(rope.rope_theta, sizes.dk // 2) end -- its fields are known
  return {}
end

function M.bamba(c, _, sizes)
  local part = c:positive("partial_rotary_factor", 0.5)
  if part ~= 0.5 then c:fail("partial_rotary_factor", "%s, and transformers takes 0.5 always", part) end
  return k.turned(c, sizes, { kind = "half", theta = 10000, theta_of = { "rope_theta" }, part = 0.5 })
end

function M.bigcode(c, _, sizes)
  return { h_kv = c:flag("multi_query", true) and 1 or sizes.h,
           scale = not c:flag("scale_attn_weights", true) and 1 or nil }
end

-- GPT-Neo's lists: attention_layers, or [[kinds, times], ...]
local function neo_kind(c, i)
  local list = c:list "attention_layers"
  if list then return list[i + 1] end
  for _, group in ipairs(c:list "attention_types" or { { { "global", "local" }, 12 } }) do
    local kinds, times = table.unpack(type(group) == "table" and group or {})
    if type(kinds) ~= "table" or #kinds == 0 or math.type(times) ~= "integer" then
      c:fail("attention_types", "must be a list of kinds and times")
    end
    if i < #kinds * times then return kinds[i % #kinds + 1] end
    i = i - #kinds * times
  end
end

function M.gpt_neo(c, i)
  local kind, rows = neo_kind(c, i), c:int("window_size", 256)
  if kind ~= "global" and kind ~= "local" then
    c:fail("attention_layers", "%s is not known", wording.short(kind))
  end
  return { scale = 1, causal = true, window_left = kind == "local" and rows - 1 or nil }
end

-- ---- which layers are attention ----

local ATTENTION = { attention = true, full_attention = true }

-- By a list of layers; default: of (fields, number of the layer).
function M.listed(default)
  return function(c, i)
    local list = c:list "layer_types"
    if not list then return default(c, i) end
    return ATTENTION[list[i + 1]] or false
  end
end

local function has(list, number)
  for _, value in ipairs(list) do
    if value == number then return true end
  end
  return false
end

-- By a list of their numbers, which is named; every: where it is missing.
function M.numbered(name, every)
  return function(c, i)
    local list = c:list(name)
    return not list and every or has(list or {}, i)
  end
end

function M.periodic(c, i) return i % c:int("attn_layer_period", 8) == c:number("attn_layer_offset", 4) end

return M
