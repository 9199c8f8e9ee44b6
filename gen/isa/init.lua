-- Defining an ISA: attributes and one row of C text per op, checked against isa/ops.lua.
--
-- A row may be a table that is indexed by the op's literal n. In the text of a row,
--
--   $1, $2, ..     are the operands
--   $e1            is an address operand as an element, p[3]
--   $p, $t, ..     are attributes of the vector's width
--   $iota          is the list 0.0f, 1.0f, .. of that width
--   $hex           is a mask of n bits
--   $on            is a list of n times -1, then zeros

local ops = require "isa.ops"
local derived = require "isa.derived"
local types = require "machine.types"

local M = {}

local function check_text(isa, name, text, arity)
  for index in text:gmatch("%$e?(%d)") do
    if tonumber(index) > arity then
      error(("isa %s: op %s: operand $%s of %d"):format(isa.name, name, index, arity))
    end
  end
end

local function check_row(isa, name, row, arity)
  if type(row) == "string" then return check_text(isa, name, row, arity) end
  if type(row) ~= "table" then error(("isa %s: op %s: not a text"):format(isa.name, name)) end
  for _, sub in pairs(row) do check_row(isa, name, sub, arity) end
end

-- Required attributes:
--   name, title
--   cpu         a mhagen_cpu
--   guard       a preprocessor condition
--   registers   of vectors
--   products    by the types of A and B, see below
--   widths      of vectors, the full one first
--   rows        by op
--
-- Optional ones:
--   fused       fma rounds once
--   saturates   scale2 takes any exponent
--   cpuinfo     the words of /proc/cpuinfo for its instructions; missing: any CPU of its machine has it
--   asks        by the name of a type: the cpu, begin and cpuinfo that its ops need
--   tile        rows of a tile register, and words of such a row
--   arch        the machine, as `uname -m` has it
--   headers
--   helpers     by op: C functions that rows call, for each width in which a kernel uses it
--   beyond      a preprocessor condition: the flags of the compiler allow more than these instructions
--   since       a preprocessor condition: compilers that know the instructions, where older ones build the rest
--   prelude     text before all functions
--   begin, finish   text before and after the functions that need the ISA
--   extends     the ISA that it has more than
--
-- A product:
--   way         a file of gen/way
--   rows        the most rows of a tile of 1, 2, .. vectors, by the order of A: measured, one row more spills
--   op, lane    of pairs and words of bytes: the op, and the one by a lane
--   group       numbers of a K step
--   part        the op that makes operands of words of bytes
--   unsigned    the bytes of A have no sign
--   less        those of B have none, being 8 or 128 more; the op that subtracts what that adds to a sum
--   bytes       the op for weights that are signed bytes beside such B
--   widens      no instruction multiplies bytes
--   powers      the op that makes weights of attention as pairs
--   f16_sums    sums of pairs are pairs of their type
--   dup         the time of a word in all lanes, in FMAs
--   mmla        { op, rows } of a product by mmla
--   halves      { lane, starts, rows } of a product by halves of words
--   tiled       of the way `tile`: the op of tiles
--   vectors     of the way `tile`: rows of tiles by vectors, for operands that do not lie as tiles take them
function M.define(isa)
  for _, key in ipairs { "name", "title", "cpu", "guard", "registers", "products", "widths", "rows" } do
    if isa[key] == nil then error("isa " .. tostring(isa.name) .. ": missing " .. key) end
  end
  for name, row in pairs(isa.rows) do
    if not ops[name] then error(("isa %s: unknown op %s"):format(isa.name, name)) end
    check_row(isa, name, row, #ops[name].args)
  end
  for _, op in ipairs(ops) do
    if not isa.rows[op.name] and not op.optional and not derived[op.name] then
      error(("isa %s: missing op %s"):format(isa.name, op.name))
    end
  end
  isa.helpers = isa.helpers or {}
  isa.compiled = {} -- rows as M.text has used them
  isa.full = isa.widths[1]
  isa.lanes = isa.full.lanes
  for _, w in ipairs(isa.widths) do
    local iota = {}
    for i = 1, w.lanes do iota[i] = ("%d.0f"):format(i - 1) end
    w.iota = table.concat(iota, ", ")
    w.isa = isa
  end
  return isa
end

local of_floats = { load = "load", pinned = "load_pinned", dup = "dup", low = "low", zero = "zero", add = "add",
                    store = "store" }
local of_halves = setmetatable({ add = "add_halves" }, { __index = of_floats })
local of_words = { load = "load_words", dup = "dup_word", zero = "zero_words", add = "iadd", store = "store_words" }

-- The scheme of an ISA for operands of a type: how it multiplies them. Without a product of its own for single numbers
-- the scheme is that of float32, and operands are widened as they are read. A scheme has:
--   a, b           types of the operands
--   way, op        a file of gen/way, and the op
--   rows           rows of its tiles
--   group          numbers of a K step
--   held, packed   layouts of operands that a kernel makes, and of packed ones; missing: float32 of any value
--   does           ops that read operands, begin sums and add them up
function M.scheme(isa, type)
  local own = isa.products[type.name .. " " .. type.name]
  local row = own and not own.group and own or isa.products["f32 f32"]
  return { a = type, b = type, way = row.way, rows = row.rows, op = "fma", lane = "fma_lane", group = 1,
           held = types.held(type), packed = type.packs and types.held(type), does = of_floats }
end

local four = [[
/* Four int8, as a dot product takes them, the first in the low bits. */
typedef float int8_word;
]]

local two = [[
/* Two int8 in 16-bit halves: of four numbers the first and the third, or the second and fourth. */
typedef float int8_pair;
]]

-- Operands A, by the numbers in a word:
--   held         type
--   declared     C that declares it
--   words        the op that makes words of neighbours in a vector
--   lane_words   the op that makes words of one lane of several vectors
local of_group = {
  [4] = { held = types.words, declared = four, words = "words", lane_words = "lane_words" },
  [2] = { held = types.short_words, declared = four .. two, words = "short_words", lane_words = "lane_short_words" },
}

-- The scheme of words of bytes, whose sums are integers. It has besides
--   quant        how weights are packed (plan/pack.lua)
--   scales       their type
--   declared, words, lane_words   as above
--   widens       no instruction multiplies bytes
--   unsigned     the bytes of A are 128 more
--   less         those of B are so much more that they have no sign; the op for what sums begin with
--   bytes        the op for weights in bytes
--   row_group    numbers of a row of A that share a scale, if not all of them do
--   scales_of_group   numbers that each group has: its scale, and perhaps what sums begin with
--
-- With `part` a word of B becomes several such words in turn. kind: the quants that B is, with a scale for `group` rows
-- of a column; else bytes, with one for each column. Nil without such a product.
function M.integers(isa, type, kind, group)
  local row = isa.products[("%s %s"):format(type.name, kind and kind.in_groups or type.name)]
  if not row then return nil end
  local a = of_group[row.group]
  local quant = kind and { bits = kind.bits, in_word = kind.in_word, op = row.part, group = group, beside = true,
                           bytes = kind.in_word > 4 or nil }
    or { bits = 8, in_word = 4, op = row.part, sums = row.unsigned }
  return { a = type, b = type, way = row.way, rows = row.rows, op = row.op, lane = row.lane, group = row.group,
           tiled = row.tiled, pad = row.tiled and isa.tile or 1, integers = true, held = a.held,
           packed = types.words, does = of_words, scales = types.f32, declared = a.declared, words = a.words,
           lane_words = a.lane_words, unsigned = row.unsigned, less = row.less, widens = row.widens,
           bytes = row.bytes or row.op, blocks = row.mmla, quant = quant,
           row_group = kind and group, scales_of_group = row.less and 2 or 1 }
end

-- The scheme of rows of a cache in bytes, by queries and weights in halves of words; nil without such a product.
function M.of_bytes_in_cache(isa)
  local row = isa.products["int16 int8"]
  local type = types.by_name.int8
  return row and { a = type, b = type, way = row.way, rows = row.rows, op = row.op, group = row.group, integers = true,
                   does = of_words, quant = { bits = 8, in_word = 4, op = row.part } }
end

-- The scheme of weights in bytes, each column with a scale. They meet the words of A of a scheme of other quants.
function M.bytes_beside(isa, scheme)
  local own = isa.products[scheme.a.name .. " " .. scheme.a.name]
  return setmetatable({ op = scheme.bytes, less = false,
                        quant = { bits = 8, in_word = 4, op = own.group == scheme.group and own.part or nil } },
    { __index = scheme })
end

-- The scheme of pairs of a type, or nil. A K step takes `group` numbers of each operand, which lie in a word. It has
-- besides
--   pair, store_pairs   the ops that make words
--   powers              the op that makes them of logarithms, if the ISA has one
--   f16_sums            sums are pairs of the type (way/f16sum.lua); the way `inner` takes their K steps
--   error               the bound of such sums
function M.paired(isa, type)
  local row = isa.products[type.name .. " " .. type.name]
  if not (row and row.group) then return end
  return { a = type, b = type, way = row.f16_sums and "f16sum" or row.way, inner = row.f16_sums and row.way,
           rows = row.rows, op = row.op, lane = row.lane, group = row.group, tiled = row.tiled, vectors = row.vectors,
           pad = row.tiled and isa.tile or 1,
           f16_sums = row.f16_sums, error = row.f16_sums and type.error_of_sums, dup = row.dup,
           blocks = row.mmla, powers = row.powers, pair = type.pair, store_pairs = type.store_pairs,
           held = types.pairs(type), packed = types.pairs(type), does = row.f16_sums and of_halves or of_floats }
end

-- A scheme by vectors where another one is by tiles: for operands that do not lie as tiles take them.
function M.by_vectors(scheme)
  if not scheme.tiled then return scheme end
  return setmetatable({ way = "outer", rows = scheme.vectors, tiled = false, pad = 1 }, { __index = scheme })
end

local INTERLEAVE = 2 -- words of a row that a product by mmla takes

-- A scheme of pairs or of bytes by blocks, where the ISA has such, or nil: a sum is one of a block of two rows and two
-- columns, and an instruction takes `interleave` words of each; see rewrite/mmla.lua.
function M.by_mmla(scheme)
  local row = scheme.blocks
  return row and setmetatable({ way = "mmla", op = row.op, rows = row.rows, interleave = INTERLEAVE },
    { __index = scheme })
end

local DEINTERLEAVE = 2 -- vectors: of the first numbers of words, and of the second ones

-- A scheme of pairs by a half of a word, where the ISA has such, or nil: operand B is weights. Of `deinterleave`
-- vectors of columns the first one has the first numbers of their words, the second one the second numbers.
function M.by_halves(isa, scheme)
  local row = scheme.group > 1 and isa.products[scheme.b.name .. " " .. scheme.b.name].halves
  if not row then return nil end
  local own = { lane = row.lane, starts = row.starts, rows = row.rows, deinterleave = DEINTERLEAVE, dup = false }
  own[scheme.inner and "inner" or "way"] = "lane"
  return setmetatable(own, { __index = scheme })
end

-- The type that a scheme multiplies: float32 where operands became that.
function M.multiplied(scheme) return scheme.group > 1 and scheme.a or types.f32 end

-- Numbers of a type in a lane of an instruction that multiplies them.
function M.at_once(isa, type)
  local row = isa.products[type.name .. " " .. type.name]
  if not row or row.widens then return 1 end
  return (row.group or 1) * (row.tiled and isa.tile or row.mmla and INTERLEAVE or 1)
end

-- The schemes of an ISA, by the order of their types; but for those of the ISA that it has more than.
function M.own_products(isa)
  local list, base = {}, isa.extends and M.list[isa.extends].products or {}
  for _, name in ipairs(types.names) do
    local key = name .. " " .. name
    local row, inherited = isa.products[key], base[key]
    local same = row and inherited and inherited.op == row.op and inherited.tiled == row.tiled
      and inherited.mmla == row.mmla and inherited.widens == row.widens
    if row and not same then
      local type = types.by_name[name]
      local scheme = (type.quantized and M.integers or row.group and M.paired or M.scheme)(isa, type)
      list[#list + 1] = M.by_mmla(scheme) or scheme
    end
  end
  return list
end

-- A scheme whose operand B, weights, is packed as quants of a kind: as float32, and integers with a scale for `group`
-- steps of a column, or (nil) for all of it. Words take registers of a tile as well. deinterleave: columns of a vector.
function M.quantized(isa, scheme, kind, group)
  local own = { quant = { bits = kind.bits, in_word = kind.in_word, op = kind.op, group = group, type = kind.type,
                          beside = group ~= nil, deinterleave = kind.deinterleave and isa.lanes or nil },
                b = types.f32, scales = not kind.type and types.f32 or nil }
  own.rows = {}
  for order, most in pairs(scheme.rows) do
    own.rows[order] = {}
    for vectors, rows in ipairs(most) do
      local left = (isa.registers - 3 - 2 * vectors) // vectors
      if left > 0 then own.rows[order][vectors] = math.min(rows, left) end
    end
  end
  return setmetatable(own, { __index = scheme })
end

-- Whether an ISA rounds to a type.
function M.has(isa, type)
  for _, op in ipairs(type.ops or {}) do
    if not isa.rows[op] then return false end
  end
  return true
end

-- The ISA's cpu and begin, or others for what a type of the list asks.
function M.asked(isa, list)
  for _, type in ipairs(list) do
    local more = isa.asks and isa.asks[type.name]
    if more then return more end
  end
  return isa
end

-- A row for one width and literal, cut into texts and operands.
local function compile(isa, op, w, n)
  local row = isa.rows[op.name]
  if type(row) == "table" then row = row[n] end
  if not row then error(("isa %s: op %s: no row for this literal"):format(isa.name, op.name)) end
  local filled = row:gsub("%$(%w+)", function(key)
    if key == "hex" then return ("0x%X"):format((1 << n) - 1) end
    if key == "on" then
      local on = {}
      for i = 1, w.lanes do on[i] = i <= n and "-1" or "0" end
      return table.concat(on, ", ")
    end
    if key:match("^e?%d$") then return end
    return w[key] or error(("isa %s: op %s: no $%s"):format(isa.name, op.name, key))
  end)
  local pieces = {}
  for text, element, index in (filled .. "$0"):gmatch("([^$]*)%$(e?)(%d)") do
    if text ~= "" then pieces[#pieces + 1] = text end
    if index ~= "0" then
      pieces[#pieces + 1] = { elements = element == "e", index = tonumber(index) }
    end
  end
  return pieces
end

-- The C text of one op of an ISA.
--   args       the operands as texts, addresses as `p + 3`
--   elements   the same with addresses as `p[3]`
--   n          the value of the op's literal, if it has one
function M.text(isa, op, w, args, elements, n)
  local key = op.name .. w.lanes .. "," .. tostring(n)
  local pieces = isa.compiled[key]
  if not pieces then
    pieces = compile(isa, op, w, n)
    isa.compiled[key] = pieces
  end
  local out = {}
  for i, piece in ipairs(pieces) do
    out[i] = type(piece) == "string" and piece
      or (piece.elements and elements or args)[piece.index]
  end
  return table.concat(out)
end

-- Of the vectors that cover n floats, the one at float `at`: a full one, and for the rest the narrowest that holds it:
-- { w = width, at, used = floats used }.
function M.vector(isa, n, at)
  local rest, w = n - at, isa.full
  for _, candidate in ipairs(isa.widths) do
    if candidate.lanes >= rest and candidate.lanes < w.lanes then w = candidate end
  end
  return { w = w, at = at, used = math.min(rest, w.lanes) }
end

-- All of them.
function M.cover(isa, n)
  local list = {}
  for at = 0, n - 1, isa.lanes do list[#list + 1] = M.vector(isa, n, at) end
  return list
end

M.list = {} -- in order, and by name

function M.add(isa)
  M.list[#M.list + 1] = M.define(isa)
  M.list[isa.name] = isa
end

-- One line to add for a new ISA.
M.add(require "isa.scalar")
M.add(require "isa.avx2")
M.add(require "isa.avx_vnni")
M.add(require "isa.avx512")
M.add(require "isa.avx512_bf16")
M.add(require "isa.avx512_fp16")
M.add(require "isa.amx")
M.add(require "isa.neon")
M.add(require "isa.neon_fp16")
M.add(require "isa.neon_i8mm")

return M
