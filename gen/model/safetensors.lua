-- The header of a .safetensors file: 8 bytes with its length, then JSON, { name: { dtype, shape, data_offsets } },
-- then the numbers, without gaps.

local cursor = require "model.cursor"
local json = require "base.json"
local tensors = require "model.tensors"
local wording = require "base.wording"

local LONGEST = 100000000 -- bytes of JSON, by the format

-- The bytes between two offsets behind the header, or nil.
local function span(offsets)
  local first, stop = offsets[1], offsets[2]
  if math.type(first) ~= "integer" or math.type(stop) ~= "integer" or offsets[3] ~= nil then return nil end
  if first < 0 or stop < first then return nil end
  return first, stop - first
end

local function read_tensor(name, entry, tensor)
  local at = type(entry) == "table" and entry or tensors.fail(tensor, "is no object")
  tensor.type, tensor.shape = at.dtype, at.shape
  if type(tensor.type) ~= "string" then tensors.fail(tensor, "dtype is no text") end
  if type(tensor.shape) ~= "table" then tensors.fail(tensor, "shape is no list") end
  local first, bytes = span(type(at.data_offsets) == "table" and at.data_offsets or {})
  if not first then tensors.fail(tensor, "data_offsets are not the first byte and that behind the last") end
  return first, bytes
end

-- file -> { name: tensor }; type_size: the host's.
return function(file, path, type_size)
  local at = cursor.new(file, path)
  local length = at:number("I8", "length of the header")
  if length > LONGEST then at:fail("a header of %d bytes; the format allows %d", length, LONGEST) end
  local text = at:bytes(length, "header")
  local header, why = json.decode(text)
  if type(header) ~= "table" or not text:find("^{") then
    error({ message = ("%s: header: %s"):format(path, type(header) == "table" and "is no object"
                                                        or why or "is no object") }, 0)
  end
  local start, found, places, used = at.at, {}, {}, 0
  for name, entry in pairs(header) do
    name = tostring(name)
    if name ~= "__metadata__" then
      local tensor = { name = name, path = path, file = file }
      local first, bytes = read_tensor(name, entry, tensor)
      local elements, size = type_size(tensor.type)
      if not elements then elements, size = type_size(tensor.type, true) end
      local whole = tensors.count(tensor)
      if elements and tensors.bytes(tensor, elements, size) ~= bytes then
        tensors.fail(tensor, "%s of %s does not take %d bytes", wording.short(tensor.type),
                     tensors.shape_text(tensor.shape), bytes)
      end
      if whole == 0 and bytes > 0 then tensors.fail(tensor, "has no numbers, but %d bytes", bytes) end
      if first > file:size() - start then tensors.fail(tensor, "begins behind the end of the file") end
      tensor.at, tensor.bytes = start + first, bytes
      found[name], used = tensor, used + bytes
      places[#places + 1] = { tensor = tensor, first = tensor.at, bytes = bytes }
    end
  end
  tensors.refuse_overlap(places, file:size())
  if used ~= file:size() - start then
    error({ message = ("%s: tensors take %d bytes of the %d behind the header"):format(
      path, used, file:size() - start) }, 0)
  end
  return found
end
