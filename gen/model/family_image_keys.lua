-- The keys of attention in further models of images, as gen/model/family_keys.lua has them.

local k = require "model.family_keys"

local M = {}

-- Keys that rows see: padding of images is between others, so it is no length but a mask, which is the caller's.
M.SOME_KEYS = k.always { mask = "add", mask_dims = "bk" }
M.SOME = k.always { mask = "add", mask_dims = "bqk" }

-- A bias of places, of each layer or of all.
function M.relative(c)
  local own, shared = c:flag("use_relative_position_bias", false), c:flag("use_shared_relative_position_bias", false)
  return (own or shared) and k.BIAS() or {}
end

-- The layers are those of a model of its own, unless that is of convolutions.
function M.dpt(c)
  if not c:flag("is_hybrid", false) then c:only "backbone_config" end
  return {}
end

-- Keys and values of another width, that of an encoder. default: where the config does not say it.
function M.of_encoder(default)
  return function(c)
    local width = c:int("encoder_hidden_size", default)
    return { attention = "cross", k_width = width, v_width = width }
  end
end

-- Norms of all heads of a row at once. The model's code has the number that is added, whatever layer_norm_eps is.
function M.internvl(c)
  return c:flag("use_qk_norm", false) and { qk_norm = "rms", norm_span = "all", norm_eps = 1e-6 } or {}
end

-- Its norms would be of a width that no head has.
function M.janus(c)
  c:only("use_qk_norm", false)
  return {}
end

M.BUCKETS = "relative_attention_num_buckets relative_attention_max_distance"

-- Stacks with a head for each 64 columns.
function M.heads_of_64(of)
  return function(c)
    of.h = math.max(1, c:int "hidden_size" // 64)
    return { of }
  end
end

return M
