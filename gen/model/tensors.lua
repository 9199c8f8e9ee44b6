-- The tensors of a file, as the readers of all formats return them.
--
--   name, path, file     of the tensor, and of its file
--   type                 a type of the host's type_size, or another
--   shape                { outermost, .. }
--   at                   the first byte
--   transpose            of a matrix that lies column by column: its transpose, a tensor too

local wording = require "base.wording"

local M = {}

local MOST = 1 << 47 -- numbers, or bytes

function M.fail(tensor, ...)
  error({ message = ("%s: tensor %s: %s"):format(tensor.path, wording.short(tensor.name), string.format(...)) }, 0)
end

-- The name of a file of the same folder, as a file says it, or nil.
function M.beside(text)
  local name = type(text) == "string" and text:gsub("^%./", "")
  if not name or name == "" or name:find("^%.") or name:find("[/\\%c]") then return nil end
  return name
end

-- The numbers of a tensor of this shape.
function M.count(tensor)
  local count = 1
  for _, size in ipairs(tensor.shape) do
    if math.type(size) ~= "integer" or size < 0 then M.fail(tensor, "its shape has a size that is no count") end
    if size > 0 and count > MOST // size then M.fail(tensor, "its shape has more than 2^47 numbers") end
    count = count * size
  end
  return count
end

-- The bytes of a tensor with blocks of so many elements and bytes, which lie in a row.
function M.bytes(tensor, elements, bytes)
  local row = tensor.shape[#tensor.shape] or 1
  if row % elements ~= 0 then M.fail(tensor, "rows of %d numbers in blocks of %d", row, elements) end
  local blocks = M.count(tensor) // elements
  if blocks > MOST // bytes then M.fail(tensor, "has more than 2^47 bytes") end
  return blocks * bytes
end

function M.shape_text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

-- Refuses a tensor that takes so many bytes where others are there.
function M.require_bytes(tensor, bytes, there)
  if bytes == there then return end
  M.fail(tensor, "%s of %s takes %d bytes, and %d are there", tensor.type, M.shape_text(tensor.shape), bytes, there)
end

-- Refuses tensors { tensor, first byte, number of bytes } that share one, or do not end before `stop`.
function M.refuse_overlap(places, stop)
  table.sort(places, function(a, b) return a.first < b.first end)
  local last
  for _, place in ipairs(places) do
    local tensor = place.tensor
    if place.bytes > stop - place.first then
      M.fail(tensor, "its %d bytes from byte %d on end behind byte %d", place.bytes, place.first, stop)
    end
    if place.bytes > 0 then
      if last and place.first < last.first + last.bytes then
        M.fail(tensor, "shares bytes with tensor %s", wording.short(last.tensor.name))
      end
      last = place
    end
  end
end

return M
