-- A GGUF file: a magic, a version, how many tensors and how many keys; the keys with their values; the names, shapes,
-- types and offsets of tensors; the numbers, aligned.

local cursor = require "model.cursor"
local tensors = require "model.tensors"
local wording = require "base.wording"

-- Kinds of values: how string.unpack calls those of one size.
local formats = { [0] = "I1", "i1", "I2", "i2", "I4", "i4", "f", "I1", nil, nil, "I8", "i8", "d" }
local BOOL, STRING, ARRAY = 7, 8, 9

-- Types of tensors; of others only the names are known, to say what they are.
local types = { [0] = "F32", "F16", "Q4_0", "Q4_1", nil, nil, "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K",
                "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
                "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16", [34] = "TQ1_0", [35] = "TQ2_0", [39] = "MXFP4",
                [40] = "NVFP4", [41] = "Q1_0", [42] = "Q2_0" }

local LONGEST, MOST, DIMS = 1 << 16, 4096, 4 -- bytes of a text and numbers of a list that are kept; axes

-- A text; nil for one that is longer than any of use here.
local function read_text(at, what)
  local length = at:number("I8", what)
  if length <= LONGEST then return at:bytes(length, what) end
  at:skip(length, what)
end

local function read_array(at, what)
  local kind, count, values = at:number("I4", what), at:number("I8", what), {}
  if kind == STRING then
    for _ = 1, count do at:skip(at:number("I8", what), what) end
    return nil
  end
  local format = formats[kind] or at:fail("%s: a list of kind %d", what, kind)
  local size = string.packsize("<" .. format)
  if count > (at.stop - at.at) // size then at:fail("%s: %d values; the file ends before", what, count) end
  if count > MOST then return at:skip(count * size, what) end
  for i = 1, count do values[i] = at:number(format, what) end
  return values
end

local function read_value(at, kind, what)
  if kind == STRING then return read_text(at, what) end
  if kind == ARRAY then return read_array(at, what) end
  local value = at:number(formats[kind] or at:fail("%s: kind %d is not known", what, kind), what)
  if kind == BOOL then return value ~= 0 end
  return value
end

local function read_tensor(at, path, file)
  local what = "name of a tensor"
  local tensor = { name = read_text(at, what) or at:fail("%s: is too long", what), path = path, file = file,
                   shape = {} }
  local dims = at:number("I4", "number of axes")
  if dims > DIMS then at:fail("tensor %s: %d axes", wording.short(tensor.name), dims) end
  for i = dims, 1, -1 do tensor.shape[i] = at:number("I8", "size of an axis") end -- the innermost comes first
  local kind = at:number("I4", "type of a tensor")
  tensor.type = types[kind] or ("type %d"):format(kind)
  tensor.at = at:number("I8", "offset of a tensor") -- behind the header
  return tensor
end

-- file -> { name: tensor }, { key: value } without long lists
return function(file, path, type_size)
  local at = cursor.new(file, path)
  at:magic("GGUF", "GGUF")
  local version = at:number("I4", "version")
  if version == 2 << 24 or version == 3 << 24 then
    error({ message = path .. ": is big-endian; gguf-convert-endian of Python's gguf changes that in place",
            command = { "gguf-convert-endian", path, "little" } }, 0)
  end
  if version ~= 2 and version ~= 3 then at:fail("version %d; 2 and 3 are read", version) end
  local count, keys = at:number("I8", "number of tensors"), at:number("I8", "number of keys")
  local values, list, found, places = {}, {}, {}, {}
  for _ = 1, keys do
    local key = read_text(at, "key") or at:fail("a key is too long")
    if values[key] ~= nil then at:fail("key %s is there twice", wording.short(key)) end
    values[key] = read_value(at, at:number("I4", "kind of a value"), "value of " .. wording.short(key))
  end
  local align = values["general.alignment"] or 32
  if math.type(align) ~= "integer" or align < 1 or align > LONGEST or align & (align - 1) ~= 0 then
    error({ message = ("%s: general.alignment = %s: must be a power of two up to %d"):format(
      path, wording.short(align), LONGEST) }, 0)
  end
  for i = 1, count do
    list[i] = read_tensor(at, path, file)
    if found[list[i].name] then tensors.fail(list[i], "is there twice") end
    found[list[i].name] = list[i]
  end
  local start = (at.at + align - 1) // align * align
  for i, tensor in ipairs(list) do
    if tensor.at % align ~= 0 then tensors.fail(tensor, "its offset %d is not aligned to %d", tensor.at, align) end
    if tensor.at > at.stop - start then tensors.fail(tensor, "begins behind the end of the file") end
    local elements, size = type_size(tensor.type)
    tensor.at = start + tensor.at
    places[i] = { tensor = tensor, first = tensor.at,
                  bytes = elements and tensors.bytes(tensor, elements, size) or tensors.count(tensor) > 0 and 1 or 0 }
  end
  tensors.refuse_overlap(places, at.stop)
  return found, values
end
