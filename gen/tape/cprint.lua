-- Prints a tape as C text: one statement per op, two spaces, at most 100 columns where it can.
--
--   functions(tape)                    the text of all functions
--   float(x), double(x)                a literal that reads back as the same number
--   wrap(line, indent)                 a long statement, broken at commas or spaces
--   list(items, indent)                the items of an initializer, on lines of their own
--   comment(text, indent)              /* ... */ over several lines
--   constants(title, rows)             numbers under names
--
-- Values with the same constant share a statement.

local expr = require "base.expr"
local isas = require "isa.init"
local roll = require "tape.roll"
local share = require "tape.share"
local wording = require "base.wording"

local M = {}

-- A float literal that reads back as the same float32.
function M.float(x)
  if x == math.huge then return "INFINITY" end
  if x == -math.huge then return "-INFINITY" end
  local text = ("%.9g"):format(x)
  if not text:find("[%.en]") then text = text .. ".0" end
  return text .. "f"
end

-- A literal of type double: the shortest that reads back as the same.
function M.double(x)
  return (wording.exact(x):gsub("^%-?%d+$", "%0.0"))
end

local function address(p)
  if p.off == 0 then return p.base end
  local text = expr.text(p.off)
  if text:sub(1, 1) == "-" then return p.base .. " - " .. text:sub(2) end
  return p.base .. " + " .. text
end

local function element(p)
  local base = p.base:find("^%(") and "(" .. p.base .. ")" or p.base -- a cast
  return ("%s[%s]"):format(base, expr.text(p.off))
end

-- Breaks a long statement at the commas nearest to the right edge, or else at spaces.
function M.wrap(line, indent)
  local out = {}
  local limit = 100
  local pad = indent .. "    "
  while #line > limit do
    local cut
    for _, place in ipairs { { ", ", 20 }, { " ", 20 }, { " ", 10 } } do
      local mark, least = place[1], #pad + place[2]
      local _, stop = line:sub(1, limit + #mark - 1):find("^.*" .. mark)
      local last = stop and stop - #mark + 1
      cut = cut or last and last >= least and last
    end
    if not cut then break end
    out[#out + 1] = line:sub(1, cut):gsub(" $", "")
    line = pad .. line:sub(cut + 1):gsub("^ ", "")
  end
  out[#out + 1] = line
  return table.concat(out, "\n")
end

local wrap = M.wrap

local ADDRESS = { a = true, y = true, b = true, u = true, h = true }

local function operand(letter, v)
  if ADDRESS[letter] then return address(v) end
  if letter == "e" then return element(v) end
  if letter == "t" then return v end
  if letter == "s" then return M.float(v) end
  if letter == "n" or letter == "x" then return expr.text(v) end
  return v.name
end

local type_of = { f = "t", m = "m", i = "i" }

local function ctype(v) return v.kind == "c" and "int" or v.w[type_of[v.kind]] end

-- Whether what a statement makes is declared before it.
local function assigns(node) return node.updates or node.dst.array end

-- What stands before the value that a statement makes.
local function target(node)
  local v = node.dst
  if assigns(node) then return v.name .. " = " end
  return ("%s%s %s = "):format(node.mutable and "" or "const ", ctype(v), v.name)
end

-- before: what stands before the statement.
local function print_op(isa, node, indent, out, before)
  local op, args, elements, n = node.op, {}, {}, nil
  for i, letter in ipairs(op.args) do
    args[i] = operand(letter, node.args[i])
    if ADDRESS[letter] then elements[i] = element(node.args[i]) end
    if letter == "n" then n = node.args[i] end
  end
  local text = isas.text(isa, op, node.w, args, elements, n)
  if node.dst then text = (before or "") .. target(node) .. text end
  for statement in (text .. ";"):gmatch("[^\n]+") do
    out[#out + 1] = wrap(indent .. statement, indent)
  end
end

local print_body

local printers = {}

printers.op = print_op

function printers.note(_, node, indent, out)
  local text = "/* " .. node.text .. " */"
  out[#out + 1] = indent .. text
end

function printers.scope(isa, node, indent, out)
  local only = node.body[1]
  if only and only.kind == "loop" and not node.body[2] then return print_body(isa, node.body, indent, out) end
  out[#out + 1] = indent .. "{"
  print_body(isa, node.body, indent .. "  ", out)
  out[#out + 1] = indent .. "}"
end

local SIMPLE = { op = true, apply = true, call = true, shared = true } -- statements that may stand behind a loop's head

-- What a loop that the compiler writes out needs of the preprocessor. Other compilers have no such pragma, and tcc has
-- no _Pragma.
M.unroll = [[
#if defined(__GNUC__) || defined(__clang__)
#define PRAGMA(text) _Pragma(#text)
#define UNROLL(count) PRAGMA(GCC unroll count)
#else
#define UNROLL(count)
#endif
]]

function printers.loop(isa, node, indent, out)
  local first = node.first or 0
  local unrolled = node.unrolled and ("UNROLL(%d) "):format(node.count) or ""
  local head = ("%s%sfor (ptrdiff_t %s = %d; %s < %s; ++%s) "):format(
    indent, unrolled, node.var, first, node.var, expr.text(first + node.count), node.var)
  local body, only = node.body, node.body[1]
  if only and not body[2] and only.kind == "scope" then body = only.body end
  local inside = {}
  print_body(isa, body, indent .. "  ", inside)
  local line = head .. inside[1]:gsub("^ +", "")
  if not inside[2] and SIMPLE[only.kind] and #line <= 100 then
    out[#out + 1] = line
  else
    out[#out + 1] = wrap(head .. "{", indent)
    table.move(inside, 1, #inside, #out + 1, out)
    out[#out + 1] = indent .. "}"
  end
end

function printers.when(isa, node, indent, out)
  local word = indent
  while node do
    out[#out + 1] = wrap(("%sif (%s < %s) {"):format(word, expr.compared(node.left), expr.compared(node.right)), indent)
    print_body(isa, node.body, indent .. "  ", out)
    word = indent .. "} else "
    local otherwise, only = node.otherwise, node.otherwise and node.otherwise[1]
    node = only and only.kind == "when" and not otherwise[2] and only
    if otherwise and not node then
      out[#out + 1] = word .. "{"
      print_body(isa, otherwise, indent .. "  ", out)
    end
  end
  out[#out + 1] = indent .. "}"
end

function printers.unless(isa, node, indent, out)
  local names = {}
  for i, c in ipairs(node.conditions) do names[i] = c.name end
  local all = #names == 1 and "!" .. names[1] or "!(" .. table.concat(names, " & ") .. ")"
  out[#out + 1] = wrap(("%sif (%s) {"):format(indent, all), indent)
  print_body(isa, node.body, indent .. "  ", out)
  out[#out + 1] = indent .. "}"
end

-- Of a call: a pointer or an integer expression.
local function argument(a) return type(a) == "table" and a.base and address(a) or expr.text(a) end

function printers.call(_, node, indent, out)
  local args = {}
  for i, a in ipairs(node.args) do args[i] = argument(a) end
  out[#out + 1] = wrap(("%s%s(%s);"):format(indent, node.fn.name, table.concat(args, ", ")), indent)
end

function printers.apply(_, node, indent, out)
  out[#out + 1] = ("%s%s%s(%s);"):format(indent, target(node), node.fn.name, node.args[1].name)
end

function printers.result(_, node, indent, out)
  out[#out + 1] = ("%sreturn %s;"):format(indent, node.result.name)
end

function printers.shared(_, node, indent, out)
  local made = node.dst and target(node) or ""
  out[#out + 1] = wrap(("%s%s%s(%s);"):format(indent, made, node.name, table.concat(node.args, ", ")), indent)
end

function printers.int(_, node, indent, out)
  out[#out + 1] = wrap(("%sconst ptrdiff_t %s = %s;"):format(indent, node.name, expr.alone(node.value)),
    indent)
end

function printers.int_at(_, node, indent, out)
  out[#out + 1] = ("%sconst ptrdiff_t %s = %s%s[%s];"):format(
    indent, node.name, node.floats and "(ptrdiff_t)" or "", node.base, expr.text(node.off))
end

function printers.place(_, node, indent, out)
  local p = node.args[1]
  local const = p.base:find("const", 1, true) and "const " or ""
  out[#out + 1] = wrap(("%s%s%s *const %s = %s; /* %s */"):format(
    indent, const, p.type.c, node.name, address(p), node.text), indent)
end

function printers.buffer(_, node, indent, out)
  out[#out + 1] = ("%sfloat %s[%d] __attribute__((aligned(64)));"):format(indent, node.name, node.count)
end

function printers.fence(_, node, indent, out)
  out[#out + 1] = ('%s__asm__ volatile("" : : "r"(%s) : "memory");'):format(indent, address(node.args[1]))
end

function printers.array(_, node, indent, out)
  local names = {}
  if not node.names[1] then return end -- what a shared section has by itself
  for i, array in ipairs(node.names) do names[i] = ("%s[%s]"):format(array[1], table.concat(array[2], "][")) end
  out[#out + 1] = wrap(("%s%s %s;"):format(indent, ctype(node.of), table.concat(names, ", ")), indent)
end

function printers.bump(_, node, indent, out)
  out[#out + 1] = ("%s%s += %s;"):format(indent, node.pointer.base, expr.text(node.by))
end

-- Whether a statement gives what is there a constant.
local function resets(node)
  return node and node.kind == "op" and node.dst and not node.op.args[1] and assigns(node)
end

-- Those that follow each other and give the same are one.
function print_body(isa, body, indent, out)
  local i, before = 1, ""
  while body[i] do
    local node, next_node = body[i], body[i + 1]
    if resets(node) and resets(next_node) and next_node.op == node.op and next_node.w == node.w then
      before = before .. target(node)
    else
      printers[node.kind](isa, node, indent, out, before)
      before = ""
    end
    i = i + 1
  end
end

-- The items of an initializer, on lines of their own.
function M.list(items, indent)
  return wrap(indent .. table.concat(items, ", "), indent:sub(5))
end

-- Text of /* ... */ over several lines.
function M.comment(text, indent)
  return indent .. "/* " .. text:gsub("\n", "\n" .. indent .. " * ") .. " */"
end

-- body: that of the function, if it is not its own.
local function print_function(isa, fn, body)
  local out = {}
  if fn.doc then out[#out + 1] = M.comment(fn.doc, "") end
  local params = {}
  for i, p in ipairs(fn.params) do
    params[i] = p.kind .. (p.kind:sub(-1) == "*" and "" or " ") .. p.name
  end
  local attr = fn.attr and fn.attr .. " " or ""
  out[#out + 1] = wrap(("static %s%s %s(%s) {"):format(attr, fn.w and fn.w.t or "void", fn.name,
    table.concat(params, ", ")), "")
  for _, name in ipairs(fn.idle) do out[#out + 1] = ("  (void)%s;"):format(name) end
  print_body(isa, body or fn.body, "  ", out)
  out[#out + 1] = "}"
  return table.concat(out, "\n") .. "\n"
end

-- The function of a section that several functions have.
local function print_shared(one)
  local params, out = {}, { "/* " .. wording.singular(one.doc) .. " */" }
  for i, p in ipairs(one.params) do params[i] = table.concat(p) end
  out[2] = wrap(("static inline __attribute__((always_inline)) %s %s(%s) {"):format(
    one.result and ctype(one.result) or "void", one.name, table.concat(params, ", ")), "")
  for _, array in ipairs(one.locals) do out[#out + 1] = ("  %s%s%s;"):format(array[1], array[2], array[3]) end
  table.move(one.lines, 1, #one.lines, #out + 1, out)
  if one.result then out[#out + 1] = ("  return %s;"):format(one.result.name) end
  out[#out + 1] = "}"
  return table.concat(out, "\n") .. "\n"
end

-- Constants under names: rows { name, value, meaning }, behind what they are.
function M.constants(title, rows)
  local lines = {}
  for i, row in ipairs(rows) do lines[i] = ("enum { %s = %d }; /* %s */\n"):format(table.unpack(row)) end
  return lines[1] and ("/* %s */\n%s\n"):format(title, table.concat(lines)) or ""
end

-- Adds the ISA's helpers that a body uses to `out`, once for each width.
local function add_helpers(isa, body, seen, out)
  for _, node in ipairs(body) do
    local helper = node.kind == "op" and isa.helpers[node.op.name]
    local text = helper and helper:gsub("%$(%w+)", node.w)
    if text and not seen[text] then
      seen[text] = true
      out[#out + 1] = text
    end
    add_helpers(isa, node.body or {}, seen, out)
    add_helpers(isa, node.otherwise or {}, seen, out)
  end
end

function M.functions(tape)
  local out, seen = {}, {}
  for _, fn in ipairs(tape.functions) do add_helpers(tape.isa, fn.body, seen, out) end
  local bodies, shared = {}, {}
  for _, fn in ipairs(tape.functions) do bodies[fn] = tape.rolled and roll(fn) or fn.body end
  if tape.rolled then
    shared = share(tape.functions, bodies, { ctype = ctype, lines = function(nodes, indent)
      local lines = {}
      print_body(tape.isa, nodes, indent, lines)
      return lines
    end })
  end
  for _, fn in ipairs(tape.functions) do
    for _, one in ipairs(shared[fn] or {}) do out[#out + 1] = print_shared(one) end
    out[#out + 1] = print_function(tape.isa, fn, bodies[fn])
  end
  return table.concat(out, "\n")
end

return M
