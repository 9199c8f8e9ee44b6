-- A position in a file, which reading moves forward. A part outside the file is an error that names the file and the
-- byte.

local M = {}
M.__index = M

local WINDOW = 1 << 16 -- bytes that are asked of the file at once

-- file: of the host: size(), bytes(at, count). It reads from the byte `first` on up to the byte `stop`, or all.
function M.new(file, path, first, stop)
  return setmetatable({ file = file, path = path, at = first or 0, stop = stop or file:size(), window = "", first = 0 },
                      M)
end

-- Raises what is wrong at the place.
function M:fail(...)
  error({ message = ("%s: byte %d: %s"):format(self.path, self.at, string.format(...)) }, 0)
end

-- Raises an error if so many bytes are not there.
function M:inside(count, what)
  if count < 0 or count > self.stop - self.at then
    local whole = self.stop == self.file:size() and "the file" or "what it is in"
    self:fail("%s: %s ends at byte %d", what, whole, self.stop)
  end
end

-- The next bytes become all that there are; returns the end that there was, which `stop` becomes again behind them.
function M:narrow(count, what)
  local outer = self.stop
  self:inside(count, what)
  self.stop = self.at + count
  return outer
end

-- The next bytes, as a string.
function M:bytes(count, what)
  self:inside(count, what)
  if self.at < self.first or self.at + count > self.first + #self.window then
    local bytes, why = self.file:bytes(self.at, math.max(count, math.min(WINDOW, self.file:size() - self.at)))
    if not bytes then self:fail("%s: %s", what, why) end
    self.first, self.window = self.at, bytes
  end
  local from = self.at - self.first
  self.at = self.at + count
  return self.window:sub(from + 1, from + count)
end

-- The next byte, as a number.
function M:byte(what)
  local byte = self.at < self.stop and self.at >= self.first and self.window:byte(self.at - self.first + 1)
  if not byte then return self:bytes(1, what):byte() end
  self.at = self.at + 1
  return byte
end

function M:skip(count, what)
  self:inside(count, what)
  self.at = self.at + count
end

-- The bytes that files of a kind begin with; others are an error.
function M:magic(bytes, kind)
  if self:bytes(#bytes, "magic") == bytes then return end
  self.at = self.at - #bytes
  self:fail("is no %s file", kind)
end

-- The next number; `format` is one of string.unpack's. One of 64 bits that is larger than any file is an error.
function M:number(format, what)
  local value = string.unpack("<" .. format, self:bytes(string.packsize("<" .. format), what))
  if format == "I8" and value < 0 then
    self.at = self.at - 8
    self:fail("%s: is 2^63 or more", what)
  end
  return value
end

return M
