-- Products of rows and a matrix that a whole model has besides its layers, as kernels without attention.

local kernel = require "command.kernel"

local M = {}

-- Keys that say how a product is computed.
local OF_PRODUCTS = { "isa", "cpu", "dtype", "weight_dtype", "group", "sum_dtype" }

-- Adds the kernel of some products with matrices of their own. Returns it: { cfg, layers, number }.
--   size    { rows, depth = numbers of a row, width = those of a row of the result, act = what becomes of the result;
--           eps = of a layer norm behind that; lengths = whether runs may have less rows }; the last three may be nil
--   layers  { name, weights } of each
function M.add(kernels, given, size, layers)
  local words = { "attention=none", "seq=" .. size.rows, "d_model=" .. size.depth, "y_width=" .. size.width }
  words[#words + 1] = size.act and "out_act=" .. size.act
  if size.eps then words[#words + 1], words[#words + 2] = "norm=post", ("layer_eps=%.17g"):format(size.eps) end
  words[#words + 1] = size.lengths and "q_len=true"
  for _, key in ipairs(OF_PRODUCTS) do words[#words + 1] = given[key] and ("%s=%s"):format(key, given[key]) end
  local entry = { cfg = kernel.load_config(words), layers = layers, number = #kernels }
  for _, layer in ipairs(layers) do layer.keys, layer.kernel = {}, entry end
  kernels[#kernels + 1] = entry
  return entry
end

return M
