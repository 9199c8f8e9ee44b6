-- A head that pools rows by attention: one query, which is a weight, over all of them, with a feed-forward behind it.
--
-- add(kernels, given, cfg, probe, part) returns its kernel, and the part of the query.
--
--   cfg     of a layer of the model. The head has its heads, widths and activation.
--   probe   of gen/model/whole_heads.lua.
--   part    of (name of a tensor, rows, width, more), as of gen/model/layers.lua.

local layers = require "model.layers"
local whole_product = require "command.whole_product"

local M = {}

local SAME = { "h", "layer_eps", "ffn", "ffn_act" } -- keys of the layers that the head has too

function M.add(kernels, given, cfg, probe, part)
  local width, joint = cfg.y_width, probe.attention .. ".in_proj_"
  local keys, all = { attention = "cross", d_model = width, dk = width // cfg.h, seq = 1, seq_kv = cfg.seq,
                      norm = "ffn" }, {}
  for _, key in ipairs(SAME) do keys[key] = cfg[key] end
  local words = layers.key_list(keys)
  local function add(matrix, bias, module, rows, columns)
    all[matrix], all[bias] = part(module .. ".weight", rows, columns), part(module .. ".bias", rows)
  end
  for i, letter in ipairs { "q", "k", "v" } do
    local of = { first = (i - 1) * width, count = width }
    all["w" .. letter] = part(joint .. "weight", 3 * width, width, of)
    all["b" .. letter] = part(joint .. "bias", 3 * width, nil, of)
  end
  add("wo", "bo", probe.attention .. ".out_proj", width, width)
  add("norm2", "norm2_bias", probe.norm, width)
  add("w1", "b1", probe.maps[1], cfg.ffn, width)
  add("w2", "b2", probe.maps[2], width, cfg.ffn)
  local entry = whole_product.kernel(kernels, given, words, { { name = probe.attention, weights = all } }, true)
  return entry, part(probe.query, 1, width, { shape = { 1, 1, width } })
end

return M
