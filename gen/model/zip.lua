-- A zip archive, whose entries are read in place: they must be stored as they are.
--
--   kind       what the file is called in messages, such as .npz
--   advice     what to do about entries that are compressed
--   wanted     of (name of an entry): the name for messages, or nil where it is not read

local cursor = require "model.cursor"
local tensors = require "model.tensors"
local wording = require "base.wording"

local END, WIDE_END, WIDE_PLACE, ENTRY, FILE = "PK\5\6", "PK\6\6", "PK\6\7", "PK\1\2", "PK\3\4"
local END_BYTES, WIDE_PLACE_BYTES, COMMENT = 22, 20, 0xffff -- the last: the most of a comment
local FULL16, FULL32 = 0xffff, 0xffffffff -- the number does not fit, and is in a wide record
local STORED, ENCRYPTED, WIDE_EXTRA = 0, 1, 1

-- Where the record is with which an archive ends, before a comment.
local function find_end(file, path, kind)
  local size = file:size()
  local from = math.max(0, size - END_BYTES - COMMENT)
  local at = cursor.new(file, path, from)
  local tail = at:bytes(size - from, "end of the archive")
  for i = #tail - END_BYTES + 1, 1, -1 do
    if tail:sub(i, i + 3) == END and string.unpack("<I2", tail, i + 20) == #tail - i - END_BYTES + 1 then
      return from + i - 1
    end
  end
  at:fail("is no %s file: the end of a zip archive is missing", kind)
end

-- The list of entries: { at, stop, count }.
local function find_list(file, path, kind)
  local last = find_end(file, path, kind)
  local at = cursor.new(file, path, last)
  at:skip(8, "end of the archive")
  at:skip(2, "end of the archive")
  local list = { stop = last, count = at:number("I2", "number of entries") }
  local bytes = at:number("I4", "size of the list of entries")
  list.at = at:number("I4", "place of the list of entries")
  if list.count == FULL16 or bytes == FULL32 or list.at == FULL32 then
    at = cursor.new(file, path, math.max(0, last - WIDE_PLACE_BYTES), last)
    at:magic(WIDE_PLACE, "wide " .. kind)
    at:skip(4, "place of the wide end")
    at = cursor.new(file, path, at:number("I8", "place of the wide end"), last)
    at:magic(WIDE_END, "wide " .. kind)
    at:skip(28, "wide end of the archive")
    list.count, bytes = at:number("I8", "number of entries"), at:number("I8", "size of the list of entries")
    list.at = at:number("I8", "place of the list of entries")
  end
  at = cursor.new(file, path, 0, last)
  at:skip(list.at, "place of the list of entries")
  at:narrow(bytes, "list of entries")
  return at, list
end

-- The numbers of an entry that do not fit in 32 bits are in a part behind its name.
local function read_wide(at, bytes, entry)
  local outer = at:narrow(bytes, "extra field")
  while at.at < at.stop do
    local kind, size = at:number("I2", "extra field"), at:number("I2", "extra field")
    local rest = at:narrow(size, "extra field")
    for _, key in ipairs(kind == WIDE_EXTRA and { "bytes", "packed", "at" } or {}) do
      if entry[key] == FULL32 then entry[key] = at:number("I8", "extra field") end
    end
    at:skip(at.stop - at.at, "extra field")
    at.stop = rest
  end
  at.stop = outer
end

local function read_entry(at)
  local what = "entry of the list"
  if at:bytes(4, what) ~= ENTRY then at:fail("%s: does not begin as one", what) end
  at:skip(4, what)
  local entry = { flags = at:number("I2", what), method = at:number("I2", what) }
  at:skip(4, what)
  entry.sum = at:number("I4", what)
  entry.packed, entry.bytes = at:number("I4", what), at:number("I4", what)
  local name, extra, comment = at:number("I2", what), at:number("I2", what), at:number("I2", what)
  at:skip(8, what)
  entry.at = at:number("I4", what)
  entry.name = at:bytes(name, "name of an entry")
  read_wide(at, extra, entry)
  at:skip(comment, "comment of an entry")
  return entry
end

-- Where the bytes of an entry begin: behind a head of its own, which repeats the name.
local function find_bytes(file, path, entry, stop)
  local at, what = cursor.new(file, path, 0, stop), "head of entry " .. wording.short(entry.name)
  at:skip(entry.at, what)
  if at:bytes(4, what) ~= FILE then at:fail("%s: does not begin as one", what) end
  at:skip(22, what)
  local name, extra = at:number("I2", what), at:number("I2", what)
  if at:bytes(name, what) ~= entry.name then at:fail("%s: has another name there", what) end
  at:skip(extra, what)
  at:inside(entry.bytes, what)
  return at.at
end

-- file -> the entries that are wanted, in their order: { tensor = { name, path }, first, bytes, sum = CRC-32 }.
return function(file, path, how)
  local at, list = find_list(file, path, how.kind)
  local places, seen = {}, {}
  for _ = 1, list.count do
    local entry = read_entry(at)
    local name = how.wanted(entry.name)
    if name then
      local tensor = { name = name, path = path }
      if seen[name] then tensors.fail(tensor, "is there twice") end
      seen[name] = true
      if entry.flags & ENCRYPTED ~= 0 then tensors.fail(tensor, "is encrypted") end
      if entry.method ~= STORED then tensors.fail(tensor, "is compressed; %s", how.advice) end
      if entry.packed ~= entry.bytes then
        tensors.fail(tensor, "takes %d bytes in the archive, and is of %d", entry.packed, entry.bytes)
      end
      local first = find_bytes(file, path, entry, list.at)
      places[#places + 1] = { tensor = tensor, first = first, bytes = entry.bytes, sum = entry.sum }
    end
  end
  tensors.refuse_overlap(places, list.at)
  return places
end
