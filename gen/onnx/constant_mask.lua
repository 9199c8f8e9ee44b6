-- The mask of a layer of an ONNX graph as a file, where it depends on no input, such as a bias by distance.
--
--   of(find, layer, cfg) -> a .npy file of NumPy, whose numbers begin at byte 128, as args.mask of a kernel has them;
--                           nil where inputs change the mask, or where cfg has another one
--   MARK                 what such files begin with

local arguments = require "onnx.arguments"
local constants = require "onnx.constants"
local evaluate = require "onnx.evaluate"
local unseen = require "onnx.unseen"

local M = {}

M.MARK = "\x93NUMPY\1\0"

local MOST = 1 << 24 -- numbers of a file
local CHUNK = 1 << 7
local HEAD = 128

local kinds = { add = { "<f4", "f" }, bool = { "|b1", "B" } } -- as NumPy and string.pack name them

local function head(kind, shape)
  local axes = table.concat(shape, ", ") .. (#shape == 1 and "," or "")
  local text = ("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }"):format(kind, axes)
  local width = HEAD - #M.MARK - 2
  return M.MARK .. string.pack("<I2", width) .. text .. (" "):rep(width - 1 - #text) .. "\n"
end

local function numbers(list, format)
  local parts = {}
  for first = 1, #list, CHUNK do
    local last = math.min(first + CHUNK - 1, #list)
    parts[#parts + 1] = string.pack("<" .. format:rep(last - first + 1), table.unpack(list, first, last))
  end
  return table.concat(parts)
end

function M.of(find, layer, cfg)
  local masks, keys, extents = layer.inputs.masks, layer.mask_keys, layer.extents
  if #masks == 0 or #unseen.fixed(find, layer) < #masks then return nil end
  if cfg.mask ~= keys.mask or cfg.mask_dims ~= keys.mask_dims or cfg.seq ~= extents.q or cfg.seq_kv ~= extents.k then
    return nil
  end
  local shape, count, names = {}, 1, {}
  for letter in keys.mask_dims:gmatch "." do
    shape[#shape + 1], count = extents[letter], count * extents[letter]
  end
  if count > MOST then return nil end
  for i, mask in ipairs(masks) do names[i] = mask.value end
  local arrays = find.graph.tools.arrays
  local plan = evaluate.plan(find.graph, find.elements.shapes, names, {})
  local values = plan and evaluate.run(plan, arrays, {}, constants.of, true)
  if not values then return nil end
  local kind = kinds[keys.mask]
  local at = arguments.mask({ layer = layer, arrays = arrays }, values, masks)
  return head(kind[1], shape) .. numbers(arrays.list(at, 0, count), kind[2])
end

return M
