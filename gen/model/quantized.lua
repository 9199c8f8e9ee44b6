-- Weights that another program has quantized: the tensors of integers, scales and zeros are joined as NAME.weight.
--
--   M.join(all)                puts joined tensors in the place of those in `all` that they are made of
--   M.fit(part, tensor, c)     gives a part of a layer such a tensor; c: the fields of quantization_config, or nil
--
-- A part then has
--
--   tensor      of integers, with the shape of the matrix
--   interleave  numbers of a column that lie side by side in the file
--   scaled      the parts of other tensors that have its scales and zeros
--   title       what a summary says
--   group       the size of groups whose integers are those of int4, or nil

local cursor = require "model.cursor"
local tensors = require "model.tensors"
local wording = require "base.wording"

local M = {}

-- What stands behind NAME. in the names of tensors that belong together. FP8 and int8 keep the name of the weight.
local kinds = {
  { quants = "qweight", scales = "scales", zeros = "qzeros", order = "g_idx" },
  { quants = "weight_packed", scales = "weight_scale", zeros = "weight_zero_point", order = "weight_g_idx",
    shape = "weight_shape" },
  { quants = "weight", scales = "weight_scale_inv", activations = "input_scale", types = { F8_E4M3 = true } },
  { quants = "weight", scales = "weight_scale", zeros = "weight_zero_point", activations = "input_scale",
    types = { F8_E4M3 = true, I8 = true } },
}

local function join_kind(kind, all, name)
  local base = name:match("^(.*%.)" .. kind.quants .. "$")
  local quants, scales = all[name], base and all[base .. kind.scales]
  if not scales or kind.types and not kind.types[quants.type] then return false end
  local joined = { kind = kind }
  for field, behind in pairs(kind) do
    if field ~= "types" then joined[field], all[base .. behind] = all[base .. behind], nil end
  end
  if all[base .. "weight"] then tensors.fail(all[base .. "weight"], "is there beside %s", wording.short(name)) end
  all[base .. "weight"] = { name = base .. "weight", path = quants.path, file = quants.file, at = quants.at,
                            type = quants.type, shape = quants.shape, joined = joined }
  return true
end

function M.join(all)
  local names = {}
  for name in pairs(all) do names[#names + 1] = name end
  for _, name in ipairs(names) do
    for _, kind in ipairs(kinds) do
      if all[name] and join_kind(kind, all, name) then break end
    end
  end
end

-- ---- what is read ----

-- A tensor of this type and shape, the sizes of its axes.
local function require_shape(tensor, kind, ...)
  local wanted = tensors.shape_text { ... }
  if tensor.type ~= kind or tensors.shape_text(tensor.shape) ~= wanted then
    tensors.fail(tensor, "is %s of %s, and by the config it must be %s of %s", wording.short(tensor.type),
                 tensors.shape_text(tensor.shape), kind, wanted)
  end
  if kind == "I32" and tensor.bytes then tensors.require_bytes(tensor, 4 * tensors.count(tensor), tensor.bytes) end
end

local function require_scales(tensor, ...)
  if tensor.type ~= "F16" and tensor.type ~= "BF16" and tensor.type ~= "F32" then
    tensors.fail(tensor, "scales of type %s are not read", wording.short(tensor.type))
  end
  require_shape(tensor, tensor.type, ...)
end

-- The same bytes as numbers of another type.
local function as(tensor, kind, ...)
  return { name = tensor.name, path = tensor.path, file = tensor.file, at = tensor.at, type = kind, shape = { ... } }
end

-- Where all its bytes are asked for.
local function bytes_of(tensor)
  local at = cursor.new(tensor.file, tensor.path, tensor.at)
  return at:bytes(4 * tensors.count(tensor), wording.short(tensor.name))
end

-- The numbers of another tensor for the features of a part, `count` for each; by_group: [count][features] in the file.
local function beside(part, tensor, count, by_group)
  return { tensor = tensor, features = part.features, width = count, in_out = by_group, turned = by_group,
           blocks = part.blocks, count = part.count, first = part.first, step = part.step }
end

-- The groups of a column, whose scales are one axis of a tensor.
local function count_of(scales, axis, part)
  local count = #scales.shape == 2 and scales.shape[axis] or 0
  if count == 0 or part.width % count ~= 0 then
    tensors.fail(scales, "its shape %s has no whole groups of %d numbers", tensors.shape_text(scales.shape), part.width)
  end
  return count
end

local PLAIN = { [4] = "U4", [8] = "U8" } -- types by bits, the lowest bits first

-- The size of groups whose integers are those of int4, or nil.
function M.int4_group(bits, size, symmetric)
  return bits == 4 and symmetric and size % 8 == 0 and size <= 16384 and size or nil
end

local function refuse_zeros(joined)
  if joined.zeros then tensors.fail(joined.zeros, "zeros that are not the middle are not read") end
end

-- Columns that were sorted by importance have scales that do not follow each other.
local function check_order(order, width, size)
  if not order then return end
  require_shape(order, "I32", width)
  local bytes = bytes_of(order)
  for i = 0, width - 1 do
    local group = string.unpack("<i4", bytes, 4 * i + 1)
    if group ~= i // size then
      tensors.fail(order, "column %d has the scale of group %d: the order of desc_act or actorder is not read", i,
                   group)
    end
  end
end

-- A zero that is stored less 1, and is the largest number, is read in two ways.
local function check_zeros(zeros, bits)
  local byte = bits == 4 and "[\x0f\x1f\x2f\x3f\x4f\x5f\x6f\x7f\x8f\x9f\xaf\xbf\xcf\xdf\xef\xf0-\xff]" or "\xff"
  if bytes_of(zeros):find(byte) then
    local most = 1 << bits
    tensors.fail(zeros, "a zero of %d, which programs read as 0 or as %d", most - 1, most)
  end
end

-- Words of 32 bits: gptq has rows of them in the place of so many rows, and a zero less 1 in its first format; awq has
-- them in the place of columns, in an order of its own.
local methods = {
  gptq = { types = PLAIN, by_rows = true, name = "checkpoint_format", formats = { gptq = 1, gptq_v2 = 0 },
           format = "gptq" },
  awq = { types = { [4] = "U4_AWQ" }, name = "version", formats = { gemm = 0 }, format = "gemm" },
}

-- The row of methods, the bits of a number, and what is added to zeros.
local function method_of(joined, c)
  if not c then tensors.fail(joined.quants, "config.json has no quantization_config") end
  local method = methods[c:word "quant_method"]
  if not method then
    c:fail("quant_method", "%s is not read; gptq and awq are", wording.short(c:word "quant_method"))
  end
  local format, bits = c:word(method.name, c:word("format", method.format)):lower(), c:int "bits"
  local plus = method.formats[format] or c:fail(method.name, "%s is not read", wording.short(format))
  if not method.types[bits] then c:fail("bits", "%d is not read", bits) end
  if not joined.zeros then tensors.fail(joined.quants, "its qzeros are missing") end
  return method, bits, plus
end

local function fit_words(joined, part, c)
  local method, bits, plus = method_of(joined, c)
  local count, in_word, features = count_of(joined.scales, 1, part), 32 // bits, part.features
  local group, size = part.width // count, c:number("group_size", 128)
  if size ~= group and (size ~= -1 or count > 1) then
    c:fail("group_size", "%s, and tensor %s has groups of %d", wording.short(size), wording.short(joined.scales.name),
           group)
  end
  if features % in_word > 0 or part.width % in_word > 0 then
    tensors.fail(joined.quants, "a matrix of %d x %d has no whole words of 32 bits", part.width, features)
  end
  require_scales(joined.scales, count, features)
  require_shape(joined.zeros, "I32", count, features // in_word)
  if method.by_rows then
    require_shape(joined.quants, "I32", part.width // in_word, features)
    part.interleave = in_word
  else
    require_shape(joined.quants, "I32", part.width, features // in_word)
  end
  check_order(joined.order, part.width, group)
  if plus > 0 then check_zeros(joined.zeros, bits) end
  local kind = method.types[bits]
  local zeros, all = beside(part, as(joined.zeros, kind, count, features), count, true), part.blocks * part.count
  zeros.integers, zeros.scaled = true, { { by = { 1 }, zeros = -plus, columns = count, down = all, across = count } }
  part.tensor, part.in_out, part.turned = as(joined.quants, kind, part.width, features), true, true
  part.scaled = { { by = beside(part, joined.scales, count, true), zeros = zeros, columns = part.width, down = 1,
                    across = group } }
  part.title = ("%s of %d bits"):format(c:word "quant_method", bits)
  part.group = M.int4_group(bits, group, c:flag("sym", false))
end

-- compressed-tensors: words have numbers of a row, and the zero is the middle.
local function fit_packed(joined, part)
  refuse_zeros(joined)
  local columns = #joined.quants.shape == 2 and joined.quants.shape[2] or 0
  local bits = columns * 32 // part.width
  if not PLAIN[bits] or bits * part.width ~= columns * 32 then
    tensors.fail(joined.quants, "its shape is %s, in which a row of %d numbers has neither 4 nor 8 bits for each",
                 tensors.shape_text(joined.quants.shape), part.width)
  end
  require_shape(joined.quants, "I32", part.features, columns)
  local count = count_of(joined.scales, 2, part)
  require_scales(joined.scales, part.features, count)
  check_order(joined.order, part.width, part.width // count)
  part.tensor = as(joined.quants, PLAIN[bits], part.features, part.width)
  part.scaled = { { by = beside(part, joined.scales, count), zeros = 1 << (bits - 1), columns = part.width, down = 1,
                    across = part.width // count } }
  part.title, part.group = ("integers of %d bits"):format(bits), M.int4_group(bits, part.width // count, true)
end

-- Scales of square blocks: their size, and those of the part.
local function blocks_of(scales, part)
  local count = count_of(scales, 2, part)
  local size = part.width // count
  require_scales(scales, (part.features + size - 1) // size, count)
  if part.blocks > 1 or part.first % size > 0 then
    tensors.fail(scales, "blocks of %d rows, of which a part begins in the middle", size)
  end
  local by = beside(part, scales, count)
  by.features, by.first, by.count = scales.shape[1], part.first // size, (part.count + size - 1) // size
  return size, by
end

-- FP8 and int8: a scale for all, for each row, or for each square block.
local function fit_scaled(joined, part, c)
  refuse_zeros(joined)
  require_shape(joined.quants, joined.quants.type, part.features, part.width)
  local scales, by, size = joined.scales, nil, nil
  local down, across, numbers = 1, part.width, tensors.count(scales)
  if numbers == 1 then
    by, down = { tensor = scales, features = 1, blocks = 1, count = 1, first = 0, step = 1 }, part.blocks * part.count
  elseif numbers == part.features and (scales.shape[2] or 1) == 1 then
    by = beside(part, scales, 1)
  else
    size, by = blocks_of(scales, part)
    down, across = size, size
  end
  require_scales(scales, table.unpack(scales.shape))
  for _, wanted in ipairs(size and c and c:list "weight_block_size" or {}) do
    if wanted ~= size then
      c:fail("weight_block_size", "%s, and tensor %s has blocks of %d", wording.short(wanted),
             wording.short(scales.name),
             size)
    end
  end
  if c then c:word("scale_fmt", "float") end -- which the type of the scales says, too
  part.tensor, part.title = as(joined.quants, joined.quants.type, part.features, part.width), joined.quants.type
  part.scaled = { { by = by, zeros = 0, columns = part.width, down = down, across = across } }
end

local fits = { qweight = fit_words, weight_packed = fit_packed, weight = fit_scaled }

function M.fit(part, tensor, c)
  if part.in_out or not part.width then tensors.fail(tensor, "is quantized, and is no matrix of nn.Linear") end
  fits[tensor.joined.kind.quants](tensor.joined, part, c)
  part.integers = true
end

return M
