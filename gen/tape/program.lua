-- Turns a tape into a program for gen/host/evaluate.c, which runs it without a compiler.
--
-- A program is { functions, meanings, constants, globals, number }.
--   number    of a function, by its name
--   globals   the fields of mhagen_args that it reads, in the order in which host.evaluate takes their memory

local compiled = require "tape.meaning"
local numbered = require("base.wording").numbered

-- In the order of gen/host/evaluate.c.
local statements = numbered "op loop when unless call apply result int int_at float_at bump move buffer"
local atoms = numbered "var div mod min max"
local operands = numbered "register memory whole tile"
local fmas = numbered "none fused unfused"

local Program = {}
Program.__index = Program

-- The number of an op's meaning, and of those of the states of its tiles.
function Program:meaning(op)
  local known = self.known[op.name]
  if known then return known end
  local folds = -1
  if op.fold then
    folds = #self.meanings
    for _, of in ipairs { "low", "high" } do
      self.meanings[#self.meanings + 1] = compiled(op, op.fold[of], self.constants, "register")
    end
  end
  local own = compiled(op, not self.isa.fused and op.unfused or op.ref, self.constants)
  self.meanings[#self.meanings + 1] = own
  self.known[op.name] = { at = #self.meanings - 1, folds = folds, bytes = own.bytes }
  return self.known[op.name]
end

-- A function that is being compiled: the code so far, names in scopes, how many of each there are.
local Function = {}
Function.__index = Function

function Function:say(...)
  for _, x in ipairs { ... } do self.code[#self.code + 1] = x end
end

function Function:define(kind, name)
  local at = self[kind]
  self[kind] = at + 1
  self.scope[kind .. name] = at
  return at
end

function Function:find(kind, name) return self.scope[kind .. name] or error("no " .. name .. " here") end

function Function:register(value) return self:find("registers", value.name) end

function Function:expression(e)
  if math.type(e) == "integer" then return self:say(e, 0) end
  local const, terms = e.const, {}
  for _, term in ipairs(e.terms) do
    if term.atom.value then
      const = const + term.coef * term.atom.value
    else
      terms[#terms + 1] = term
    end
  end
  self:say(const, #terms)
  for _, term in ipairs(terms) do
    local atom = term.atom
    self:say(term.coef, atoms[atom.op or "var"])
    if not atom.op then self:say(self:find("ints", atom.key)) end
    for _, part in ipairs(atom.of) do self:expression(part) end
  end
end

function Function:slot(base)
  local name = base:gsub("^%b()", "")
  local field = name:match("^args%->([%w_]+)$")
  return field and -1 - self.program:global(field) or self:find("pointers", name)
end

function Function:pointer(p, off)
  self:say(self:slot(p.base), p.type.bytes)
  self:expression(off or p.off)
end

function Function:operand(letter, v)
  if letter:find "[aeybuh]" then
    self:say(operands.memory)
    self:pointer(v)
  elseif letter == "t" then
    self.program.tiles[v] = self.program.tiles[v] or #self.program.tile_names
    self.program.tile_names[self.program.tiles[v] + 1] = v
    self:say(operands.tile, self.program.tiles[v])
  elseif letter == "s" then
    self:say(operands.whole, ("<I4"):unpack(("<f"):pack(v)), 0)
  elseif letter == "n" or letter == "x" then
    self:say(operands.whole)
    self:expression(v)
  else
    self:say(operands.register, self:register(v))
  end
end

-- The code of a list of nodes in a scope of its own, behind its length.
function Function:inner(body, before)
  local code, scope = self.code, self.scope
  self.code, self.scope = {}, setmetatable({}, { __index = scope })
  if before then before() end
  self:body(body or {})
  local own = self.code
  self.code, self.scope = code, scope
  return own
end

function Function:append(own) table.move(own, 1, #own, #self.code + 1, self.code) end

-- Arguments, as a function has its parameters: registers, pointers, integers. args itself is of all.
local function is_args(param) return param.kind:find("mhagen_args", 1, true) end

function Function:arguments(fn, args)
  local count = 0
  for _, p in ipairs(fn.params) do count = count + (is_args(p) and 0 or 1) end
  self:say(count)
  for i, p in ipairs(fn.params) do
    if fn.w then
      self:say(operands.register, self:register(args[i]))
    elseif p.kind:find("*", 1, true) then
      if not is_args(p) then
        self:say(operands.memory)
        self:pointer(args[i])
      end
    else
      self:say(operands.whole)
      self:expression(args[i])
    end
  end
end

local nodes = {}

function nodes.op(f, node)
  local op = node.op
  if op.hint or op.tile == "on" or op.tile == "off" then return end
  local meaning, count = f.program:meaning(op), node.w.lanes
  if op.result == "c" then count = 1 end
  if op.result == "-" and op.halves then count = count // 2 end
  if op.result == "-" and op.args[3] == "n" then count = -1 end
  local target = meaning.bytes or -1
  if op.result ~= "-" and node.updates then target = f:register(node.dst) end
  local own = f:inner(nil, function()
    for k, letter in ipairs(op.args) do f:operand(letter, node.args[k]) end
  end)
  if op.result ~= "-" and not node.updates then target = f:define("registers", node.dst.name) end
  local fma = fmas[op.name ~= "fma" and "none" or f.program.isa.fused and "fused" or "unfused"]
  f:say(statements.op, meaning.at, node.w.lanes, count, fma, target, meaning.folds, #op.args)
  f:append(own)
end

function nodes.buffer(f, node)
  local bytes = 4 * node.count
  f:say(statements.buffer, f:define("pointers", node.name), f.bytes, bytes)
  f.bytes = f.bytes + (bytes + 63) // 64 * 64
end

function nodes.note() end
function nodes.fence() end
function nodes.scope(f, node) f:append(f:inner(node.body)) end

function nodes.bump(f, node)
  f:say(statements.bump)
  f:pointer(node.pointer, node.by)
end

function nodes.place(f, node)
  f:say(statements.move, f.pointers)
  f:pointer(node.args[1])
  f:define("pointers", node.name)
end

function nodes.int(f, node)
  f:say(statements.int, f.ints)
  f:expression(node.value)
  f:define("ints", node.name)
end

function nodes.int_at(f, node)
  f:say(node.floats and statements.float_at or statements.int_at, f.ints, f:slot(node.base), 4)
  f:expression(node.off)
  f:define("ints", node.name)
end

function nodes.loop(f, node)
  local var
  local own = f:inner(node.body, function() var = f:define("ints", node.var) end)
  f:say(statements.loop, var)
  f:expression(node.count)
  f:say(#own)
  f:append(own)
end

function nodes.when(f, node)
  local yes, no = f:inner(node.body), f:inner(node.otherwise)
  f:say(statements.when)
  f:expression(node.left)
  f:expression(node.right)
  f:say(#yes, #no)
  f:append(yes)
  f:append(no)
end

function nodes.unless(f, node)
  local own = f:inner(node.body)
  f:say(statements.unless, #node.conditions)
  for _, condition in ipairs(node.conditions) do f:say(f:register(condition)) end
  f:say(#own)
  f:append(own)
end

function nodes.call(f, node)
  f:say(statements.call, f.program.number_of[node.fn])
  f:arguments(node.fn, node.args)
end

function nodes.apply(f, node)
  local source = f:register(node.args[1])
  f:say(statements.apply, f.program.number_of[node.fn], f:define("registers", node.dst.name), 1, operands.register,
        source)
end

function nodes.result(f, node) f:say(statements.result, f:register(node.result)) end

function Function:body(list)
  for _, node in ipairs(list) do nodes[node.kind](self, node) end
end

function Program:global(field)
  if not self.globals[field] then
    table.insert(self.globals, field)
    self.globals[field] = #self.globals - 1
  end
  return self.globals[field]
end

function Program:compile(fn)
  local f = setmetatable({ program = self, code = {}, scope = {}, registers = 0, pointers = 0, ints = 0, bytes = 0 },
                         Function)
  for _, p in ipairs(fn.params) do
    local kind = fn.w and "registers" or p.kind:find("*", 1, true) and "pointers" or "ints"
    if not is_args(p) then f:define(kind, p.name) end
  end
  f:body(fn.body)
  return { code = f.code, registers = f.registers, pointers = f.pointers, ints = f.ints, bytes = f.bytes }
end

return function(tape)
  local self = setmetatable({ isa = tape.isa, functions = {}, meanings = {}, constants = {}, globals = {}, known = {},
                              tiles = {}, tile_names = {}, number = {}, number_of = {} }, Program)
  for i, fn in ipairs(tape.functions) do self.number[fn.name], self.number_of[fn] = i - 1, i - 1 end
  for i, fn in ipairs(tape.functions) do self.functions[i] = self:compile(fn) end
  return self
end
