-- Names for the values of a function after its repeated statements became loops: makes nodes of tape/roll.lua's
-- items.
--
--   a value is used                        it becomes                     its name
--   only in the round that makes it        a value                        loses the coordinates that move
--   in another round, or outside           an element of an array         gets indices, the coordinates that move:
--                                                                         acc_r3_c1 is acc_c1[r], or acc[r][c]

local expr = require "base.expr"
local words_of = require("tape.nodes").words_of

local NOTHING = {}

-- ---- names and their scopes in C ----

local Scope = {}
Scope.__index = Scope

-- A body of C; loops: those of tape/roll.lua around it, the outermost first.
local function new_scope(parent, loop)
  local loops = table.move(parent and parent.loops or NOTHING, 1, parent and #parent.loops or 0, 1, {})
  loops[#loops + 1] = loop
  return setmetatable({ parent = parent, loops = loops, arrays = {} }, Scope)
end

function Scope:within(other)
  local scope = self
  while scope and scope ~= other do scope = scope.parent end
  return scope ~= nil
end

-- Takes the first of some names that nothing has where both would be seen; one that is `given` anyway.
local function taker()
  local taken = {}
  return function(scope, names, given)
    for _, name in ipairs(names) do
      local free = true
      for _, other in ipairs(taken[name] or NOTHING) do
        free = free and not scope:within(other) and not other:within(scope)
      end
      if free or given then
        taken[name] = taken[name] or {}
        table.insert(taken[name], scope)
        return name
      end
    end
    error("no name like " .. names[1])
  end
end

-- Names for a value without the coordinates for which `gone` is true.
local function names_for(value, at, gone)
  local short, long, i = {}, {}, 0
  local rest = value.pattern:gsub("([^#]*)#", function(text)
    i = i + 1
    local number = gone[i] and "" or at[i]
    long[i] = text .. number
    short[i] = gone[i] and text:find "_" and text:gsub("_%a?$", "") or long[i]
    return ""
  end)
  local names = { table.concat(short) .. rest, table.concat(long) .. rest }
  for n = 2, 99 do names[n + 1] = names[2] .. "_" .. n end
  return names
end

local VARIABLES = { "i", "j", "l", "m", "u", "w", "i1", "j1", "l1" } -- of loops that have no letter of their own

-- ---- references to values ----

-- Calls visit(item, scope) for all items.
local function scan(list, scope, visit)
  for _, item in ipairs(list) do
    visit(item, scope)
    if item.items then scan(item.items, item.scope, visit) end
    if item.otherwise then scan(item.otherwise, item.other_scope, visit) end
  end
end

-- Gives the bodies of items their scopes, and returns those of the bodies of the tape.
local function enter(fn, items)
  local of = { [fn.body] = new_scope() }
  local function enter_list(list, scope)
    for _, item in ipairs(list) do
      if item.items then
        item.scope = new_scope(scope, item.var and item)
        if not item.var then of[item.node.body] = item.scope end
        enter_list(item.items, item.scope)
      end
      if item.otherwise then
        item.other_scope = new_scope(scope)
        of[item.node.otherwise] = item.other_scope
        enter_list(item.otherwise, item.other_scope)
      end
    end
  end
  enter_list(items, of[fn.body])
  return of
end

-- The fields of an item, one after the other.
local function fields_of(item)
  local i = 0
  return function()
    i = i + 1
    return item.fields[i]
  end
end

-- on of `with`, which takes the fields of an item; value(v, makes, coordinates) and the others replace the parts.
local function replacing(item, values, by)
  local next_field = fields_of(item)
  return {
    literal = function(x) return x end,
    int = function() return by.int(next_field()) end,
    pointer = function(p) return by.pointer(p, next_field()) end,
    text = function(text) return (text:gsub("%d+", function() return expr.text(by.int(next_field())) end)) end,
    value = function(v, makes)
      local value, at = values[v], {}
      for i in ipairs(value and value.at or NOTHING) do at[i] = next_field() end
      return by.value(v, value, at, makes)
    end,
  }
end

-- The elements that coordinates stand for in all rounds of some loops, as texts.
local function elements_of(value, at, loops)
  local list, env, moves = {}, {}, {}
  for _, e in ipairs(at) do expr.variables(e, function(name) moves[name] = true end) end
  local function from(n)
    local loop = loops[n]
    if not loop then
      local place = {}
      for i, e in ipairs(at) do place[i] = expr.eval(e, env) end
      list[#list + 1] = place
      return
    end
    if not moves[loop.var] then return from(n + 1) end
    for i = loop.node.first, loop.node.first + loop.node.count - 1 do
      env[loop.var] = i
      from(n + 1)
    end
  end
  from(1)
  for _, place in ipairs(list) do place.key = value.id .. table.concat(place, ",") end
  return list
end

-- All references to the values of a function, in the order of the text, and those to each element.
local function references(fn, items, root, values, with)
  local refs, touching, bodies = {}, {}, 0
  local numbered = {} -- bodies
  local function same(x) return x end
  scan(items, root, function(item, scope)
    with(item.node, replacing(item, values, { int = same, pointer = same, value = function(v, value, at, makes)
      if not value then return end
      if not numbered[value.body] then
        bodies = bodies + 1
        numbered[value.body] = bodies
      end
      value.id = ("%d %s "):format(numbered[value.body], value.pattern)
      local texts = {}
      for i, e in ipairs(at) do texts[i] = expr.text(e) end
      local ref = { value = value, of = v, at = at, text = table.concat(texts, ","), scope = scope, makes = makes,
                    elements = elements_of(value, at, scope.loops) }
      refs[#refs + 1] = ref
      item.refs = item.refs or {}
      table.insert(item.refs, ref)
      for _, element in ipairs(ref.elements) do
        touching[element.key] = touching[element.key] or {}
        table.insert(touching[element.key], ref)
      end
    end }))
  end)
  return refs, touching
end

-- Whether all that touches what a reference makes is in the same round.
local function is_local(ref, touching)
  for _, element in ipairs(ref.elements) do
    for _, other in ipairs(touching[element.key]) do
      if other.text ~= ref.text or not other.scope:within(ref.scope) then return false end
    end
  end
  return true
end

-- ---- arrays ----

-- The arrays of references, in ref.array: { dims, extents, value, at, of, scope }.
local function find_arrays(refs, touching, scopes)
  local stored, moves = {}, {} -- elements; and the coordinates of values that move
  for _, ref in ipairs(refs) do
    if ref.makes and not is_local(ref, touching) then
      for _, element in ipairs(ref.elements) do stored[element.key] = true end
    end
  end
  for _, ref in ipairs(refs) do
    ref.stored = stored[ref.elements[1].key]
    local of = moves[ref.value.id] or {}
    moves[ref.value.id] = of
    for i, e in ipairs(ref.stored and ref.at or NOTHING) do of[i] = of[i] or not expr.is_const(e) end
  end
  local list, known = {}, {}
  for _, ref in ipairs(refs) do
    if ref.stored then
      local key = { ref.value.id, ref.of.kind, ref.of.w.lanes }
      for i, e in ipairs(ref.at) do key[#key + 1] = moves[ref.value.id][i] and "" or e end
      key = table.concat(key, " ")
      local array = known[key]
      if not array then
        array = { value = ref.value, of = ref.of, at = {}, least = {}, most = {}, gone = {},
                  scope = scopes[ref.value.body] }
        known[key], list[#list + 1] = array, array
      end
      ref.array = array
      for _, element in ipairs(ref.elements) do
        for i, x in ipairs(element) do
          array.at[i] = x
          array.least[i], array.most[i] = math.min(array.least[i] or x, x), math.max(array.most[i] or x, x)
        end
      end
    end
  end
  for _, array in ipairs(list) do
    array.dims, array.extents = {}, {}
    for i, least in ipairs(array.least) do
      array.gone[i] = array.most[i] > least
      if array.gone[i] then
        table.insert(array.dims, i)
        table.insert(array.extents, array.most[i] + 1)
      end
    end
  end
  return list
end

-- ---- the nodes ----

-- Takes all names that are there but for those of values.
local function take_others(fn, items, root, take)
  local seen = {}
  local function mark(scope, text)
    for _, word in ipairs(words_of[text]) do
      if not seen[word] then
        seen[word] = true
        take(scope, { word }, true)
      end
    end
  end
  for _, p in ipairs(fn.params) do mark(root, p.name) end
  local function scan_nodes(body)
    for _, node in ipairs(body or NOTHING) do
      for _, key in ipairs { "var", "name", "base" } do
        if node[key] then mark(root, node[key]) end
      end
      if node.fn then mark(root, node.fn.name) end
      scan_nodes(node.body)
      scan_nodes(node.otherwise)
    end
  end
  scan_nodes(fn.body)
end

-- Whether an item is a note of what the head of a loop says.
local function says_the_loop(item)
  local field = item.fields[1]
  return item.node.kind == "note" and field and not expr.is_const(field)
end

-- Names of values: first of single ones, then of arrays, then of all others that are made. A value that is read has the
-- name under which it was made.
local function take_values(refs, arrays, touching, take)
  for _, ref in ipairs(refs) do
    if ref.makes and not ref.stored and #ref.elements == 1 then
      ref.name = take(ref.scope, { ref.of.name }, true)
    end
  end
  for _, array in ipairs(arrays) do
    array.name = take(array.scope, names_for(array.value, array.at, array.gone))
    table.insert(array.scope.arrays, array)
  end
  for _, ref in ipairs(refs) do
    if ref.makes and not ref.stored and not ref.name then
      local gone = {}
      for i, e in ipairs(ref.at) do gone[i] = not expr.is_const(e) end
      ref.name = take(ref.scope, names_for(ref.value, ref.at, gone))
    end
  end
  for _, ref in ipairs(refs) do
    if not ref.stored and not ref.makes then
      for _, other in ipairs(touching[ref.elements[1].key]) do
        if other.makes then ref.name = other.name end
      end
    end
  end
end

-- Expressions with the names of variables.
local function settled(e, loops)
  for _, loop in ipairs(loops) do
    local coefficient = expr.coefficient(e, loop.var)
    if coefficient ~= 0 then e = e + (expr.var(loop.name) - expr.var(loop.var)) * coefficient end
  end
  return e
end

-- fn: a function; items: of its body; values: by object, { pattern, letters, at, body }; with: as tape/roll.lua has it.
return function(fn, items, values, with)
  local scopes = enter(fn, items)
  local root, take = scopes[fn.body], taker()
  local refs, touching = references(fn, items, root, values, with)
  local arrays = find_arrays(refs, touching, scopes)

  take_others(fn, items, root, take)
  take_values(refs, arrays, touching, take)

  local function nodes_of(list, scope)
    local out = {}
    local last
    for _, array in ipairs(scope.arrays) do
      local of = array.of
      if not last or last.of.kind ~= of.kind or last.of.w ~= of.w then
        last = { kind = "array", of = of, names = {} }
        out[#out + 1] = last
      end
      table.insert(last.names, { array.name, array.extents })
    end
    for _, item in ipairs(list) do
      local n = 0
      local node = with(item.node, replacing(item, values, {
        int = function(e) return settled(e, scope.loops) end,
        pointer = function(p, e) return p:at(settled(e, scope.loops) - p.off) end,
        value = function(v, value)
          if not value then return v end
          n = n + 1
          local ref = item.refs[n]
          if not ref.stored then return { name = ref.name, kind = v.kind, w = v.w } end
          local index, text = {}, {}
          for i, dim in ipairs(ref.array.dims) do
            index[i] = settled(ref.at[dim], scope.loops)
            text[i] = "[" .. expr.text(index[i]) .. "]"
          end
          return { name = ref.array.name .. table.concat(text), array = ref.array.name, index = index, kind = v.kind,
                   w = v.w }
        end,
      }))
      if item.var then
        local names = table.move(VARIABLES, 1, #VARIABLES, 2, { item.letter })
        if item.letter == "" then table.remove(names, 1) end
        item.name = take(item.scope, names)
        node.var = item.name
      end
      if item.items then node.body = nodes_of(item.items, item.scope) end
      if item.otherwise then node.otherwise = nodes_of(item.otherwise, item.other_scope) end
      if not says_the_loop(item) then out[#out + 1] = node end
    end
    return out
  end
  return nodes_of(items, root)
end
