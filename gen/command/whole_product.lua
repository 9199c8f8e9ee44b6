-- Products of rows and a matrix that a whole model has besides its layers, as kernels.

local kernel = require "command.kernel"
local options = require "options.init"

local M = {}

-- Keys that say how a product is computed.
local OF_PRODUCTS = { "isa", "cpu", "dtype", "weight_dtype", "group", "sum_dtype" }

-- The heads of a kernel whose values are a row of so many numbers, and how many each has.
local function heads_of(width)
  for h = 1, options.list.h.max do
    if width % h == 0 and width // h <= options.list.dv.max then return h, width // h end
  end
  error({ message = ("--whole: rows of %d numbers have no kernel"):format(width) }, 0)
end

-- The config of a product of so many rows of `depth` numbers. A query sees one key, its own. So its attention weight is
-- 1, and Wo is multiplied by the rows that are given as values. templates/whole_product.c.in calls the kernel.
local function config_of(rows, depth, width, given)
  local h, dv = heads_of(depth)
  local words = { "attention=cross", "project=o", "dk=1", "attend_dtype=f32", "seq=" .. rows, "h=" .. h,
                  "d_model=" .. h, "dv=" .. dv, "y_width=" .. width }
  if rows > 1 then table.move({ "window_left=0", "window_right=0" }, 1, 2, #words + 1, words) end
  for _, key in ipairs(OF_PRODUCTS) do words[#words + 1] = given[key] and ("%s=%s"):format(key, given[key]) end
  return kernel.load_config(words)
end

-- Adds the kernel of some products of { rows, depth, width } with matrices of their own; layers: { name, weights } of
-- each. Returns it: { cfg, layers, number, zeros = what the queries and keys of a run need }.
function M.add(kernels, given, size, layers)
  local cfg = config_of(size[1], size[2], size[3], given)
  local entry = { cfg = cfg, layers = layers, number = #kernels, zeros = size[1] * cfg.h }
  for _, layer in ipairs(layers) do layer.keys, layer.kernel = {}, entry end
  kernels[#kernels + 1] = entry
  return entry
end

return M
