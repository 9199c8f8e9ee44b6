-- Keys of what is around attention, for rows of gen/model/whole_families.lua. Several kinds of models share each of
-- them.

local family_keys = require "model.family_keys"

local M = {}

local always, joined = family_keys.always, family_keys.joined

-- Norms behind attention and behind the feed-forward, as in the first transformer.
function M.post_norm(eps, ffn, act)
  return { norm = "post", residual = true, layer_eps = eps, ffn = ffn, ffn_act = act, q_len = true }
end

-- Those of Llama: norms in front, without a mean, and gates.
function M.pre_norm(eps, ffn, act)
  return { norm = "pre", norm_kind = "rms", residual = true, layer_eps = eps, ffn = ffn, ffn_act = act,
           ffn_gate = true }
end

-- Norms in front of and behind each branch.
M.sandwich = joined(M.pre_norm, always { norm = "sandwich" })

-- Layer norms in front, without gates.
function M.plain_pre_norm(eps, ffn, act)
  return { norm = "pre", residual = true, layer_eps = eps, ffn = ffn, ffn_act = act }
end

-- The same of ModernBERT, with gates. first: the first layer has no norm for attention, because its rows have one.
function M.modernbert(first, eps, ffn, act)
  return { norm = first and "ffn" or "pre", residual = true, layer_eps = eps, ffn = ffn, ffn_act = act,
           ffn_gate = true, q_len = true }
end

return M
