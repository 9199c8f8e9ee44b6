-- Weights that another program has quantized: the tensors of integers, scales and zeros are joined as NAME.weight.
--
--   M.join(all)                puts joined tensors in the place of those in `all` that they are made of
--   M.fit(part, tensor, c)     gives a part of a layer such a tensor; c: the fields of quantization_config, or nil
--   M.harmless                 fields of quantization_config that do not change what weights mean
--
-- The config says which numbers share a scale, since the shapes of tensors do not: 2 scales for 192 numbers are for 96
-- each, or for 128 and 64. Fields that are neither read nor harmless are refused (gen/model/unread.lua).
--
-- A part then has
--
--   tensor      of integers, with the shape of the matrix
--   interleave  numbers of a column that lie side by side in the file
--   scaled      the parts of other tensors that have its scales and zeros
--   title       what a summary says
--   group       the size of groups whose integers are those of int4, or nil

local blocks = require "model.quantized_blocks"
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

local PLAIN = { [4] = "U4", [8] = "U8" } -- types by bits, the lowest bits first

-- The keys that pack weights in the groups of the file, and words about what is rounded, as a list of both. Nil where
-- no keys do. Integers of 8 bits in a file may be -128, and those of a kernel begin at -127.
function M.alike(bits, size, symmetric)
  if not (bits == 8 or bits == 4 and symmetric) or size % 8 > 0 or size > 16384 then return nil end
  return { ("weight_dtype=int%d group=%d"):format(bits, size),
           bits == 4 and "with the same integers" or "with roundings of its own" }
end

-- The largest integer of each block of GGUF's Q8_0 is 127 or -127.
local of_gguf = { Q8_0 = { "weight_dtype=int8 group=32", "with the same integers" } }

function M.alike_of(part) return part.alike or of_gguf[part.tensor.type] end

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

-- Zeros of symmetric weights are the middle. Files that call their format gptq may have zeros of gptq_v2, and only
-- such weights tell.
local function require_middle(zeros, bits, plus, why)
  local middle, byte = (1 << bits - 1) - plus, 0
  for at = 0, 8 - bits, bits do byte = byte | middle << at end
  local at = bytes_of(zeros):find(("[^%c]"):format(byte))
  if at then tensors.fail(zeros, "its word %d has zeros that are not %d, and %s", (at - 1) // 4, middle, why) end
end

-- Words of 32 bits: gptq has rows of them in the place of so many rows, and a zero less 1 in its first format; awq has
-- them in the place of columns, in an order of its own. plus: of files that name no format. symmetric: the field of it,
-- and its value then. never: the backend with another order.
local words = {
  gptq = { types = PLAIN, by_rows = true, name = "checkpoint_format", formats = { gptq = 1, gptq_v2 = 0 },
           plus = 1, symmetric = { "sym", true } },
  awq = { types = { [4] = "U4_AWQ" }, name = "version", formats = { gemm = 0 }, plus = 0,
          symmetric = { "zero_point", false }, never = "llm-awq" },
}

-- What is added to zeros: both fields that may name the format must mean the same.
local function format_of(c, method)
  local plus
  for _, name in ipairs { method.name, "format" } do
    local format = c:word(name, ""):lower()
    local own = method.formats[format] or format ~= "" and c:fail(name, "%s is not read", wording.short(format))
    if own and plus and own ~= plus then c:fail(name, "%s, and %s is another", format, method.name) end
    plus = plus or own or nil
  end
  return plus or method.plus
end

local function fit_words(joined, part, c)
  local name = c:word "quant_method"
  local method, bits = words[name], c:int "bits"
  local plus = format_of(c, method)
  if not method.types[bits] then c:fail("bits", "%d is not read", bits) end
  c:only("method", name)
  c:only("pack_dtype", "int32")
  if c:word("backend", "") == method.never then c:fail("backend", "%s is not read", method.never) end
  if not joined.zeros then tensors.fail(joined.quants, "its qzeros are missing") end
  local size, in_word, features = blocks.group_size(c, part.width, 128), 32 // bits, part.features
  local count = blocks.ceil_div(part.width, size)
  if #joined.scales.shape ~= 2 or joined.scales.shape[1] ~= count then
    c:fail("group_size", "%d, and tensor %s is %s for %d numbers", size, wording.short(joined.scales.name),
           tensors.shape_text(joined.scales.shape), part.width)
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
  if c:flag("desc_act", false) and not joined.order then c:fail("desc_act", "true, and no tensor g_idx is there") end
  check_order(joined.order, part.width, size)
  local symmetric = c:flag(method.symmetric[1], not method.symmetric[2]) == method.symmetric[2]
  if symmetric then
    require_middle(joined.zeros, bits, plus, ("%s is %s"):format(c:full(method.symmetric[1]), method.symmetric[2]))
  elseif plus > 0 then
    check_zeros(joined.zeros, bits)
  end
  local kind = method.types[bits]
  local zeros, all = beside(part, as(joined.zeros, kind, count, features), count, true), part.blocks * part.count
  zeros.integers, zeros.scaled = true, { { by = { 1 }, zeros = -plus, columns = count, down = all, across = count } }
  part.tensor, part.in_out, part.turned = as(joined.quants, kind, part.width, features), true, true
  part.scaled = { { by = beside(part, joined.scales, count, true), zeros = zeros, columns = part.width, down = 1,
                    across = size } }
  part.title, part.alike = ("%s of %d bits"):format(name, bits), M.alike(bits, size, symmetric)
end

-- compressed-tensors: words have numbers of a row, and the zero is the middle.
local function fit_packed(joined, part, c)
  refuse_zeros(joined)
  local of = blocks.scheme(joined, part, c)
  local bits, across = of.bits, of.block.across
  if not PLAIN[bits] or of.block.down ~= 1 or part.width * bits % 32 > 0 then
    tensors.fail(joined.quants, "rows of %d numbers of %d bits, with a scale for each %s", part.width, bits,
                 of.block.down and ("%d x %d"):format(of.block.down, across) or "matrix")
  end
  require_shape(joined.quants, "I32", part.features, part.width * bits // 32)
  local count = blocks.ceil_div(part.width, across)
  require_scales(joined.scales, part.features, count)
  check_order(joined.order, part.width, across)
  part.tensor = as(joined.quants, PLAIN[bits], part.features, part.width)
  part.scaled = { { by = beside(part, joined.scales, count), zeros = 1 << (bits - 1), columns = part.width, down = 1,
                    across = across } }
  part.title, part.alike = ("integers of %d bits"):format(bits), M.alike(bits, across, true)
end

-- Scales of blocks of several rows, of which a part may have some.
local function of_blocks(scales, part, block)
  local count = blocks.ceil_div(part.width, block.across)
  require_scales(scales, blocks.ceil_div(part.features, block.down), count)
  if block.down > 1 and (part.blocks > 1 or part.first % block.down > 0) then
    tensors.fail(scales, "blocks of %d rows, of which a part begins in the middle", block.down)
  end
  local by = beside(part, scales, count)
  if block.down > 1 then
    by.features, by.first, by.count = scales.shape[1], part.first // block.down, blocks.ceil_div(part.count, block.down)
  end
  return by
end

-- FP8 and int8: a scale for all, for each row, or for each block.
local function fit_scaled(joined, part, c)
  refuse_zeros(joined)
  require_shape(joined.quants, joined.quants.type, part.features, part.width)
  local scales, of, block = joined.scales, part.blocks * part.count, nil
  if c:word "quant_method" == "compressed-tensors" then
    block = blocks.scheme(joined, part, c).block
  else
    block = blocks.fp8(joined, part, c)
  end
  local by
  if not block.down then
    require_scales(scales, table.unpack(scales.shape))
    by = { tensor = scales, features = 1, blocks = 1, count = 1, first = 0, step = 1 }
  elseif #scales.shape == 1 then
    require_scales(scales, part.features)
    by = beside(part, scales, 1)
  else
    by = of_blocks(scales, part, block)
  end
  part.tensor, part.title = as(joined.quants, joined.quants.type, part.features, part.width), joined.quants.type
  part.scaled = { { by = by, zeros = 0, columns = part.width, down = block.down or of,
                    across = block.across or part.width } }
  if joined.quants.type == "I8" and (block.across or part.width) < part.width then
    part.alike = M.alike(8, block.across)
  end
end

-- By quant_method: how the tensors of each kind are read. Others have the same names for other things.
local methods = {
  gptq = { qweight = fit_words },
  awq = { qweight = fit_words },
  ["compressed-tensors"] = { weight_packed = fit_packed, weight = fit_scaled },
  fp8 = { weight = fit_scaled },
  fbgemm_fp8 = { weight = fit_scaled },
}

-- Of how weights were found, how programs run them, and which modules have none.
M.harmless = [[
  version ignore ignored_layers lm_head modules_to_not_convert modules_to_convert targets meta tokenizer dataset
  seqlen model_seqlen model_name_or_path model_file_base_name true_sequential static_groups damp_percent
  damp_auto_increment mse batch_size pad_token_id max_input_length cache_block_outputs block_name_to_quantize
  to_quant_block_names module_name_preceding_first_block modules_in_block_to_quantize exllama_config use_exllama
  use_cuda_fp16 act_group_aware gptaq offload_to_disk offload_to_disk_path pack_impl quantizer do_fuse modules_to_fuse
  fuse_max_seq_len backend global_compression_ratio input_activations output_activations observer observer_kwargs
  scale_dtype zp_dtype global_sparsity registry_requires_subclass sparsity_structure activation_scheme
  quantization_status activation_scale_ub scale_fmt expert_dtype run_compressed dequantize use_optimized_inference
  autoround_version iters nsamples enable_quanted_input enable_minmax_tuning lr minmax_lr gradient_accumulate_steps
  amp low_gpu_mem_usage data_type=int
]]

function M.fit(part, tensor, c)
  local joined = tensor.joined
  local kind, names = joined.kind.quants, {}
  if part.in_out or not part.width then tensors.fail(tensor, "is quantized, and is no matrix of nn.Linear") end
  if not c then tensors.fail(joined.quants, "config.json has no quantization_config") end
  local method = methods[c:word "quant_method"]
  if not method or not method[kind] then
    for name, kinds in pairs(methods) do names[#names + 1] = kinds[kind] and name or nil end
    table.sort(names)
    c:fail("quant_method", "%s is not read, and tensor %s is of it; read are %s", wording.short(c:word "quant_method"),
           wording.short(joined.quants.name), table.concat(names, ", "))
  end
  method[kind](joined, part, c)
  part.integers = true
end

return M
