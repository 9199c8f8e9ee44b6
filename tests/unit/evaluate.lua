-- Runs a tape without a C compiler: every op has the meaning that isa/ops.lua gives it, names have
-- the scopes that they have in C, and a float outside of its buffer is an error.
--
-- A buffer is { name =, size =, [0] = float, .. }, a pointer { buffer =, off = }; pointers to ints
-- are lists from 0, structs are tables of these.

local expr = require "base.expr"

local M = {}

-- ---- the functions of a meaning ----

local fn = {}

function fn.F(x) return (string.unpack("<f", string.pack("<f", x))) end
-- Words that are signaling NaN as floats stay integers: a conversion to double would change their bits.
function fn.BITS(x) return math.type(x) == "integer" and x or (string.unpack("<i4", string.pack("<f", x))) end
function fn.FLOAT(bits)
  local x = string.unpack("<f", string.pack("<I4", bits & 0xFFFFFFFF))
  return (x == x or bits & 0x400000 ~= 0) and x or bits
end
function fn.pick(condition, yes, no) if condition then return yes end return no end
function fn.fabsf(x) return math.abs(x) end
function fn.isnan(x) return x ~= x end
function fn.sqrt(x) return math.sqrt(x) end
function fn.exp2(x) return 2.0 ^ x end
function fn.idiv(a, b) return a // b end
function fn.ishl(a, n) return (string.unpack("<i4", string.pack("<I4", (a << n) & 0xFFFFFFFF))) end
function fn.iadd(a, b) return (string.unpack("<i4", string.pack("<I4", (a + b) & 0xFFFFFFFF))) end

function fn.iand(a, b) return a & b end
function fn.ixor(a, b) return (string.unpack("<i4", string.pack("<I4", (a ~ b) & 0xFFFFFFFF))) end
function fn.UBYTE(a, k) return a >> 8 * k & 0xFF end

function fn.QUAD(...)
  local bytes = 0
  for k, x in ipairs { ... } do
    bytes = bytes | (x == x and math.tointeger(fn.rintf(x)) & 0xFF or 0) << 8 * (k - 1)
  end
  return (string.unpack("<i4", string.pack("<I4", bytes)))
end


-- A buffer of words has integers.
function fn.WORD(x) return x and (math.type(x) == "integer" and x or fn.BITS(x)) end

local function part(bits)
  return function(a, n)
    local low = a >> bits * n & (1 << bits) - 1
    return low >= 1 << bits - 1 and low - (1 << bits) or low
  end
end
fn.BYTE, fn.NIBBLE, fn.SHORT = part(8), part(4), part(16)

local function short(x) return x == x and math.tointeger(fn.rintf(x)) & 0xFFFF or 0 end
function fn.SHORTS(x, y) return (string.unpack("<i4", string.pack("<I4", short(x) | short(y) << 16))) end

function fn.floor(x) return x ~= x and x or math.floor(x) + 0.0 end

function fn.rintf(x)
  if x ~= x or math.abs(x) >= 2.0 ^ 23 then return x end
  return x + 0x1.8p52 - 0x1.8p52
end

-- To so many bits of the significand, the last of which is at least that of numbers from 2^least on.
local function nearest(x, bits, least, most)
  if x ~= x or x == 0 or math.abs(x) == math.huge then return x end
  local exponent = (string.unpack("<I8", string.pack("<d", x)) >> 52 & 0x7FF) - 1023
  local step = 2.0 ^ (math.max(exponent, least) - bits + 1)
  local rounded = fn.rintf(x / step) * step
  return math.abs(rounded) > most and rounded * math.huge or rounded
end

function fn.FLUSHED(x) return math.abs(x) < 0x1p-126 and x * 0.0 or x end
function fn.LOW(x) return fn.FLUSHED(fn.FLOAT(fn.ishl(fn.BITS(x), 16))) end
function fn.HIGH(x) return fn.FLUSHED(fn.FLOAT(fn.BITS(x) & ~0xFFFF)) end
function fn.POWER(x)
  local twice = x < 65280 and math.tointeger(fn.rintf(math.max(x, 0.0))) or 65280
  local part = ((twice // 4 % 64) * 4 + 25) / 256 % 1
  return twice + math.floor(23.5 + 256 * (2.0 ^ part - 1 - part)) + 1 >> 1
end
function fn.PAIR(x, y) return fn.FLOAT(fn.BITS(x) >> 16 & 0xFFFF | fn.BITS(y) & ~0xFFFF) end
local halves = {
  [0] = function(bits) -- the number of 16 bits
    local exponent, fraction = bits >> 10 & 31, bits & 1023
    local size = exponent == 31 and (fraction > 0 and 0 / 0 or math.huge)
      or exponent == 0 and fraction * 2.0 ^ -24 or (1024 + fraction) * 2.0 ^ (exponent - 25)
    return bits & 0x8000 > 0 and -size or size
  end,
  [1] = function(x) -- the bits of a number
    local sign, size = string.unpack("<I8", string.pack("<d", x)) >> 48 & 0x8000, math.abs(x)
    if x ~= x then return 0x7E00 end
    if size == math.huge then return sign | 0x7C00 end
    if size < 2.0 ^ -14 then return sign | math.tointeger(size * 2.0 ^ 24) end
    local exponent = (string.unpack("<I8", string.pack("<d", size)) >> 52) - 1023
    return sign | exponent + 15 << 10 | math.tointeger(size * 2.0 ^ (10 - exponent)) - 1024
  end,
}
function fn.LOW_F16(x) return halves[0](fn.BITS(x) & 0xFFFF) end
function fn.HIGH_F16(x) return halves[0](fn.BITS(x) >> 16 & 0xFFFF) end
function fn.PAIR_F16(x, y) return fn.FLOAT(halves[1](x) | halves[1](y) << 16) end
function fn.BF16(x) return nearest(x, 8, -126, 0x1.FEp127) end
function fn.F16(x) return nearest(x, 11, -14, 65504.0) end

-- A sum, rounded to odd in double: rounding it again to float32 is the same as rounding once then (Boldo & Melquiond
-- 2008).
local function odd_sum(x, y)
  local sum = x + y
  local y_part = sum - x
  local lost = (x - (sum - y_part)) + (y - y_part)
  if lost == 0 or lost ~= lost then return sum end
  local bits = string.unpack("<i8", string.pack("<d", sum))
  if bits & 1 == 0 then bits = bits + ((lost > 0) == (sum > 0) and 1 or -1) end
  return (string.unpack("<d", string.pack("<i8", bits)))
end

function fn.fmaf(a, b, c) return fn.F(odd_sum(a * b, c)) end -- the product is exact

-- Rounded to odd as float32 as well, and flushed.
function fn.ODD(x, y)
  local bits, below = string.unpack("<I8", string.pack("<d", odd_sum(x, y))), 1 << 29
  if bits % below > 0 and x == x and y == y then bits = bits // below * below | below end
  local odd = string.unpack("<d", string.pack("<I8", bits))
  return fn.FLUSHED(math.abs(odd) >= 2.0 ^ 128 and odd * math.huge or odd)
end

function fn.all(mask)
  for i = 0, #mask do
    if not mask[i] then return false end
  end
  return true
end

-- ---- a meaning as a function of { i =, a =, A =, .. } ----

-- Operators from loose to tight: of equal rank from the left.
local ranks = { ["or"] = 1, ["and"] = 2, ["=="] = 3, ["<"] = 3, [">"] = 3, ["<="] = 3, [">="] = 3,
                ["+"] = 4, ["-"] = 4, ["*"] = 5, ["/"] = 5, ["%"] = 5 }
local binary = {
  ["or"] = function(x, y) return x or y end, ["and"] = function(x, y) return x and y end,
  ["=="] = function(x, y) return x == y end, ["<"] = function(x, y) return x < y end,
  [">"] = function(x, y) return x > y end, ["<="] = function(x, y) return x <= y end,
  [">="] = function(x, y) return x >= y end, ["+"] = function(x, y) return x + y end,
  ["-"] = function(x, y) return x - y end, ["*"] = function(x, y) return x * y end,
  ["/"] = function(x, y) return x / y end, ["%"] = function(x, y) return x % y end,
}

local compiled = {}

local function compile(text)
  if compiled[text] then return compiled[text] end
  local words, at = {}, 1
  local rest = text:gsub("%s+", " ")
  while rest:find("%S") do
    local word = rest:match("^ *([%d.]+)") or rest:match("^ *([%a_][%w_]*)") or
      rest:match("^ *([<>=]=)") or rest:match("^ *([-+*/%%<>(),])") or error("meaning: " .. text)
    words[#words + 1] = word
    rest = rest:sub(select(2, rest:find(word, 1, true)) + 1)
  end
  local function take(word)
    if words[at] ~= word then error(("meaning: %s: no %s"):format(text, word)) end
    at = at + 1
  end

  local expression
  local function primary()
    local word = words[at]
    at = at + 1
    if word == "(" then
      local inner = expression(1)
      take ")"
      return inner
    end
    local number = tonumber(word)
    if number then return function() return number end end
    if words[at] ~= "(" then return function(lane) return lane[word] end end
    take "("
    local f, x, y, z, last = fn[word], expression(1), nil, nil, nil
    if words[at] == "," then take "," y = expression(1) end
    if words[at] == "," then take "," z = expression(1) end
    if words[at] == "," then take "," last = expression(1) end
    take ")"
    if not f then return function(lane) return lane[word][x(lane)] end end -- A(j), B(j), M(j), Y(j), W(j), N(j)
    if last then return function(lane) return f(x(lane), y(lane), z(lane), last(lane)) end end
    if z then return function(lane) return f(x(lane), y(lane), z(lane)) end end
    if y then return function(lane) return f(x(lane), y(lane)) end end
    return function(lane) return f(x(lane)) end
  end
  function expression(rank)
    local left = primary()
    while ranks[words[at]] and ranks[words[at]] >= rank do
      local word, x = words[at], left
      at = at + 1
      local f, y = binary[word], expression(ranks[word] + 1)
      left = function(lane) return f(x(lane), y(lane)) end
    end
    return left
  end

  local meaning = expression(1)
  if words[at] then error("meaning: " .. text .. ": left over " .. words[at]) end
  compiled[text] = meaning
  return meaning
end

local function meaning_of(isa, op) return compile(not isa.fused and op.unfused or op.ref) end

-- ---- names ----

function M.buffer(name, size, value)
  local buffer = { name = name, size = size }
  for i = 0, size - 1 do buffer[i] = value(i) end
  return { buffer = buffer, off = 0 }
end

-- What a function makes of a text, which is made once.
local function kept(make)
  return setmetatable({}, { __index = function(known, text)
    known[text] = make(text)
    return known[text]
  end })
end

local fields = kept(function(name) return { name:match("^([%w_]+)%->([%w_]+)$") } end)
local without_cast = kept(function(name) return (name:gsub("^%b()", "")) end)

-- The outermost scope of a function; "args->q" is field q of what args names.
local frame_index = { __index = function(frame, name)
  local object, field = table.unpack(fields[name])
  if object then return frame[object][field] end
end }

local function new_frame() return setmetatable({}, frame_index) end

local function inner(scope) return setmetatable({}, { __index = scope }) end

local function look_up(scope, name)
  local what = scope[without_cast[name]]
  if what == nil then error("no " .. name .. " here") end
  return what
end

local function define(scope, name, what)
  if rawget(scope, name) ~= nil then error(name .. " is defined twice") end
  scope[name] = what
end

local function pointer(scope, p)
  local target = look_up(scope, p.base)
  if not target.buffer then return target end
  return { buffer = target.buffer, off = target.off + expr.eval(p.off, scope) }
end

local function argument(scope, a)
  if math.type(a) == "float" then return a end
  if type(a) == "table" and a.base then return pointer(scope, a) end
  return expr.eval(a, scope)
end

-- ---- ops ----

local function outside(op, p, i)
  error(("%s at float %d of %s, which has %d"):format(op.name, p.off + i, p.buffer.name, p.buffer.size))
end

-- Ops of tiles, by what they do: `tiles` has their words, by the names of registers, while they are on.
local tile_ops = {}

function tile_ops.on(tiles)
  if tiles.on then error "tiles that are on already" end
  for name in pairs(tiles) do tiles[name] = nil end
  tiles.on = true
end

function tile_ops.off(tiles) tiles.on = nil end

-- The words of a register, and the pointer of an op; every address of its 16 rows is there.
local function tile_operands(tiles, node, scope)
  local lane, op, at = {}, node.op, nil
  for k, letter in ipairs(op.args) do
    local v = node.args[k]
    if letter == "t" then
      local word = k == 1 and "D" or ("_AB"):sub(k, k)
      tiles[v] = tiles[v] or setmetatable({}, { __index = function() return 0.0 end })
      lane[word] = tiles[v]
    elseif letter == "a" then
      at = pointer(scope, v)
    else
      lane.x = expr.eval(v, scope)
    end
  end
  return lane, at
end

local function tile_place(op, at, step, i)
  local place = i // 16 * step + i % 16
  if at.buffer[at.off + place] == nil then outside(op, at, place) end
  return at.off + place
end

function tile_ops.stores(tiles, node, scope)
  local lane, at = tile_operands(tiles, node, scope)
  for i = 0, 255 do at.buffer[tile_place(node.op, at, lane.x, i)] = lane.D[i] end
end

function tile_ops.writes(tiles, node, scope)
  local lane, at = tile_operands(tiles, node, scope)
  local op, out = node.op, {}
  lane.M = at and setmetatable({}, { __index = function(_, j) return at.buffer[at.off + j] end })
  for i = 0, 255 do
    lane.i = i
    if at then tile_place(op, at, lane.x, i) end
    lane.low, lane.high = 0.0, 0.0
    for k = 0, op.fold and 15 or -1 do
      lane.k = k
      lane.low, lane.high = compile(op.fold.low)(lane), compile(op.fold.high)(lane)
    end
    out[i] = compile(op.ref)(lane)
  end
  tiles[node.args[1]] = out
end

-- Ops that leave numbers as they are, and words, which are integers here.
local moves = { load = true, load_n = true, trn_lo = true, trn_hi = true, as_f = true }

-- What the lanes of an op see, by the words of its meaning. Each run sets `pointer`, `list`, which has the operands in
-- order, and the words of literals.
local function new_view()
  local view = { list = {} }
  local function memory(_, j) return view.pointer.buffer[view.pointer.off + j] end
  local function proxy(read) return setmetatable({}, { __index = read }) end
  view.M = proxy(memory)
  view.Y, view.S, view.U, view.H = view.M, view.M, view.M, view.M -- buffers have numbers of any type
  view.W = proxy(function(_, j) -- a word that was stored, or a float
    local there = memory(_, j)
    return math.type(there) == "float" and fn.BITS(there) or there
  end)
  view.N = proxy(function(_, j) return view.list[j // view.lanes + 1][j % view.lanes] end)
  return view
end

-- How an operand is set, by its letter; the others are vectors.
local operands = {}

function operands.a(view, node, scope, k) view.pointer = pointer(scope, node.args[k]) end
for letter in ("ybuh"):gmatch "." do operands[letter] = operands.a end

function operands.e(view, node, scope, k)
  operands.a(view, node, scope, k)
  view.e, view.word = view.M[0], view.W[0]
  if view.e == nil then outside(node.op, view.pointer, 0) end
end

function operands.s(view, node, _, k) view.s = fn.F(node.args[k]) end
function operands.n(view, node, scope, k) view.n = expr.eval(node.args[k], scope) end
function operands.x(view, node, scope, k) view.x = expr.eval(node.args[k], scope) end

-- Calls set(view, node, scope, k) for operand k of an op.
local function setter(op, k)
  if operands[op.args[k]] then return operands[op.args[k]] end
  local word = ("ABCD"):sub(k, k)
  return function(view, node, scope)
    local v = node.args[k]
    local value = look_up(scope, v.name)
    if #value + 1 ~= v.w.lanes then error(v.name .. " is a vector of another width") end
    view[word], view.list[k] = value, value
  end
end

-- Stores `count` lanes.
local function store(op, to, lanes, count)
  for i = 0, count - 1 do
    if to.buffer[to.off + i] == nil then outside(op, to, i) end
    if to.buffer.constant then error(op.name .. " into " .. to.buffer.name) end
    to.buffer[to.off + i] = lanes[i]
  end
end

-- A function run(node, scope) for an op of an ISA.
local function runner(isa, op)
  local meaning, view, set, vectors = meaning_of(isa, op), new_view(), {}, {}
  for k, letter in ipairs(op.args) do
    set[k] = setter(op, k)
    if not operands[letter] then vectors[#vectors + 1] = { k = k, word = ("abcd"):sub(k, k) } end
  end
  return function(node, scope)
    for k = 1, #set do set[k](view, node, scope, k) end
    local out, list = {}, view.list
    view.lanes = node.w.lanes
    local count = op.result == "c" and 1 or op.result == "-" and view.n or view.lanes
    for i = 0, count - 1 do
      view.i = i
      for _, v in ipairs(vectors) do view[v.word] = list[v.k][i] end
      local r = meaning(view)
      if r == nil then outside(op, view.pointer, i) end
      if op.result == "f" and not moves[op.name] then r = r + 0.0 end
      if op.result == "i" then r = math.tointeger(r) or -2147483648 end
      out[i] = r
    end
    if op.result == "-" then return store(op, view.pointer, out, count) end
    if not node.updates then return define(scope, node.dst.name, out) end
    local sum = look_up(scope, node.dst.name)
    for i = 0, #sum do sum[i] = out[i] end
  end
end

-- ---- nodes ----

-- tape: what to run.
-- Returns run(name, arguments..).
function M.new(tape)
  local run_body, call
  local nodes = {}

  local tiles, runners = {}, {}
  function nodes.op(node, scope)
    local op = node.op
    if op.hint then
      local at = pointer(scope, node.args[1])
      if at.off < 0 or at.off > at.buffer.size then outside(op, at, 0) end
    elseif op.tile then
      if not tiles.on and op.tile ~= "on" then error(op.name .. " where there are no tiles") end
      tile_ops[op.tile](tiles, node, scope)
    else
      runners[op] = runners[op] or runner(tape.isa, op)
      runners[op](node, scope)
    end
  end
  function nodes.buffer(node, scope)
    define(scope, node.name, M.buffer(node.name, node.count, function() return 0.0 / 0.0 end))
  end
  function nodes.note() end
  function nodes.scope(node, scope) run_body(node.body, inner(scope)) end
  function nodes.bump(node, scope)
    local p = look_up(scope, node.pointer.base)
    p.off = p.off + expr.eval(node.by, scope)
  end
  function nodes.place(node, scope) define(scope, node.name, pointer(scope, node.args[1])) end
  function nodes.int(node, scope) define(scope, node.name, expr.eval(node.value, scope)) end
  function nodes.int_at(node, scope)
    local array, at = look_up(scope, node.base), expr.eval(node.off, scope)
    if array.buffer then array, at = array.buffer, array.off + at end
    define(scope, node.name, math.tointeger(array[at]))
  end
  function nodes.fence() end
  function nodes.loop(node, scope)
    for i = 0, expr.eval(node.count, scope) - 1 do
      local round = inner(scope)
      round[node.var] = i
      run_body(node.body, round)
    end
  end
  function nodes.when(node, scope)
    local taken = expr.eval(node.left, scope) < expr.eval(node.right, scope) and node.body
      or node.otherwise
    if taken then run_body(taken, inner(scope)) end
  end
  function nodes.unless(node, scope)
    local good = true
    for _, c in ipairs(node.conditions) do good = good and look_up(scope, c.name)[0] end
    if not good then run_body(node.body, inner(scope)) end
  end
  function nodes.call(node, scope)
    local args = {}
    for i, a in ipairs(node.args) do args[i] = argument(scope, a) end
    call(node.fn, args)
  end
  function nodes.apply(node, scope)
    define(scope, node.dst.name, call(node.fn, { look_up(scope, node.args[1].name) }))
  end
  function nodes.result(node, scope) scope["return"] = look_up(scope, node.result.name) end

  function run_body(body, scope)
    for _, node in ipairs(body) do nodes[node.kind](node, scope) end
  end

  function call(f, args)
    local frame = new_frame()
    if #args ~= #f.params then error(f.name .. ": wrong number of arguments") end
    for i, p in ipairs(f.params) do frame[p.name] = args[i] end
    run_body(f.body, frame)
    return frame["return"]
  end

  return function(name, ...)
    local result = call(tape.by_name[name], { ... })
    if tiles.on then error(name .. " has left tiles on") end
    return result
  end
end

return M
