-- Messages of Protocol Buffers.
--
--   message          its name
--   [number]         a field, { name, kind }; with list = n there may be up to n of them
--
--   kind             value
--   "int"            64 bits with a sign
--   "float"
--   "text"           UTF-8
--   "place"          { at, bytes } in the file, which are not read
--   "ints"           a list, packed or not
--   a table          another message
--
-- Other fields are skipped. These tables limit the nesting of messages; a file cannot exceed it.

local wording = require "base.wording"

local M = {}

local LONGEST, MOST = 1 << 16, 4096 -- bytes of a text; numbers of a list
local VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5

local function varint(at, what)
  local value, shift = 0, 0
  while true do
    local byte = at:byte(what)
    if shift == 63 and byte > 1 then at:fail("%s: a number of more than 64 bits", what) end
    value = value | (byte & 127) << shift
    if byte < 128 then return value end
    shift = shift + 7
  end
end

local function length(at, what)
  local bytes = varint(at, what)
  if bytes < 0 then at:fail("%s: a length of 2^63 or more", what) end
  at:inside(bytes, what)
  return bytes
end

-- Calls read with the next bytes as all that there are.
local function within(at, what, read, ...)
  local outer = at:narrow(length(at, what), what)
  local value = read(at, ...)
  at.stop = outer
  return value
end

local function read_text(at, what)
  local bytes = length(at, what)
  if bytes > LONGEST then at:fail("%s: a text of %d bytes", what, bytes) end
  local text = at:bytes(bytes, what)
  -- Lua's own decoder takes what follows a 255 for one more bit than a shift has; no UTF-8 has such a byte.
  if text:find("\xff", 1, true) or not utf8.len(text) then at:fail("%s: %s is no UTF-8", what, wording.short(text)) end
  return text
end

local function read_ints(at, what, list)
  while at.at < at.stop do
    if #list == MOST then at:fail("%s: more than %d numbers", what, MOST) end
    list[#list + 1] = varint(at, what)
  end
end

local kinds = {
  int = { wire = VARINT, read = varint },
  float = { wire = FIXED32, read = function(at, what) return at:number("f", what) end },
  text = { wire = BYTES, read = read_text },
  place = { wire = BYTES, read = function(at, what)
    local place = { bytes = length(at, what), at = at.at }
    at:skip(place.bytes, what)
    return place
  end },
}

local skips = {
  [VARINT] = varint,
  [FIXED64] = function(at, what) at:skip(8, what) end,
  [BYTES] = function(at, what) at:skip(length(at, what), what) end,
  [FIXED32] = function(at, what) at:skip(4, what) end,
}

local function read_value(at, field, wire, what)
  local kind = kinds[field[2]] or { wire = BYTES }
  if wire ~= kind.wire then at:fail("%s: is of wire type %d, not %d", what, wire, kind.wire) end
  if kind.read then return kind.read(at, what) end
  return within(at, what, M.read, field[2])
end

local function read_list(at, wire, what, list)
  if wire == BYTES then
    within(at, what, read_ints, what, list)
  elseif wire == VARINT and #list < MOST then
    list[#list + 1] = varint(at, what)
  else
    at:fail("%s: is no list of at most %d numbers", what, MOST)
  end
end

-- Of each kind of message, once: what fields are called in errors, and as a metatable the lists that a file has nothing
-- in, one for all. There may be millions of messages.
local NONE, facts = {}, {}

local function facts_of(message)
  local names, empty = {}, {}
  for number, field in pairs(message) do
    if number ~= "message" then
      names[number] = ("%s.%s"):format(message.message, field[1])
      if field.list or field[2] == "ints" then empty[field[1]] = NONE end
    end
  end
  facts[message] = { names = names, lists = { __index = empty } }
  return facts[message]
end

-- The list of a field, which a file has something in.
local function own_list(values, field)
  local list = rawget(values, field[1])
  if not list then
    list = {}
    values[field[1]] = list
  end
  return list
end

-- The message that ends where the cursor does, as { name = value }.
function M.read(at, message)
  local of = facts[message] or facts_of(message)
  local values = setmetatable({}, of.lists)
  while at.at < at.stop do
    local tag = varint(at, message.message)
    local number, wire = tag >> 3, tag & 7
    local field = message[number]
    local what = of.names[number] or ("%s.%d"):format(message.message, number)
    if number == 0 or number >= 1 << 29 then at:fail("%s: no field has this number", what) end
    if not field then
      (skips[wire] or at:fail("%s: wire type %d is not known", what, wire))(at, what)
    elseif field[2] == "ints" then
      read_list(at, wire, what, own_list(values, field))
    elseif field.list then
      local list = own_list(values, field)
      if #list == field.list then at:fail("%s: there are more than %d", what, #list) end
      list[#list + 1] = read_value(at, field, wire, what)
    elseif values[field[1]] ~= nil then
      at:fail("%s: is there twice", what)
    else
      values[field[1]] = read_value(at, field, wire, what)
    end
  end
  return values
end

-- ---- messages as they lie in a file, for those who copy them ----

-- Calls take(number, place) for each field of the message that ends where the cursor does. place: { at, bytes } with
-- its tag; of texts and messages `first` too, where they begin.
function M.fields(at, name, take)
  while at.at < at.stop do
    local place = { at = at.at }
    local tag = varint(at, name)
    local what = ("%s.%d"):format(name, tag >> 3)
    if tag & 7 == BYTES then
      local bytes = length(at, what)
      place.first = at.at
      at:skip(bytes, what)
    else
      (skips[tag & 7] or at:fail("%s: wire type %d is not known", what, tag & 7))(at, what)
    end
    place.bytes = at.at - place.at
    take(tag >> 3, place)
  end
end

local function varint_text(value)
  local bytes = {}
  while value > 127 do
    bytes[#bytes + 1] = string.char(value & 127 | 128)
    value = value >> 7
  end
  return table.concat(bytes) .. string.char(value)
end

-- A field with a number that is not negative.
function M.int(number, value) return varint_text(number << 3 | VARINT) .. varint_text(value) end

-- The head of a field with so many bytes behind it.
function M.head(number, bytes) return varint_text(number << 3 | BYTES) .. varint_text(bytes) end

-- A field with these bytes.
function M.bytes(number, bytes) return M.head(number, #bytes) .. bytes end

return M
