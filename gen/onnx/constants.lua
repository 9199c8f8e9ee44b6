-- Single numbers of the constants of a graph, without the host's decoders: shapes, bounds, scales, biases, tables.
--
--   of(tensor, i)    number i of a tensor of gen/onnx/file.lua, in row-major order; nil for a type that is not read
--   bytes(kind, count)   of so many numbers of a type, or nil where they are not read, or end within a byte
--   short(x)         the shortest decimal that is the same float32: constants and attributes are such

local BLOCK = 1 << 12 -- bytes that are read at once
local LISTED = 1 << 16 -- bytes of a list of varints

local function half(bits)
  local sign, exponent, fraction = bits >> 15 == 1 and -1.0 or 1.0, bits >> 10 & 31, bits & 1023
  if exponent == 31 then return fraction == 0 and sign * math.huge or 0 / 0 end
  if exponent == 0 then return sign * fraction * 2.0 ^ -24 end
  return sign * (1024 + fraction) * 2.0 ^ (exponent - 25)
end

local function brain(bits) return (string.unpack("<f", string.pack("<I4", bits << 16))) end

-- The low half of a byte has the first number.
local function fourth(byte, i) return byte >> i % 2 * 4 & 15 end

-- Each row: the format of string.unpack, the bytes, what a number is made of by, and how many numbers these are.
local rows = {
  F64 = { "<d", 8 }, F32 = { "<f", 4 }, F16 = { "<I2", 2, half }, BF16 = { "<I2", 2, brain }, I64 = { "<i8", 8 },
  I32 = { "<i4", 4 }, I16 = { "<i2", 2 }, I8 = { "<i1", 1 }, U8 = { "<I1", 1 }, U16 = { "<I2", 2 },
  U32 = { "<I4", 4 }, bool = { "<I1", 1 }, U4 = { "<I1", 1, fourth, 2 },
  I4 = { "<I1", 1, function(byte, i) return (fourth(byte, i) ~ 8) - 8 end, 2 },
}

-- Numbers of a list of varints, for integers alone.
local function listed(tensor)
  if tensor.bytes > LISTED then return {} end
  local bytes, list, at = tensor.file:bytes(tensor.at, tensor.bytes) or "", {}, 1
  while at <= #bytes do
    local value, shift = 0, 0
    repeat
      local byte = bytes:byte(at) or 0
      value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
    until byte < 128 or shift > 63
    list[#list + 1] = value
  end
  return list
end

local function of(tensor, i)
  local row = rows[tensor.type]
  if not row then
    local kind = tensor.type:match "^(%w+) in int%d+_data$"
    local own = kind and rows[kind] or {}
    tensor.list = tensor.list or kind and listed(tensor) or {}
    local value, make = tensor.list[i // (own[4] or 1) + 1], own[3]
    return value and (make and make(value, i) or value)
  end
  local at = i // (row[4] or 1) * row[2]
  local block = at // BLOCK
  tensor.blocks = tensor.blocks or {}
  local bytes = tensor.blocks[block]
  if not bytes then
    local first = block * BLOCK
    bytes = tensor.file:bytes(tensor.at + first, math.max(0, math.min(BLOCK, tensor.bytes - first))) or ""
    tensor.blocks[block] = bytes
  end
  local from = at - block * BLOCK
  if i < 0 or from + row[2] > #bytes then return nil end
  local value = string.unpack(row[1], bytes, from + 1)
  if row[3] then return row[3](value, i) end
  return value
end

local function bytes(kind, count)
  local row = rows[kind]
  return row and count % (row[4] or 1) == 0 and count // (row[4] or 1) * row[2] or nil
end

local function short(x)
  for digits = 1, 9 do
    local near = tonumber(("%%.%dg"):format(digits):format(x))
    if string.pack("<f", near) == string.pack("<f", x) then return near end
  end
  return x
end

return { of = of, bytes = bytes, short = short }
