-- The meaning of an op -> instructions for gen/host/evaluate.c.
--
--   op, text     an op of isa/ops.lua, and its `ref` or another text of that kind
--   constants    a list of doubles, which grows
--   kind         where the result goes, if the op does not say that
--   returns      { code, result, kind, bytes }: result is a cell, bytes those of a number in memory
--
-- An instruction is six integers. It computes a cell of a type: f are the bits of a float, d is a double, i an
-- integer, b a condition.

local numbered = require("base.wording").numbered

-- In the order of gen/host/evaluate.c.
local instructions = numbered [[
  lane at number load load_byte load_signed load_bf16 load_half index step given bits_given constant
  integer tile_at state
  f_to_d d_to_f i_to_d d_to_i word_to_i
  add sub mul div less equal int_add int_sub int_mul int_div int_mod int_less int_equal not and
  pick fmaf sqrt exp2 floor rint fabs is_nan bf16 f16 flushed odd low high pair low_f16 high_f16
  pair_f16 byte unsigned_byte nibble short shorts quad power shift and_bits xor_bits add_bits all ]]
local results = numbered "register memory tile from_tile none"

-- ---- the text of a meaning -> a tree ----

local ranks = { ["or"] = 1, ["and"] = 2, ["=="] = 3, ["<"] = 3, [">"] = 3, ["+"] = 4, ["-"] = 4, ["*"] = 5,
                ["/"] = 5, ["%"] = 5 }
local patterns = { "^(0x%x+)", "^(%d+%.?%d*)", "^([%a_][%w_]*)", "^(==)", "^([-+*/%%<>(),])" }

local function tokens(text)
  local list, at = {}, 1
  while text:find("%S", at) do
    at = text:find("%S", at)
    local token
    for _, pattern in ipairs(patterns) do token = token or text:match(pattern, at) end
    list[#list + 1] = token or error("meaning: " .. text)
    at = at + #list[#list]
  end
  return list
end

local function tree(text)
  local list, at, expression = tokens(text), 1, nil
  local function take(token)
    if list[at] ~= token then error(("meaning: %s: no %s"):format(text, token)) end
    at = at + 1
  end
  local function primary()
    local token = list[at]
    at = at + 1
    if token == "(" then
      local inner = expression(1)
      take ")"
      return inner
    end
    if tonumber(token) then return { number = tonumber(token) } end
    if list[at] ~= "(" then return { word = token } end
    local node = { call = token }
    repeat
      at = at + 1
      node[#node + 1] = expression(1)
    until list[at] ~= ","
    take ")"
    return node
  end
  function expression(rank)
    local left = primary()
    while ranks[list[at]] and ranks[list[at]] >= rank do
      local token = list[at]
      at = at + 1
      left = { op = token, left, expression(ranks[token] + 1) }
    end
    return left
  end
  local node = expression(1)
  if list[at] then error(("meaning: %s: left over %s"):format(text, list[at])) end
  return node
end

-- ---- a tree -> instructions ----

-- Functions of a meaning: instruction, type of the result, types of the operands.
local calls = {
  F = { "d_to_f", "f", "d" }, fmaf = { "fmaf", "f", "f", "f", "f" }, ["sqrt"] = { "sqrt", "d", "d" },
  exp2 = { "exp2", "d", "d" }, floor = { "floor", "d", "d" }, rintf = { "rint", "d", "d" },
  fabsf = { "fabs", "d", "d" }, isnan = { "is_nan", "b", "d" }, BF16 = { "bf16", "d", "d" }, F16 = { "f16", "d", "d" },
  FLUSHED = { "flushed", "d", "d" }, ODD = { "odd", "d", "d", "d" }, LOW = { "low", "d", "f" },
  HIGH = { "high", "d", "f" }, PAIR = { "pair", "f", "f", "f" }, LOW_F16 = { "low_f16", "d", "f" },
  HIGH_F16 = { "high_f16", "d", "f" }, PAIR_F16 = { "pair_f16", "f", "d", "d" }, BITS = { "word_to_i", "i", "f" },
  BYTE = { "byte", "i", "i", "i" }, UBYTE = { "unsigned_byte", "i", "i", "i" }, NIBBLE = { "nibble", "i", "i", "i" },
  SHORT = { "short", "i", "i", "i" }, SHORTS = { "shorts", "i", "d", "d" }, QUAD = { "quad", "i", "d", "d", "d", "d" },
  POWER = { "power", "i", "d" }, ishl = { "shift", "i", "i", "i" }, iand = { "and_bits", "i", "i", "i" },
  ixor = { "xor_bits", "i", "i", "i" }, iadd = { "add_bits", "i", "i", "i" }, idiv = { "int_div", "i", "i", "i" },
}
-- Operators: the instruction for doubles, that for integers, and what it makes if that is no number.
local binary = { ["+"] = { "add", "int_add" }, ["-"] = { "sub", "int_sub" }, ["*"] = { "mul", "int_mul" },
                 ["/"] = { "div" }, ["%"] = { nil, "int_mod" }, ["<"] = { "less", "int_less", "b" },
                 ["=="] = { "equal", "int_equal", "b" } }
local memory = { M = { "load", "f" }, Y = { "load_byte", "i" }, S = { "load_signed", "i" }, U = { "load_bf16", "f" },
                 H = { "load_half", "d" } }
local conversions = { fd = { "f_to_d" }, ["if"] = { "i_to_d", "d_to_f" }, id = { "i_to_d" }, df = { "d_to_f" },
                      di = { "d_to_i" }, fi = { "f_to_d", "d_to_i" } }

local Meaning = {}
Meaning.__index = Meaning

-- A cell; equal instructions have one.
function Meaning:emit(name, type, a, b, c, d)
  local key = ("%s %s %s %s %s"):format(name, a, b, c, d)
  if not self.known[key] then
    self.count = self.count + 1
    table.move({ instructions[name], self.count - 1, a or 0, b or 0, c or 0, d or 0 }, 1, 6, #self.code + 1, self.code)
    self.known[key] = self.count - 1
  end
  return { at = self.known[key], type = type }
end

function Meaning:to(type, cell)
  if cell.type == type then return cell end
  for _, name in ipairs(conversions[cell.type .. type] or error("meaning: no " .. cell.type .. " as " .. type)) do
    cell = self:emit(name, type, cell.at)
  end
  return cell
end

function Meaning:integer(value) return self:emit("integer", "i", value) end

-- What is read by its index in operand k, whose letter says what it is.
function Meaning:typed(k, cell)
  local letter = self.op.args[k]
  if letter == "i" then return self:emit("word_to_i", "i", cell.at) end
  return { at = cell.at, type = letter == "m" and "b" or "f" }
end

-- The number of the operand with one of the letters.
function Meaning:operand(letters)
  for k, letter in ipairs(self.op.args) do
    if letters:find(letter, 1, true) then return k - 1 end
  end
end

function Meaning:loaded(row, index)
  return self:emit(row[1], row[2], 0, self:to("i", index).at, (self.mask or self:integer(1)).at)
end

local lane_words = { a = 1, b = 2, c = 3, d = 4 }
local named = {
  i = function(self) return self:emit("index", "i") end,
  k = function(self) return self:emit("step", "i") end,
  n = function(self) return self:emit("given", "i", self:operand "n") end,
  x = function(self) return self:emit("given", "i", self:operand "x") end,
  s = function(self) return self:emit("bits_given", "f", self:operand "s") end,
  e = function(self) return self:loaded(memory.M, self:integer(0)) end,
  word = function(self) return self:emit("word_to_i", "i", self:loaded(memory.M, self:integer(0)).at) end,
  low = function(self) return self:state(0) end,
  high = function(self) return self:state(1) end,
}

function Meaning:state(which)
  local cell = self:emit("state", "f", which)
  return self.op.ref:find "iadd" and self:emit("word_to_i", "i", cell.at) or cell
end

function Meaning:word(word)
  local k = lane_words[word]
  if not k then return named[word](self) end
  return self:typed(k, self:emit("lane", "f", k - 1))
end

-- One of two, each computed where it is chosen: memory is read there alone.
function Meaning:pick(node)
  local outer, condition = self.mask, self:value(node[1])
  local function branch(inner, of)
    self.mask = outer and self:emit("and", "b", outer.at, inner.at) or inner
    local cell = self:value(of)
    self.mask = outer
    return cell
  end
  local yes = branch(condition, node[2])
  local no = branch(self:emit("not", "b", condition.at), node[3])
  if yes.type ~= no.type then
    local type = (yes.type == "i" or no.type == "i") and "d" or "f"
    yes, no = self:to(type, yes), self:to(type, no)
  end
  return self:emit("pick", yes.type, condition.at, yes.at, no.at)
end

local special = {
  pick = Meaning.pick,
  all = function(self) return self:emit("all", "b", 0) end,
  N = function(self, node) return self:emit("number", "f", self:to("i", self:value(node[1])).at) end,
  FLOAT = function(self, node) return { at = self:to("i", self:value(node[1])).at, type = "f" } end,
  WORD = function(self, node)
    local cell = self:value(node[1])
    return cell.type == "i" and cell or self:emit("word_to_i", "i", cell.at)
  end,
}
local tiles = { D = 0, A = 1, B = 2 }

function Meaning:call(node)
  local name = node.call
  if special[name] then return special[name](self, node) end
  if memory[name] then return self:loaded(memory[name], self:value(node[1])) end
  if self.op.tile and tiles[name] then return self:emit("tile_at", "f", tiles[name], self:value(node[1]).at) end
  if tiles[name] then
    return self:typed(tiles[name], self:emit("at", "f", tiles[name] - 1, self:value(node[1]).at))
  end
  local row, at = calls[name] or error("meaning: no function " .. name), {}
  for i = 1, #row - 2 do at[i] = self:to(row[i + 2], self:value(node[i])).at end
  return self:emit(row[1], row[2], table.unpack(at))
end

function Meaning:operator(node)
  local x, y = self:value(node[1]), self:value(node[2])
  if node.op == "or" then
    local neither = self:emit("and", "b", self:emit("not", "b", x.at).at, self:emit("not", "b", y.at).at)
    return self:emit("not", "b", neither.at)
  end
  local name = node.op
  if name == ">" then x, y, name = y, x, "<" end
  local row, whole = binary[name], x.type == "i" and y.type == "i"
  local type = whole and row[2] and "i" or "d"
  return self:emit(type == "i" and row[2] or row[1], row[3] or type, self:to(type, x).at, self:to(type, y).at)
end

function Meaning:value(node)
  if node.number then
    if math.type(node.number) == "integer" then return self:integer(node.number) end
    self.constants[#self.constants + 1] = node.number
    return self:emit("constant", "d", #self.constants - 1)
  end
  if node.word then return self:word(node.word) end
  return node.op and self:operator(node) or self:call(node)
end

-- Where the result goes, as the kind of a meaning; of numbers in memory also their bytes, and a cell with their bits.
local stored = {
  a = function(self, cell) return self:to(cell.type == "i" and "i" or "f", cell), 4 end,
  u = function(self, cell) return self:emit("int_div", "i", self:to("f", cell).at, self:integer(65536).at), 2 end,
  h = function(self, cell) return self:emit("pair_f16", "f", self:to("d", cell).at, self:to("d", cell).at), 2 end,
  b = function(self, cell) return self:to("i", cell), 1 end,
}

return function(op, text, constants, kind)
  local self = setmetatable({ op = op, code = {}, known = {}, count = 0, constants = constants }, Meaning)
  local cell, bytes = self:value(tree(text)), nil
  if not kind and op.tile then
    kind = op.tile == "writes" and "tile" or "from_tile"
  elseif not kind and op.result == "-" then
    kind = "memory"
    cell, bytes = stored[op.args[self:operand "aubh" + 1]](self, cell)
  elseif not kind then
    kind = "register"
    if op.result == "f" or op.result == "i" then cell = self:to(op.result, cell) end
  elseif cell.type == "d" then
    cell = self:to("f", cell)
  end
  if op.tile and cell.type == "d" then cell = self:to("f", cell) end
  return { code = self.code, result = cell.at, kind = results[kind], bytes = bytes }
end
