-- A .npy file of NumPy: a magic, a version, the length of a header, the header as a dictionary of Python, the numbers.

local cursor = require "model.cursor"
local tensors = require "model.tensors"
local wording = require "base.wording"

local types = { ["<f8"] = "F64", ["<f4"] = "F32", ["<f2"] = "F16" }
local LONGEST = 1 << 16 -- bytes of the header

-- file -> its only tensor; part: { name, first, stop } where it is a part of a file
return function(file, path, type_size, part)
  part = part or { name = "array", first = 0, stop = file:size() }
  local at = cursor.new(file, path, part.first, part.stop)
  at:magic("\x93NUMPY", ".npy")
  local version = at:number("I1", "version")
  at:skip(1, "version")
  if version < 1 or version > 3 then at:fail("version %d is not known", version) end
  local length = at:number(version == 1 and "I2" or "I4", "length of the header")
  if length > LONGEST then at:fail("a header of %d bytes", length) end
  local header = at:bytes(length, "header")
  local tensor = { name = part.name, path = path, file = file, at = at.at, shape = {} }
  local descr, order, shape = header:match(
    "^{%s*'descr':%s*'([^']*)',%s*'fortran_order':%s*(%a+),%s*'shape':%s*%(([%d, ]*)%),?%s*}%s*$")
  if not descr then at:fail("the header is not descr, fortran_order and shape") end
  tensor.type = types[descr] or tensors.fail(tensor, "numbers of type %s; f2, f4 and f8 are read", wording.short(descr))
  if order ~= "False" then tensors.fail(tensor, "lies by columns; numpy.ascontiguousarray makes rows") end
  for size in shape:gmatch("%d+") do
    tensor.shape[#tensor.shape + 1] = math.tointeger(tonumber(size)) or tensors.fail(tensor, "its shape is too large")
  end
  tensors.require_bytes(tensor, tensors.bytes(tensor, type_size(tensor.type)), at.stop - tensor.at)
  return tensor
end
