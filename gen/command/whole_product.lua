-- Kernels that a whole model has besides those of its layers: mostly without attention, products of rows and a matrix.

local kernel = require "command.kernel"

local M = {}

-- Keys that say how a product is computed, and attention with a feed-forward.
local OF_PRODUCTS = { "isa", "cpu", "dtype", "weight_dtype", "group", "sum_dtype" }
local OF_ATTENTION = { "attend_dtype", "value_weight_dtype", "ffn_dtype" }

-- Adds a kernel and returns it: { cfg, layers, number }. Its config is `words`, and the given keys that only say how it
-- is computed.
function M.kernel(kernels, given, words, layers, has_attention)
  for _, list in ipairs { OF_PRODUCTS, has_attention and OF_ATTENTION or {} } do
    for _, key in ipairs(list) do words[#words + 1] = given[key] and ("%s=%s"):format(key, given[key]) end
  end
  local entry = { cfg = kernel.load_config(words), layers = layers, number = #kernels }
  for _, layer in ipairs(layers) do layer.keys, layer.kernel = {}, entry end
  kernels[#kernels + 1] = entry
  return entry
end

-- Adds the kernel of some products with matrices of their own, and returns it.
--   size    { rows, depth = numbers of a row, width = those of a row of the result, act = what becomes of the result;
--           norm = { place = pre or post, kind, eps } of one before or behind that; lengths = whether runs may have
--           less rows }; the last three may be nil
--   layers  { name, weights } of each
function M.add(kernels, given, size, layers)
  local words = { "attention=none", "seq=" .. size.rows, "d_model=" .. size.depth, "y_width=" .. size.width }
  words[#words + 1] = size.act and "out_act=" .. size.act
  local norm = size.norm
  if norm then
    words[#words + 1], words[#words + 2] = "norm=" .. norm.place, "norm_kind=" .. norm.kind
    words[#words + 1] = ("layer_eps=%.17g"):format(norm.eps)
  end
  words[#words + 1] = size.lengths and "q_len=true"
  return M.kernel(kernels, given, words, layers)
end

return M
