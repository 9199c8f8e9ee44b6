-- A file of packed weights of a kernel, or of its tables, with the layout of docs/format.md.

local host = require "host"
local errors = require "command.errors"

local must = errors.must

local M = {}
M.__index = M

M.MARK = "mhagen\n\0" -- with which such files begin

-- The bytes of a file with so many layers of so many bytes.
function M.bytes(packed_bytes, layers) return #host.packed_head("", "0", packed_bytes) + layers * packed_bytes end

-- Begins a file in `dir`, which need not be there yet. of: the name of what it is for; packing: its fingerprint, and
-- the bytes of a layer.
function M.new(dir, name, of, packing)
  local head = host.packed_head(of, packing.fingerprint, packing.bytes)
  local file = setmetatable({ name = name, stream = must(host.stream(dir, name)), head = head }, M)
  must(file.stream:write(file.head))
  return file
end

-- Adds the packed weights of a layer, or tables; is_part: or the next part of the only layer.
function M:add(packed, is_part)
  self.head = host.add_packed(self.head, packed, is_part)
  must(self.stream:write(packed))
end

-- The file as host.write_files takes it.
function M:finish()
  must(self.stream:rewrite(self.head))
  return { name = self.name, stream = self.stream }
end

return M
