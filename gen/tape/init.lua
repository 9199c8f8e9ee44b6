-- The tape: what a kernel does, as typed operations in nested scopes, before it is C text.
--
-- An emitter records functions; a function is a list of nodes:
--   op      dst = op(args) for one primitive of isa/ops.lua; dst is nil for stores
--   loop    for var = 0 .. count-1; unrolled: the compiler unrolls it completely
--   when    a block that runs if the integer `left` < `right`
--   unless  a block that runs if one of the conditions is false
--   call    a function of this tape with pointers and integers
--   apply   dst = function of vectors(args); result: what such a function returns
--   int     a named integer, int_at: one read from an array; bump: moves a pointer on
--   place   a named pointer
--   buffer  a named array of so many floats, aligned to a line of the cache
--   fence   stores to a buffer are complete there; otherwise compilers would keep its values in registers, and spill
--           others
--   note    a comment; scope: braces of C
--   array   declares arrays of values: names { name, extents }, and one of the values, `of`. Only tape/roll.lua makes
--           them, and loops that start at `first`
-- Values know their name, kind (f, m, i, c) and width; pointers are a name and an offset.

local expr = require "base.expr"
local ops = require "isa.ops"
local derived = require "isa.derived"
local nodes = require "tape.nodes"
local pointer = require "tape.pointer"
local wording = require "base.wording"

local M = { pointer = pointer }
local NOTHING = {}
local Tape = {}
Tape.__index = Tape

-- before: a tape that is printed before this one; its functions are known. why: the choices that were taken while
-- recording. Equal steps of a tile are written once where `rolled` is set afterwards, and the compiler repeats them.
function M.new(isa, before)
  return setmetatable({ isa = isa, functions = {}, by_name = before and before.by_name or {}, by_content = {},
                         why = {} }, Tape)
end

function Tape:push(node)
  local body = self.body
  node.section = self.opened
  body[#body + 1] = node
  return node
end

-- What is recorded from `open` to `close` is a section of the function: the text of equal ones is written once, as a
-- function of that name (tape/share.lua).
function Tape:open(name, doc) self.opened = { name = name, doc = doc } end
function Tape:close() self.opened = nil end

-- Records into `list` while `build` runs.
function Tape:into(list, build)
  local outer = self.body
  self.body = list
  build()
  self.body = outer
  return list
end

-- Gives a function to another use, under a name that suits both: with "rows" in the place of the role, if it has one.
function Tape:share(fn, other_name, role)
  self.by_name[other_name] = fn
  if not role or not fn.role then return end
  local name = other_name:gsub(role, "rows", 1)
  if name == fn.name or self.by_name[name] then return end
  fn.doc = fn.doc:gsub(fn.role, "rows", 1)
  fn.name, self.by_name[name] = name, fn
end

-- Raises an error for a value with the name of a parameter, which C would take for its own initializer.
local function check_names(fn, params, body)
  for _, node in ipairs(body or NOTHING) do
    local name = node.dst and type(node.dst) == "table" and node.dst.name
    if name and params[name] then error(("%s: a value has the name of the parameter %s"):format(fn.name, name), 0) end
    check_names(fn, params, node.body)
    check_names(fn, params, node.otherwise)
  end
end

-- Whether a function that is defined again is recorded again, to see that it is the same, and names are checked; the
-- tests do.
M.verify = false

-- Defines a static function, while `build` records its body. def: name, doc, attr, params
-- { { kind = C type, name }, .. }, and for a function of vectors `w`: it takes and returns one. Parameters that
-- the body does not use are left out, of the calls too. Of equal functions there is one, the first; two others
-- may not have the same name. keep: it stays as it is, for it is called from outside. reuse: a function of this
-- name that does the same in another way will do. role: the word of the name that says what it is for. loops: what it
-- repeats stays a loop for the compiler too, unless a function that is equal is not so.
function Tape:define(def, build)
  local known = self.by_name[def.name]
  if known then known.loops = known.loops and def.loops end
  if known and (def.reuse or def.keep or not M.verify) then return known end
  local fn = { name = def.name, doc = def.doc and wording.singular(def.doc), attr = def.attr, w = def.w,
               role = def.role, loops = def.loops, body = {}, params = {} }
  local opened = self.opened
  self.opened = nil
  self:into(fn.body, build)
  self.opened = opened
  if M.verify then
    local params = {}
    for _, p in ipairs(def.params) do params[p.name] = true end
    check_names(fn, params, fn.body)
  end
  local used = nodes.prune(fn.body, {})
  fn.takes, fn.idle = {}, {} -- idle: pointers and ints that must be there and have no use
  for i, p in ipairs(def.params) do
    fn.takes[i] = used[p.name] or def.keep or false
    if def.keep and not def.w and not used[p.name] then table.insert(fn.idle, p.name) end
    if fn.takes[i] then fn.params[#fn.params + 1] = p end
  end
  local text = nodes.content(fn)
  if known then
    assert(known.content == text, "two functions named " .. def.name)
    return known
  end
  local equal = not def.keep and self.by_content[text]
  if equal then
    equal.loops = equal.loops and def.loops
    self:share(equal, fn.name, def.role)
    return equal
  end
  fn.content, self.by_content[text], self.by_name[fn.name] = text, fn, fn
  self.functions[#self.functions + 1] = fn
  fn.number = #self.functions -- names may change
  return fn
end

-- dst <- op(args) into a new single-assignment value. Expands where the ISA has no row.
function Tape:op(name, w, dst, ...)
  if name == "index" and expr.is_const((...)) then return self:op("set", w, dst, (...) + 0.0) end
  local op = ops[name]
  if not self.isa.rows[name] then
    local expand = derived[name]
    if not expand then error("isa " .. self.isa.name .. " has no op " .. name) end
    return expand(self, w, dst, ...)
  end
  local args = { ... }
  assert(#args == #op.args, name)
  local value
  if op.result ~= "-" then value = { name = dst, kind = op.result, w = w } end
  self:push { kind = "op", op = op, w = w, dst = value, args = args }
  return value
end

-- An operand of a product, read by `name` from the pointer p: a number of `type`, to which it is rounded where
-- memory holds more.
function Tape:operand(type, name, w, dst, p)
  if not type.round or p.type.rounded == type then return self:op(name, w, dst, p) end
  return type.round(self, w, dst, self:op(name, w, dst .. "_exact", p))
end

-- The first `count` numbers at p by the op `name`, or that of their type; zeros in the lanes behind them.
function Tape:read(name, w, dst, p, count)
  name = p.type.load or name
  if count < w.lanes then return self:op(name .. "_n", w, dst, p, count) end
  return self:op(name, w, dst, p)
end

-- p[0 .. count - 1] <- the first lanes of a value, as numbers of p's type.
function Tape:write(w, p, value, count)
  local store = p.type.store or "store"
  if count < w.lanes then return self:op(store .. "_n", w, nil, p, value, count) end
  self:op(store, w, nil, p, value)
end

-- The same as op, but the value can be updated later: an accumulator.
function Tape:start(name, w, dst, ...)
  local value = self:op(name, w, dst, ...)
  self.body[#self.body].mutable = true
  return value
end

-- acc <- op(args), for a value made by start.
function Tape:update(acc, name, ...)
  self:push { kind = "op", op = ops[name], w = acc.w, dst = acc, updates = true, args = { ... } }
end

function Tape:loop(var, count, build)
  local node = self:push { kind = "loop", var = var, count = count, body = {} }
  local _, most = expr.range(count)
  self:into(node.body, function() build(expr.var(var, most and { 0, most - 1 })) end)
end

-- The same as straight code that the compiler makes of one round.
function Tape:unrolled(var, count, build)
  self:loop(var, count, build)
  self.body[#self.body].unrolled = true
end

function Tape:when(left, right, build, otherwise)
  local always = expr.less(left, right)
  if always ~= nil then
    local taken = always and build or otherwise
    if taken then taken() end
    return
  end
  local node = self:push { kind = "when", left = left, right = right, body = {} }
  self:into(node.body, build)
  if otherwise then node.otherwise = self:into({}, otherwise) end
end

-- usual: the body is what runs mostly, and is counted so (plan/floor.lua).
function Tape:unless(conditions, build, usual)
  local node = self:push { kind = "unless", conditions = conditions, body = {}, usual = usual }
  self:into(node.body, build)
end

function Tape:scope(build)
  local node = self:push { kind = "scope", body = {} }
  self:into(node.body, build)
end

-- Calls a function of this tape with all the arguments of its definition.
function Tape:call(fn, args)
  local list = {}
  for i, a in ipairs(args) do
    if fn.takes[i] then list[#list + 1] = a end
  end
  self:push { kind = "call", fn = fn, args = list }
end

-- dst <- fn(x), for a function of vectors.
function Tape:apply(fn, dst, x)
  local value = { name = dst, kind = "f", w = fn.w }
  self:push { kind = "apply", fn = fn, w = fn.w, dst = value, args = { x } }
  return value
end

function Tape:result(value) self:push { kind = "result", result = value } end

-- name = value, an integer, unless that is a constant or a name already. range: { least, most } of it, if tighter than
-- its expression implies.
function Tape:int(name, value, range)
  if expr.is_const(value) or expr.is_var(value) then return value end
  self:push { kind = "int", name = name, value = value }
  local least, most = expr.range(value)
  return expr.var(name, range or least and { least, most })
end

-- name = the element of the int array `base` at `off`. of: `floats`, the array has integers as floats; range, { least,
-- most } of it; usual, what it is in the bounds of plan/floor.lua
function Tape:int_at(name, base, off, of)
  of = of or NOTHING
  self:push { kind = "int_at", name = name, base = base, off = off, floats = of.floats, usual = of.usual }
  return expr.var(name, of.range)
end

-- Names for the sections of a pointer that is cut into such; those that nothing uses are dropped.
function Tape:places(pointer)
  for _, section in ipairs(pointer.sections) do
    local args = { M.pointer(pointer.base, pointer.off + section.first, pointer.type) }
    self:push { kind = "place", name = section.name, args = args, text = section.text }
  end
end

-- A place for `count` floats until the end of the block, and the pointer to it.
function Tape:buffer(name, count)
  self:push { kind = "buffer", name = name, count = count }
  return M.pointer(name)
end

function Tape:fence(pointer) self:push { kind = "fence", args = { pointer } } end

function Tape:bump(pointer, by) self:push { kind = "bump", pointer = pointer, by = by } end

function Tape:note(text) self:push { kind = "note", text = wording.singular(text) } end

return M
