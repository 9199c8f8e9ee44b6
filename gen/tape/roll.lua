-- Writes once what a function repeats. A run of equal statements whose coordinates and offsets move by equal steps
-- becomes a loop of a literal count. A pragma has the compiler unroll it, except in functions that are to stay short.
-- The order of operations does not change.
--
--   const __m512 a_r0 = set1(a[0]);
--   acc_r0 = fmadd(a_r0, b, acc_r0);            UNROLL(6) for (r = 0; r < 6; ++r) {
--   const __m512 a_r1 = set1(a[64]);              const __m512 a_r = set1(a[64 * r]);
--   acc_r1 = fmadd(a_r1, b, acc_r1);              acc[r] = fmadd(a_r, b, acc[r]);
--   ..                                          }
--
-- Numbers in the name of a value are its coordinates. An item is a statement, or a loop made of statements. Its fields
-- are what may move: coordinates, offsets of pointers, integers. They are expressions in the order of the text. All
-- else is its shape: items of one shape differ only in the constants of their fields.

local arrays = require "tape.arrays"
local expr = require "base.expr"

local NOTHING = {}
local MOST_ITEMS = 64 -- of a round
local MOST_SIZE = 190 -- operations of a round, for gcc does not write out larger ones: its limit is 200
local LONG = 60 -- characters of an ISA's row that take a second line
local WORTH, OF_TWO = 2, 3 -- lines that a loop has to save, and one of two rounds

-- A name as a pattern with # for its numbers, these, and the letters before each.
local function parse(name)
  local at, letters = {}, {}
  local pattern = name:gsub("(%a*)(%d+)", function(letter, digits)
    if digits:find "^0%d" then return nil end
    at[#at + 1], letters[#letters + 1] = math.tointeger(digits), letter
    return letter .. "#"
  end)
  return { pattern = pattern, at = at, letters = letters }
end

-- What is known of the values that a function makes: the parts of their names, and the body that they are made in.
local function values_of(fn)
  local of = {}
  local function scan(body, depth)
    for _, node in ipairs(body or NOTHING) do
      if node.dst and not node.updates then
        local value = parse(node.dst.name)
        value.body, value.depth = body, depth
        of[node.dst] = value
      end
      scan(node.body, depth + 1)
      scan(node.otherwise, depth + 1)
    end
  end
  scan(fn.body, 0)
  return of
end

local PART = { f = "value", m = "value", i = "value", c = "value", a = "pointer", y = "pointer", b = "pointer",
               u = "pointer", h = "pointer", e = "pointer", x = "int", n = "literal", s = "literal", t = "literal" }

-- A copy of a node without its bodies. Each part went through the function of its kind, in the order of the text:
-- on.value, on.pointer, on.int, on.literal or on.text.
local function with(node, on)
  local copy = { dst = node.dst and on.value(node.dst, not node.updates) }
  if node.kind == "op" then
    copy.args = {}
    for i, letter in ipairs(node.op.args) do
      copy.args[i] = on[letter == "n" and node.op.counted and "int" or PART[letter]](node.args[i])
    end
  elseif node.kind == "apply" then
    copy.args = { on.value(node.args[1]) }
  elseif node.kind == "unless" then
    copy.conditions = {}
    for i, c in ipairs(node.conditions) do copy.conditions[i] = on.value(c) end
  elseif node.kind == "result" then
    copy.result = on.value(node.result)
  elseif node.kind == "when" then
    copy.left, copy.right = on.int(node.left), on.int(node.right)
  elseif node.kind == "note" then
    copy.text = on.text(node.text)
  end
  return setmetatable(copy, { __index = node })
end

local MOVES = { op = true, apply = true, note = true, scope = true, when = true } -- nodes that may be in a run

-- The number of a shape by its text, in one function.
local function numbers()
  local known, count = {}, 0
  return function(text)
    if not known[text] then known[text], count = count + 1, count + 1 end
    return known[text]
  end
end

local function sum_of(items, key)
  local sum = 0
  for _, item in ipairs(items) do sum = sum + item[key] end
  return sum
end

-- The lines of a loop over some items: a single statement stands behind its head.
local function lines_of(items)
  local lines = sum_of(items, "lines")
  return lines == 1 and 1 or lines + 2
end

-- The constants of the fields of an item and of those in it.
local function constants_of(item)
  local list = {}
  for i, e in ipairs(item.fields) do list[i] = expr.constant(e) end
  for _, inner in ipairs(item.items or NOTHING) do table.move(inner.constants, 1, #inner.constants, #list + 1, list) end
  return list
end

-- ---- runs ----

-- The lines that a statement takes, more or less.
local function lines_of_op(node)
  local row = node.w.isa.rows[node.op.name]
  return #(type(row) == "table" and row[node.args[#node.args]] or row) > LONG and 2 or 1
end

local NO_CODE = { set = true, zero = true } -- ops that give constants

-- The operations that a node is, but for its bodies.
local function size_of(node)
  if node.kind == "note" or node.kind == "op" and NO_CODE[node.op.name] then return 0 end
  if node.kind ~= "apply" then return 1 end
  local size = 0
  for _, inner in ipairs(node.fn.body) do size = size + size_of(inner) end
  return size * (node.w.lanes == 1 and 2 or 1) -- numbers take branches
end

-- By how much the constants of two items of one shape differ.
local function difference(from, to)
  local list = {}
  for i, c in ipairs(from.constants) do list[i] = to.constants[i] - c end
  return list
end

-- How many rounds of n items there are from item i on, and what moves from each to the next.
local function rounds_of(list, i, n)
  for k = i, i + n - 1 do
    if list[k].shape ~= list[k + n].shape or list[k].fixed then return 1 end
  end
  local moves, rounds = {}, 2
  for k = 0, n - 1 do moves[k] = difference(list[i + k], list[i + k + n]) end
  while true do
    for k = 0, n - 1 do
      local before, item = list[i + (rounds - 1) * n + k], list[i + rounds * n + k]
      if not item or item.shape ~= before.shape then return rounds, moves end
      for s, by in ipairs(moves[k]) do
        if item.constants[s] - before.constants[s] ~= by then return rounds, moves end
      end
    end
    rounds = rounds + 1
  end
end

-- The coordinate that the variable of a loop stands for: what it is in the first round, and its letter. It is one that
-- moves by 1.
local function counted(items, moves)
  local found
  local function look(item, by, at)
    for s, e in ipairs(item.fields) do
      at = at + 1
      if not found and item.letters[s] and by[at] == 1 and expr.is_const(e) and e >= 0 then
        found = { e, item.letters[s] }
      end
    end
    for _, inner in ipairs(item.items or NOTHING) do at = look(inner, by, at) end
    return at
  end
  for k, item in ipairs(items) do look(item, moves[k - 1], 0) end
  return table.unpack(found or { 0, "" })
end

-- An item with a variable in the fields that move; round is its expression, 0 in the first one.
local function moving(item, by, round, at)
  local copy = setmetatable({ fields = {}, items = item.items and {} }, { __index = item })
  for s, e in ipairs(item.fields) do
    at = at + 1
    copy.fields[s] = e + round * by[at]
  end
  for i, inner in ipairs(item.items or NOTHING) do copy.items[i], at = moving(inner, by, round, at) end
  copy.constants = constants_of(copy)
  return copy, at
end

-- The loop of a run. how: number, as numbers() has it; unrolled, whether the compiler writes it out.
local function rolled(list, i, n, rounds, moves, how)
  local items, height, said = table.move(list, i, i + n - 1, 1, {}), 0, {}
  local first, letter = counted(items, moves)
  for k, item in ipairs(items) do
    height = math.max(height, item.height)
    said[k] = item.shape .. ":" .. table.concat(moves[k - 1], ",")
  end
  local var = "@" .. height + 1 -- until all names are known
  for k, item in ipairs(items) do items[k] = moving(item, moves[k - 1], expr.var(var) - first, 0) end
  local section = list[i].node.section
  for k = i, i + n * rounds - 1 do section = list[k].node.section == section and section or nil end
  local loop = { node = { kind = "loop", count = rounds, first = first, unrolled = how.unrolled, section = section },
                 items = items,
                 fields = {}, letters = {}, var = var, letter = letter, height = height + 1, lines = lines_of(items),
                 size = rounds * sum_of(items, "size") }
  loop.shape = how.number(("loop %d %d %s"):format(first, rounds, table.concat(said, " ")))
  loop.constants = constants_of(loop)
  return loop
end

-- Two rounds may differ by chance: they make a loop where all coordinates that move do so by as much.
local function even(items, moves)
  local step
  local function look(item, by, at)
    for _, letter in ipairs(item.letters) do
      at = at + 1
      if letter and by[at] ~= 0 then
        if step and step ~= by[at] then return nil end
        step = by[at]
      end
    end
    for _, inner in ipairs(item.items or NOTHING) do at = at and look(inner, by, at) end
    return at
  end
  for k, item in ipairs(items) do
    if not look(item, moves[k - 1], 0) then return false end
  end
  return true
end

-- Whether two rounds of n items from item i on are in each round of a longer run, but begin elsewhere each time: as
-- loops of their own they would not be of one shape, and keep that run from being one.
local function in_longer(list, i, n, moves)
  local function first(at) return (counted(table.move(list, at, at + n - 1, 1, {}), moves)) end
  for longer = 2 * n + 1, MOST_ITEMS do
    for before = 0, 2 do -- rounds of the longer run
      local at = i - before * longer
      local all = at > 0 and at + 3 * longer - 1 <= #list and list[at].shape == list[at + longer].shape
      if all and rounds_of(list, at, longer) > 2 then return first(at) ~= first(at + longer) end
    end
  end
  return false
end

-- How many rounds of n items from item i on are worth a loop, and what moves; or nil.
local function run_at(list, i, n)
  if i + 2 * n - 1 > #list or list[i].shape ~= list[i + n].shape then return nil end
  local rounds, moves = rounds_of(list, i, n)
  if rounds == 1 then return nil end
  local round = table.move(list, i, i + n - 1, 1, {})
  local saved = rounds * sum_of(round, "lines") - lines_of(round)
  if saved < (rounds == 2 and OF_TWO or WORTH) or sum_of(round, "size") > MOST_SIZE then return nil end
  if rounds == 2 and (not even(round, moves) or in_longer(list, i, n, moves)) then return nil end
  return rounds, moves
end

-- A list with the runs of rounds of n items as loops, and whether there is any.
local function with_runs(list, n, how)
  local out, i, any = {}, 1, false
  while i <= #list do
    local rounds, moves = run_at(list, i, n)
    if rounds then
      out[#out + 1], any = rolled(list, i, n, rounds, moves, how), true
    else
      out[#out + 1] = list[i]
    end
    i = i + (rounds and rounds * n or 1)
  end
  return out, any
end

-- ---- items ----

-- What is said of the parts of a node: say(what) of what has to be equal, field(e, letter) of what may move.
local function visitor(values, say, field)
  return {
    literal = function(x) say(type(x) == "string" and x or ("%a"):format(x)) end,
    int = field,
    pointer = function(p)
      say(p.base)
      field(p.off)
    end,
    value = function(v)
      local value = values[v]
      say(value and value.pattern .. value.depth or v.name)
      say(v.kind .. v.w.lanes)
      for i, x in ipairs(value and value.at or NOTHING) do field(x, value.letters[i]) end
    end,
    text = function(text)
      say((text:gsub("%d+", function(digits)
        field(math.tointeger(digits))
        return "#"
      end)))
    end,
  }
end

-- The items of the bodies of a function. Short rounds come first, for the rounds of longer ones are made of their
-- loops. To begin with, an item is a statement:
--   node, shape, size, lines
--   fields, constants   and of each field its constant
--   letters             of the fields that are coordinates
--   height              of the loops in it
--   items, otherwise    of its body, and of the other one
--   fixed               it is in no run
local function items_of(fn, values)
  local number, fixed, list_of = numbers(), 0, nil
  local how = { number = number, unrolled = not fn.loops }

  local function item_of(node)
    local item, said = { node = node, fields = {}, letters = {}, height = 0, lines = 1,
                         size = size_of(node) }, { node.kind }
    local function say(what) said[#said + 1] = what end
    local function field(e, letter)
      item.fields[#item.fields + 1], item.letters[#item.fields + 1] = e, letter or false
      say(expr.is_const(e) and "" or expr.text(e - expr.constant(e)))
    end
    local on = visitor(values, say, field)
    if node.kind == "op" then
      say(node.op.name)
      item.lines = lines_of_op(node)
    end
    if node.kind == "apply" then say(node.fn.name) end
    say(tostring(node.updates) .. tostring(node.mutable) .. (node.w and node.w.lanes or ""))
    say(node.section and node.section.name or "")
    with(node, on)
    item.fixed = not MOVES[node.kind] or node.otherwise
    if item.fixed then
      fixed = fixed + 1
      say(fixed)
    end
    if node.body then
      item.items, item.otherwise = list_of(node.body), node.otherwise and list_of(node.otherwise)
      item.lines, item.size = 2 + sum_of(item.items, "lines"), sum_of(item.items, "size")
      for _, inner in ipairs(item.items) do
        item.height = math.max(item.height, inner.height)
        item.fixed = item.fixed or inner.fixed
        say(inner.shape)
      end
    end
    item.shape, item.constants = number(table.concat(said, " ")), constants_of(item)
    return item
  end

  function list_of(body)
    local list, n = {}, 1
    for i, node in ipairs(body) do list[i] = item_of(node) end
    while n <= math.min(MOST_ITEMS, #list // 2) do
      local any
      list, any = with_runs(list, n, how)
      n = any and 1 or n + 1
    end
    return list
  end

  return list_of(fn.body)
end

-- The body of a function with its runs as loops.
return function(fn)
  local values = values_of(fn)
  return arrays(fn, items_of(fn, values), values, with)
end
