-- The keys of attention in further models of sounds and of series of numbers, as gen/model/family_keys.lua has them.

local k = require "model.family_keys"

local M = {}

-- Fields of what is beside attention in layers of a Conformer.
M.CONFORMER = "batch_norm_momentum conv_residual_weights feed_forward_residual_weights convolution_bias"

M.unscaled = k.always { scale = 1 }

-- Keys and values of another width, that of an encoder.
function M.cross_width(c)
  local width = c:int "cross_hidden_size"
  return { k_width = width, v_width = width }
end

-- A window of each layer, { rows before with the row itself, rows behind with it }; it counts where keys have padding.
function M.sliding(c, i)
  local all = c:list "sliding_windows" or { { 16, 4 }, { 16, 4 }, { 16, 0 }, { 16, 0 }, { 16, 4 }, { 16, 4 } }
  local pair = all[i + 1]
  if not pair then return { limit = { 0, "sliding_windows", "has no windows of some layers" } } end
  local left, right = table.unpack(type(pair) == "table" and pair or {})
  if math.type(left) ~= "integer" or math.type(right) ~= "integer" or left < 1 or right < 0 then
    c:fail("sliding_windows", "element %d must be two numbers", i + 1)
  end
  return { window_left = left - 1, window_right = math.max(0, right - 1) }
end

-- Biases would be apart from their map.
function M.unbiased(c)
  c:only("attention_bias", false)
  return {}
end

-- Transformers cuts a joint map into thirds.
function M.thirds(c, _, sizes)
  if sizes.h_kv ~= sizes.h then
    c:fail("num_key_value_heads", "must be num_attention_heads: Q, K and V are thirds of a joint map")
  end
  return {}
end

-- A model sees all keys, but its cache keeps the last of them.
function M.kept(c)
  return { limit = { c:int "sliding_window", "sliding_window", "a cache keeps so many rows" } }
end

-- Angles grow with the number of the head, not with the place, so that queries and keys of a head are turned alike, and
-- their scores stay.
function M.by_heads(c)
  local rope = c:object "rope_parameters"
  if rope then
    rope:only("rope_type", "default")
    rope:positive("rope_theta", 10000)
  end
  return {}
end

-- Names that fields of encoders like Whisper's had before.
M.WHISPER = { hidden_size = "d_model", num_hidden_layers = "encoder_layers",
              num_attention_heads = "encoder_attention_heads" }

-- Queries that are drawn see all keys, and others have a mean, unless the config says otherwise.
function M.informer(stacks)
  for _, of in ipairs(stacks) do
    local keys = of.keys
    of.keys = function(c, i, sizes)
      local made = keys(c, i, sizes)
      if c:word("attention_type", "prob") ~= "full" and made.attention ~= "cross" then
        made.limit = { 0, "attention_type", "is not full: some queries alone are computed" }
      end
      return made
    end
  end
  return stacks
end

return M
