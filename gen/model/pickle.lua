-- A reader of Python's pickles that runs nothing: numbers, texts, lists and dictionaries, and what the caller allows.
--
--   at          a cursor over the bytes of the pickle
--   names       { ["module name"] = value or { call = of (arguments, at) } }; other names are refused
--   persistent  of (tuple, at) to the value that is stored elsewhere
--
-- A tuple or list is { kind = "tuple" or "list", .. }, a dictionary { kind = "dictionary", names = { key, .. },
-- of = { key: value } }. M.NONE is Python's None.

local wording = require "base.wording"

local M = { NONE = { kind = "None" } }

-- ---- the stack ----

local function push(m, value)
  m.count = m.count + 1
  m.stack[m.count] = value
end

-- The last value, which stays; those before the last mark are out of reach.
local function top(m, kind)
  local value = m.stack[m.count]
  if m.count <= (m.marks[#m.marks] or 0) then m.at:fail("the stack is empty") end
  if kind and (type(value) ~= "table" or value.kind ~= kind) then m.at:fail("a %s is missing", kind) end
  return value
end

local function pop(m, kind)
  local value = top(m, kind)
  m.stack[m.count], m.count = nil, m.count - 1
  return value
end

-- The last values, of this kind in a list of theirs; count: how many, or nil for those behind the last mark.
local function pops(m, kind, count)
  local first = count and m.count - count or table.remove(m.marks) or m.at:fail("there is no mark")
  if first < (m.marks[#m.marks] or 0) then m.at:fail("the stack is empty") end
  local list = table.move(m.stack, first + 1, m.count, 1, { kind = kind })
  for i = first + 1, m.count do m.stack[i] = nil end
  m.count = first
  return list
end

-- ---- what is made ----

local function set_items(m, items)
  local into = top(m, "dictionary")
  if #items % 2 ~= 0 then m.at:fail("a key has no value") end
  for i = 1, #items, 2 do
    local key = items[i]
    if type(key) == "table" or math.type(key) == "float" then m.at:fail("a key is no text") end
    if into.of[key] ~= nil then m.at:fail("key %s is there twice", wording.short(key)) end
    into.names[#into.names + 1], into.of[key] = key, items[i + 1]
  end
end

local function append(m, items)
  local into = top(m, "list")
  table.move(items, 1, #items, #into + 1, into)
end

function M.dictionary() return { kind = "dictionary", names = {}, of = {} } end

local function name_of(m, module, name)
  local full = ("%s %s"):format(module, name)
  return m.names[full] or m.at:fail("%s.%s is not of a state dict, and is not run; save " ..
    "model.state_dict() alone", wording.short(module), wording.short(name))
end

local function line(m)
  local bytes = {}
  repeat
    bytes[#bytes + 1] = m.at:bytes(1, "GLOBAL")
    if #bytes > 256 then m.at:fail("GLOBAL: a name is too long") end
  until bytes[#bytes] == "\n"
  return table.concat(bytes, "", 1, #bytes - 1)
end

local function reduce(m)
  local arguments, callee = pop(m, "tuple"), pop(m)
  if type(callee) ~= "table" or not callee.call then m.at:fail("REDUCE: is of no function") end
  push(m, callee.call(arguments, m.at))
end

local function recall(m, i)
  if m.memo[i] == nil then m.at:fail("the memo has no %d", i) end
  push(m, m.memo[i])
end

local function number(format)
  return function(m) push(m, m.at:number(format, "number")) end
end

local function text(format)
  return function(m) push(m, m.at:bytes(m.at:number(format, "length of a text"), "text")) end
end

local function tuple(count)
  return function(m) push(m, pops(m, "tuple", count)) end
end

local function constant(value)
  return function(m) push(m, value) end
end

-- ---- opcodes, by their bytes ----

local ops = {
  ["\x80"] = function(m) -- PROTO
    local version = m.at:byte "version"
    if version < 2 or version > 5 then m.at:fail("protocol %d is not known", version) end
  end,
  ["\x95"] = function(m) m.at:inside(m.at:number("I8", "length of a frame"), "frame") end, -- FRAME
  ["("] = function(m) m.marks[#m.marks + 1] = m.count end,
  ["N"] = constant(M.NONE), ["\x88"] = constant(true), ["\x89"] = constant(false),
  ["J"] = number "i4", ["K"] = number "I1", ["M"] = number "I2",
  ["\x8a"] = function(m) -- LONG1
    local bytes = m.at:byte "length of a number"
    if bytes < 1 or bytes > 8 then m.at:fail("a number of %d bytes", bytes) end
    push(m, (string.unpack("<i" .. bytes, m.at:bytes(bytes, "number"))))
  end,
  ["G"] = function(m) push(m, (string.unpack(">d", m.at:bytes(8, "number")))) end, -- BINFLOAT
  ["X"] = text "I4", ["\x8c"] = text "I1", ["\x8d"] = text "I8",
  [")"] = tuple(0), ["\x85"] = tuple(1), ["\x86"] = tuple(2), ["\x87"] = tuple(3), ["t"] = tuple(),
  ["]"] = function(m) push(m, { kind = "list" }) end,
  ["a"] = function(m) append(m, pops(m, "list", 1)) end,
  ["e"] = function(m) append(m, pops(m, "list")) end,
  ["}"] = function(m) push(m, M.dictionary()) end,
  ["s"] = function(m) set_items(m, pops(m, "list", 2)) end,
  ["u"] = function(m) set_items(m, pops(m, "list")) end,
  ["c"] = function(m) -- GLOBAL
    local module = line(m)
    push(m, name_of(m, module, line(m)))
  end,
  ["\x93"] = function(m) -- STACK_GLOBAL
    local name, module = pop(m), pop(m)
    if type(name) ~= "string" or type(module) ~= "string" then m.at:fail("STACK_GLOBAL: a name is no text") end
    push(m, name_of(m, module, name))
  end,
  ["R"] = reduce,
  ["b"] = function(m) -- BUILD: attributes of a dictionary, which nobody needs
    pop(m)
    top(m, "dictionary")
  end,
  ["Q"] = function(m) push(m, m.persistent(pop(m, "tuple"), m.at)) end,
  ["q"] = function(m) m.memo[m.at:byte "memo"] = top(m) end,
  ["r"] = function(m) m.memo[m.at:number("I4", "memo")] = top(m) end,
  ["\x94"] = function(m) -- MEMOIZE
    m.memo[m.memoized], m.memoized = top(m), m.memoized + 1
  end,
  ["h"] = function(m) recall(m, m.at:byte "memo") end,
  ["j"] = function(m) recall(m, m.at:number("I4", "memo")) end,
}

-- The value of a pickle.
function M.read(at, names, persistent)
  local m = { at = at, names = names, persistent = persistent, stack = {}, count = 0, marks = {}, memo = {},
              memoized = 0 }
  while true do
    local code = at:bytes(1, "opcode")
    if code == "." then return pop(m) end
    local op = ops[code] or at:fail("opcode 0x%02x is not of a state dict", code:byte())
    op(m)
  end
end

return M
