-- A file of packed weights of a kernel, or of its tables, with the layout of docs/format.md.

local host = require "host"
local errors = require "command.errors"

local must = errors.must

local M = {}
M.__index = M

M.MARK = "mhagen\n\0" -- with which such files begin

-- The bytes of a file with so many layers of so many bytes.
function M.bytes(packed_bytes, layers) return #host.packed_head("", "0", packed_bytes) + layers * packed_bytes end

-- Begins the file of one of kernel.packers, or of its tables, in `dir`, which need not be there yet.
function M.new(dir, name, packer)
  local head = host.packed_head(packer.cfg.name, packer.packing.fingerprint, packer.packing.bytes)
  local file = setmetatable({ name = name, stream = must(host.stream(dir, name)), head = head }, M)
  must(file.stream:write(file.head))
  return file
end

-- Adds the packed weights of a layer, or tables.
function M:add(packed)
  self.head = host.add_packed(self.head, packed)
  must(self.stream:write(packed))
end

-- The file as host.write_files takes it.
function M:finish()
  must(self.stream:rewrite(self.head))
  return { name = self.name, stream = self.stream }
end

return M
