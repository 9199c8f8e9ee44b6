-- Which numbers of a quantized matrix share a scale, by the fields of quantization_config.
--
--   M.group_size(c, width, default)   the numbers of a column that do
--   M.scheme(joined, part, c)         of compressed-tensors: { bits, block }
--   M.fp8(joined, part, c)            of other FP8: a block
--
-- A block has the rows `down` and the columns `across`; both are nil where it is the whole matrix.

local tensors = require "model.tensors"
local wording = require "base.wording"

local M = {}

function M.ceil_div(a, b) return (a + b - 1) // b end

-- The size that a config has for the groups of a column: -1 is the whole column.
function M.group_size(c, width, default)
  local size = c:number("group_size", default)
  if size == -1 then return width end
  if math.type(size) ~= "integer" or size < 1 then c:fail("group_size", "%s must be -1 or a number from 1 on", size) end
  return math.min(size, width)
end

local ceil_div, group_size = M.ceil_div, M.group_size

local function pair_of(c, name, default)
  local list = c:list(name) or default
  for i = 1, 2 do
    if math.type(list[i]) ~= "integer" or list[i] < 1 or #list ~= 2 then c:fail(name, "must be two numbers") end
  end
  return { down = list[1], across = list[2] }
end

local strategies = {
  tensor = function() return {} end,
  channel = function(_, width) return { down = 1, across = width } end,
  group = function(c, width) return { down = 1, across = group_size(c, width) } end,
  block = function(c) return pair_of(c, "block_structure", {}) end,
}

-- Whether scales are of such blocks.
local function has_blocks(scales, part, block)
  if not block.down then return tensors.count(scales) == 1 end
  local rows, columns = ceil_div(part.features, block.down), ceil_div(part.width, block.across)
  return scales.shape[1] == rows and (scales.shape[2] or 1) == columns and #scales.shape <= 2
end

-- Of compressed-tensors: the formats of its tensors, and how it calls their types.
local formats = {
  weight_packed = { ["pack-quantized"] = true },
  weight = { ["int-quantized"] = true, ["float-quantized"] = true, ["naive-quantized"] = true },
}
local kinds_of = { I32 = "int", I8 = "int", F8_E4M3 = "float" }

-- What a group of a config says of weights.
local function weights_of(group)
  local c = group:object "weights"
  if not c then return nil end
  return { c = c, bits = c:int("num_bits", 8), kind = c:word("type", "int"), strategy = c:word("strategy", "tensor"),
           dynamic = c:has "dynamic", symmetric = c:has "symmetric", actorder = c:word("actorder", "weight"),
           size = c:has "group_size", structure = c:has "block_structure" }
end

-- The bits and the block of a tensor by a group of a config, or nil where the tensor is another.
local function fitting(joined, part, weights)
  local c, quants = weights.c, joined.quants
  local bits = joined.kind.quants == "weight" and 8 or quants.shape[2] and quants.shape[2] * 32 / part.width
  if weights.bits ~= bits or weights.kind ~= kinds_of[quants.type] then return nil end
  local of = strategies[weights.strategy] or c:fail("strategy", "%s is not read", wording.short(weights.strategy))
  local block = of(c, part.width)
  if not has_blocks(joined.scales, part, block) then return nil end
  c:only("symmetric", true)
  c:only("dynamic", false)
  if (weights.actorder == "group" or weights.actorder == "dynamic") and not joined.order then
    c:fail("actorder", "%s, and no tensor weight_g_idx is there", weights.actorder)
  end
  return { bits = weights.bits, block = block }
end

-- The groups of a config name their modules by expressions of Python. Those that fit a tensor must mean the same.
function M.scheme(joined, part, c)
  local groups, found, names = c:object "config_groups", nil, {}
  if not groups then c:fail("config_groups", "is missing") end
  local sparsity, format = c:object "sparsity_config", c:word("format", "")
  if sparsity then sparsity:only("format", "dense") end
  for name in pairs(groups.values) do names[#names + 1] = tostring(name) end
  table.sort(names)
  for _, name in ipairs(names) do
    local group = groups:object(name) or groups:fail(name, "must be an object")
    local weights, own = weights_of(group), group:word("format", format)
    local fits = weights and formats[joined.kind.quants][own] and fitting(joined, part, weights)
    if fits and found and (fits.block.down ~= found.block.down or fits.block.across ~= found.block.across) then
      groups:fail(name, "tensor %s may be of this group and of another", wording.short(joined.quants.name))
    end
    found = found or fits
  end
  if found then return found end
  tensors.fail(joined.quants, "is %s of %s with scales of %s, and %s has none such for %d x %d numbers",
               joined.quants.type, tensors.shape_text(joined.quants.shape), tensors.shape_text(joined.scales.shape),
               c:full "config_groups", part.features, part.width)
end

-- FP8 of other programs: one scale, one for each row, or by blocks.
function M.fp8(joined, part, c)
  local scales = joined.scales
  c:only("fmt", "e4m3")
  local block = pair_of(c, "weight_block_size", { 128, 128 })
  for _, other in ipairs { {}, { down = 1, across = part.width } } do
    if has_blocks(scales, part, other) then return other end
  end
  return block
end

return M
