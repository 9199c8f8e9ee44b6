-- The attention layers of a model: for each a list of key=value, and the parts of tensors that make its weights.

local axial = require "model.axial"
local family_rows = require "model.family_rows"
local gguf_families = require "model.gguf_families"
local matrices = require "graph.matrices"
local parts = require "model.parts"
local quantized = require "model.quantized"
local left_out = require "model.left_out"
local rope = require "model.rope"
local tensors = require "model.tensors"
local unsupported = require "model.unsupported"
local qk_of = require "graph.qk"
local wording = require "base.wording"

local features, has_bias = parts.features, parts.has_bias

local M = {}

-- ---- keys ----

local function word(key, value)
  if math.type(value) == "float" then value = ("%.17g"):format(value) end
  return ("%s=%s"):format(key, value)
end

-- What the scaling of rope makes of its angles, or nil; and the factor of its tables, or nil. It goes into the scale,
-- for Q and K have it both, but where rope turns a part of a head. Angles that a run gives have all of that.
local function take_scaling(c, keys, rope_at)
  local dims = keys.rope_dims or keys.dk
  local scaling = keys.scaling and keys.scaling(keys.rope_theta, dims // 2)
  keys.scaling = nil
  if rope_at == "run" then
    if scaling and scaling.back then
      c:fail("model_type", "turns back: with rope_at=run sines would have the other sign; leave rope_at out")
    end
    return nil
  end
  if not scaling or scaling.factor == 1 then return scaling and scaling.divide end
  if dims ~= keys.dk then return scaling.divide, scaling.factor end
  keys.scale = (keys.scale or keys.dk ^ -0.5) * scaling.factor ^ 2
  return scaling.divide
end

local ROUNDING = { F16 = 2.0 ^ -10, BF16 = 2.0 ^ -7 }

-- A scale of a file with weights of a type; nil if it is 1 / sqrt(dk), the default, but for the rounding of the type.
function M.scale(scale, dk, kind)
  if scale and dk and math.abs(scale * dk ^ 0.5 - 1) <= (ROUNDING[kind] or 1e-6) then return nil end
  return scale
end

-- { key = value } as words of a command line.
function M.key_list(keys)
  local list = {}
  for key, value in pairs(keys) do list[#list + 1] = word(key, value) end
  return list
end

-- The keys of a layer as words; and what else its row says: what divides its angles, the rope_factor of its tables, its
-- limit, the angles of patches, each or nil. around: keys of what is around its attention; rope_at: the key, if given.
local function keys_of(c, stack, i, around, rope_at)
  local keys = family_rows.sizes(c, stack, i)
  for key, value in pairs(stack.keys(c, i, keys)) do keys[key] = value end
  for key, value in pairs(around) do keys[key] = value end
  local own = { limit = keys.limit, angles = rope_at ~= "run" and keys.angles or nil }
  own.divide, own.rope_factor = take_scaling(c, keys, rope_at)
  keys.limit, keys.angles = nil, nil
  return M.key_list(keys), own
end

-- Refuses longer texts than a layer has the keys of.
local function check_limit(c, limit, places)
  if not limit or places <= limit[1] then return end
  if limit[1] == 0 then c:fail(limit[2], "%s, which no kernel does; --only takes others", limit[3]) end
  c:fail(limit[2], "%s; a kernel may have up to %d rows and keys, not %d", limit[3], limit[1], places)
end

-- Fields with the number of places that a model has or was trained on; the last one is GGUF's.
local PLACES = { "max_position_embeddings", "n_positions", "context_length" }

-- Says of a run with more rows or keys than the model has places that it is so: attention itself has any number.
local function note_places(layer, cfg)
  local c, most = layer.fields, math.max(cfg.seq, cfg.seq_kv)
  for _, name in ipairs(PLACES) do
    local places = c:has(name) and c:number(name) or 0
    if places >= 1 and places < most then
      layer.notes = { ("%s is %d, and a run has up to %d rows or keys: the model may have no places for them"):format(
        c:full(name), places // 1, most) }
    end
  end
end

-- ---- tensors ----

-- What stands before each of the names in the file: "" or a path that ends with a dot; nothing where there is no such
-- tensor. One pass over all tensors, for there may be many of both. A second table has the names that are there twice,
-- with the second path.
local function prefixes_of(model, names)
  local prefixes, twice, wanted, lengths, of_length = {}, {}, {}, {}, {}
  for _, name in ipairs(names) do
    if not of_length[#name] then lengths[#lengths + 1], of_length[#name] = #name, true end
    wanted[name], prefixes[name] = true, model.tensors[name] and "" or nil
  end
  for other in pairs(model.tensors) do
    for _, length in ipairs(lengths) do
      local name = other:sub(-length)
      local before = prefixes[name]
      if wanted[name] and before ~= "" and other:sub(-length - 1, -length - 1) == "." then
        local prefix = other:sub(1, -length - 1)
        twice[name] = before and prefix or nil
        prefixes[name] = before or prefix
      end
    end
  end
  return prefixes, twice
end

-- The name of a map's weight or bias. PyTorch's MultiheadAttention has these of its joint map beside each other.
local function name_in(stack, map, what)
  return map .. (map:find "in_proj$" and not stack.apart and "_" or ".") .. what
end

-- The weights of a layer as cfg wants them: { wq = features, .. }; those of biases have no width.
local function weights_of(layer, cfg)
  local stack, sizes, all = layer.stack, matrices.sizes(cfg), {}
  local q, k, v = cfg.h * cfg.dk, cfg.h_kv * cfg.dk, cfg.h_kv * cfg.dv
  local function add(letter, map, count, width, part)
    local biases_at = stack.biases_at and stack.biases_at[letter]
    local weight, bias = features(layer.at .. name_in(stack, map, "weight"), count, width, part),
      features(layer.at .. (biases_at or name_in(stack, map, "bias")), count, nil, part)
    weight.in_out, bias.optional = stack.in_out, true
    local of = stack.biases and stack.biases[letter]
    all["w" .. letter], all["b" .. letter] = weight, has_bias(layer, of, bias.name) and bias or nil
  end
  if #stack.maps == 2 then
    local blocks, first, counts = stack.blocks or stack.heads and cfg.h_kv or 1, 0, { q = q, k = k, v = v }
    for letter in (stack.order or "qkv"):gmatch "." do
      local count = counts[letter] // blocks
      add(letter, stack.maps[1], q + k + v, cfg.d_model, {
        blocks = blocks, count = count, first = first, step = (q + k + v) // blocks })
      first = first + count
    end
  else
    add("q", stack.maps[1], q, cfg.d_model)
    add("k", stack.maps[2], k, cfg.k_width)
    add("v", stack.maps[3], v, cfg.v_width)
  end
  add("o", stack.maps[#stack.maps], cfg.y_width, cfg.h * cfg.dv)
  all.wo.factor = stack.factor and stack.factor(layer.fields)
  for matrix, of in pairs(stack.more or {}) do
    local size = sizes[matrix]
    if type(of) == "string" then of = { of } end
    if size then
      all[matrix] = features(layer.at .. of[1], of.count and of.count(cfg) or size[2])
      all[matrix].optional = of.optional
      all[matrix].change = of[2] and function(list) return of[2](list, cfg) end
    end
  end
  if layer.whole then parts.add_around(layer, layer.whole, sizes, all) end
  if layer.angles then axial.add(layer, cfg, all) end
  for matrix in pairs(all) do -- what another key has switched off
    if sizes[matrix][1] * sizes[matrix][2] == 0 then all[matrix] = nil end
  end
  return all
end

-- What is to be done about weights that are quantized in a way that is not read, or nothing.
local function advice(model)
  local c = model.fields and model.fields:object "quantization_config"
  return c and ("; quantization_config says %s, of which this is not read: take the model that was quantized, or " ..
    "write it by transformers' model.dequantize()"):format(wording.short(c:word("quant_method", "something"))) or ""
end

local function fail_missing(model, name)
  error({ message = ("%s: tensor %s is missing%s"):format(model.data, wording.short(name), advice(model)) }, 0)
end

local function shape_of(part)
  return part.shape or part.in_out and { part.width, part.features } or { part.features, part.width }
end

-- The shape that a tensor must have; a vector may have more axes.
local function check_shape(model, part, type_size)
  local tensor = part.tensor
  if not type_size(tensor.type, part.integers) then
    tensors.fail(tensor, "numbers of type %s are not read%s", wording.short(tensor.type), advice(model))
  end
  local wanted = not part.width and { part.features } or shape_of(part)
  local same = not part.width and tensors.count(tensor) == part.features or tensors.shape_text(tensor.shape) ==
    tensors.shape_text(wanted) or (part.firsts or part.stride)
      and tensors.count(tensor) == part.features * (part.stride or part.width)
  if not same then
    tensors.fail(tensor, "its shape is %s, and by the config it must be %s", tensors.shape_text(tensor.shape),
                 tensors.shape_text(wanted))
  end
end

-- Takes the transpose of a matrix that lies column by column. The numbers have the same places in memory.
function M.by_rows(part)
  local other = part.width and part.tensor.transpose
  if not other or tensors.shape_text(part.tensor.shape) ~= tensors.shape_text(shape_of(part)) then return end
  part.tensor, part.in_out, part.turned = other, not part.in_out, not part.turned
end

-- The parts of the weights of a layer with their tensors, whose shapes are as cfg says. With rope so is that of what
-- GGUF divides the angles of its pairs by, `frequencies`.
function M.weights(model, layer, cfg, type_size)
  local all, qk = layer:features(cfg), qk_of.of(cfg)
  if layer.check then layer.check(cfg.seq_kv) end
  if layer.fields then note_places(layer, cfg) end
  local frequencies = layer.frequencies and layer.frequencies(cfg.seq_kv)
  if frequencies and qk and qk.pairs > 0 then
    layer.factors = features(frequencies.name, qk.pairs)
    layer.factors.tensor = frequencies
    check_shape(model, layer.factors, type_size)
  end
  for matrix, part in pairs(all) do
    part.tensor = part.tensor or not part.numbers and model.tensors[part.name] or nil
    if part.numbers then -- computed
    elseif part.tensor then
      if part.tensor.joined then
        quantized.fit(part, part.tensor, model.fields and model.fields:object "quantization_config")
      end
      M.by_rows(part)
      check_shape(model, part, type_size)
    elseif part.optional then
      all[matrix] = nil
    else
      fail_missing(model, part.name)
    end
  end
  return all
end

-- A tensor of the model as a part: a table of so many rows, or without a width a vector. more: nil, or the rows from
-- `first` on, `count` of them; the `shape` of a tensor of more axes; whether it has `integers`, or columns `across`.
function M.part(model, name, rows, width, type_size, more)
  more = more or {}
  local part = features(name, rows, width, more.count and {
    blocks = 1, first = more.first, count = more.count, step = rows })
  part.shape, part.integers, part.in_out, part.turned = more.shape, more.integers, more.across, more.across
  part.tensor = model.tensors[name] or fail_missing(model, name)
  check_shape(model, part, type_size)
  return part
end

-- What the host's memory:read takes of a part: a list, a piece for each block. stride: numbers of a row in the file.
-- turned: in memory it lies the other way round than in the file. interleave: so many numbers of a column are beside
-- each other in the file.
function M.pieces(part, type_size)
  local tensor, list = part.tensor, {}
  assert(tensors.count(tensor) == part.features * (part.stride or part.width or 1), "a part of another size")
  local elements, bytes = type_size(tensor.type, part.integers)
  local rows = part.width and not part.in_out
  local row, interleave = rows and (part.stride or part.width) or part.features, part.interleave or 1
  local count, width = part.blocks * part.count, part.width or 1
  local feature, input = width, 1 -- steps in memory
  if (part.in_out or false) ~= (part.turned or false) or not part.width then feature, input = 1, count end
  for block = 0, part.blocks - 1 do
    local first = part.firsts and part.firsts[block + 1] or part.first + block * part.step
    local piece = { type = tensor.type, at = tensor.at, columns = row * interleave, to = block * part.count * feature }
    if rows then
      piece.at, piece.rows, piece.used = tensor.at + first * (row // elements * bytes), part.count, part.width
      piece.row_step, piece.column_step = feature, input
    else
      piece.rows, piece.column, piece.used = width // interleave, first * interleave, part.count * interleave
      piece.row_step, piece.column_step, piece.interleave, piece.interleave_step = input * interleave, feature,
        interleave, input
    end
    list[#list + 1] = piece
  end
  return list
end

-- What the file has of a layer's matrices: bytes, how many numbers these are, and the type of the first. Where all
-- of them are in the same groups, also the keys that pack them so.
function M.stored(layer, type_size)
  local bytes, count, type, keys = 0.0, 0, nil, nil
  for matrix, part in pairs(layer.weights) do
    if matrix:find "^w" and part.tensor then
      local elements, bytes_of = type_size(part.tensor.type, part.integers)
      local own, as = part.blocks * part.count * part.width, quantized.alike_of(part)
      keys = as and (type == nil or keys and keys[1] == as[1]) and as or nil
      bytes, count, type = bytes + own * bytes_of / elements, count + own, type or part.title or part.tensor.type
    end
  end
  return bytes, count, type, keys
end

-- ---- layers ----

local MOST = 1 << 16 -- layers

-- Of (places) to the tensor that angles are divided by, or nil. names: of one, or of that for short texts and that for
-- long ones.
local function frequencies_of(model, c, names)
  local short, long = model.tensors[names[1]], model.tensors[names[#names]]
  if short == long then return function() return short end end
  local trained = c:int("rope.scaling.original_context_length", c:int "context_length")
  return function(places)
    if places > trained then return long end
    return short
  end
end

-- The names that a stack's layers may have, of which a file has one; and the tensor by which that is found.
local function names_of(stack) return family_rows.list(stack.at) end

-- How many layers a stack has, and whether one of these numbers is there.
local function count_of(c, stack)
  local count = type(stack.layers) == "string" and c:int(stack.layers) or stack.layers or 1
  if count > MOST then c:fail(stack.layers, "%d layers", count) end
  return count
end
local function has(c, stack, i) return not stack.has or stack.has(c, i) end

-- The number of the first layer, or 0.
local function first_of(c, stack)
  if not stack.has then return 0 end
  for i = 0, count_of(c, stack) - 1 do
    if has(c, stack, i) then return i end
  end
  return 0
end
local function tensor_of(stack, at, i)
  return ("%s.%s"):format(at:gsub("%%d", tostring(i)), name_in(stack, stack.maps[1], "weight"))
end

-- The first of a stack's names that is in the file, and what stands before it there; nil where there is none.
local function place_of(model, stack, c, prefixes, twice)
  for _, at in ipairs(names_of(stack)) do
    local name = tensor_of(stack, at, first_of(c, stack))
    if twice[name] then
      error({ message = ("%s: tensor %s is there behind %s and behind %s"):format(
        model.data, name, wording.short(prefixes[name]), wording.short(twice[name])) }, 0)
    end
    if prefixes[name] then return at, prefixes[name] end
  end
end

local function add_stack(model, stack, prefixes, twice, all)
  local c, whole = stack.fields or model.fields, model.whole
  local at, prefix = place_of(model, stack, c, prefixes, twice)
  if not prefix then return end
  local frequencies = frequencies_of(model, c, stack.frequencies or {})
  local function add(i)
    local name = at:gsub("%%d", tostring(i))
    local keys, own = keys_of(c, stack, i, whole and whole.keys(c, i) or {}, model.rope_at)
    local around = whole and name:gsub("%." .. whole.module:gsub("%.", "%%.") .. "$", "")
    all[#all + 1] = { name = around or name, at = prefix .. name .. ".", around = around and prefix .. around .. ".",
                      stack = stack, in_out = stack.in_out, keys = keys, own = whole and whole.own,
                      divide = own.divide, rope_factor = own.rope_factor,
                      frequencies = (not stack.divided or stack.divided(c, i)) and frequencies or nil,
                      features = weights_of, fields = c, without = {}, whole = whole, prefix = prefix,
                      angles = own.angles, image = model.image,
                      check = function(places) check_limit(c, own.limit, places) end }
  end
  for i = 0, count_of(c, stack) - 1 do
    if has(c, stack, i) then add(i) end
  end
end

-- The row of a model's type in its rows.
function M.row_of(model)
  local row, known = family_rows.find(model.rows, model.type)
  if row then return row end
  local why = unsupported.why(model.rows == gguf_families and unsupported.gguf or unsupported.transformers,
    model.type)
  if why then
    error({ message = ("%s: model type %s is not supported: it has %s"):format(model.path, model.type, why) }, 0)
  end
  error({ message = ("%s: model type %s is not known"):format(model.path, wording.short(model.type)),
          more = { { message = "known are " .. known } } }, 0)
end

-- model: { path of its fields, path `data` of its tensors, type, rows = families.rows or another list, fields,
-- tensors, whole = a row of gen/model/whole_families.lua or nil } -> its layers. given: the user's keys.
function M.of(model, given)
  model.rope_at, model.fields.tensors = given and given.rope_at, model.tensors
  model.row = family_rows.whole(model.rows, M.row_of(model), model.fields)
  local all, firsts, stacks = {}, {}, model.row.stacks
  if model.whole then stacks = table.move(stacks, 1, model.whole.stacks or #stacks, 1, {}) end
  for _, stack in ipairs(stacks) do
    for _, at in ipairs(names_of(stack)) do
      firsts[#firsts + 1] = tensor_of(stack, at, first_of(stack.fields or model.fields, stack))
    end
  end
  local prefixes, twice = prefixes_of(model, firsts)
  for _, stack in ipairs(stacks) do
    local count = #all
    add_stack(model, stack, prefixes, twice, all)
    local part = stack.fields
    if part and part.absent ~= false then part.absent = #all == count end
  end
  if #all == 0 then fail_missing(model, firsts[1]) end
  return all, left_out.of(model, all)
end

return M
