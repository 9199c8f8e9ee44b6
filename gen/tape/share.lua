-- Sections that several functions share are written once, as functions that the compiler inlines.
--
--   share(functions, bodies, by)   bodies: by function, its nodes as they are printed; sections that are equal but for
--                                  their names become calls there. by: lines(nodes, indent) and ctype(value) of the
--                                  printer. Returns, by function, a list of those to print before it:
--                                  { name, doc, params, locals, lines, result }
--
-- A section is a run of nodes that a tape has recorded as one. Names that are made outside of it are its parameters.

local NOTHING = {}
local LEAST, SAVED = 5, 3 -- lines of a section, and those that it has to save

-- ---- names ----

-- Adds what a list of nodes declares to `names`, by name: the C text of it as a parameter.
local function declare(nodes, names, by)
  for _, node in ipairs(nodes) do
    local dst = node.dst
    if dst and not node.updates and not dst.array then
      names[dst.name] = { by.ctype(dst) .. " ", "" }
    elseif node.kind == "int" or node.kind == "int_at" then
      names[node.name] = { "ptrdiff_t ", "" }
    elseif node.kind == "array" then
      for _, array in ipairs(node.names) do
        names[array[1]] = { by.ctype(node.of) .. " ", "[" .. table.concat(array[2], "][") .. "]", array = node }
      end
    elseif node.kind == "buffer" then
      names[node.name] = { "float *", "" }
    elseif node.kind == "place" then
      names[node.name] = { "float *", "" }
    end
  end
  return names
end

-- Calls visit(node) for all nodes of a list, and those in them.
local function each(nodes, visit)
  for _, node in ipairs(nodes or NOTHING) do
    visit(node)
    each(node.body, visit)
    each(node.otherwise, visit)
  end
end

-- The names in a text in the order of their first places, and how often each is there.
local function names_of(text)
  local list, count = {}, {}
  for name in text:gmatch("[%a_][%w_]*") do
    if not count[name] then list[#list + 1] = name end
    count[name] = (count[name] or 0) + 1
  end
  return list, count
end

-- ---- sections ----

-- What all nodes of a run do to names that are not its own: whether it can be a function, which pointers it moves on,
-- and what it makes.
local function effects(run, visible)
  local own, moved, possible, made = {}, {}, true, {}
  each(run, function(node)
    if node.var then own[node.var] = true end
    if node.name then own[node.name] = true end
    for _, array in ipairs(node.names or NOTHING) do own[array[1]] = true end
    local dst = node.dst
    if dst and not dst.array then
      if node.updates and not own[dst.name] then possible = false end
      if not node.updates then own[dst.name] = true end
    end
    if node.kind == "bump" then moved[node.pointer.base] = visible[node.pointer.base] end
  end)
  for _, node in ipairs(run) do
    if node.dst and not node.updates and not node.dst.array then made[#made + 1] = node end
  end
  return possible, own, moved, made
end

-- A section that can be a function, or nil:
--   run, lines     its nodes and their text
--   args, types    the names that it takes, and their types
--   locals         arrays that nothing else has
--   result         the node of the value that it returns
--   key            equal sections have the same
local function section_of(run, after, visible, whole, by, outermost)
  local possible, own, moved, made = effects(run, visible)
  if not possible then return end
  local lines = by.lines(run, "  ")
  local text = table.concat(lines, "\n")
  local list, count = names_of(text)
  local _, behind = names_of(table.concat(by.lines(after, "  "), "\n"))
  for name in pairs(moved) do
    if behind[name] or not outermost then return end
  end
  local result
  for _, node in ipairs(made) do
    if behind[node.dst.name] then
      if result then return end
      result = node
    end
  end
  local found = { run = run, lines = lines, args = {}, types = {}, locals = {}, result = result,
                  section = run[1].section }
  local number, key = {}, { found.section.name }
  for i, name in ipairs(list) do
    local type = visible[name]
    if own[name] then
      number[name] = i
    elseif type then
      number[name] = i
      if type.array and whole[name] == count[name] + 1 then
        found.locals[#found.locals + 1] = { type[1], name, type[2], type.array }
      else
        found.args[#found.args + 1], found.types[name] = name, type
      end
      key[#key + 1] = type[1] .. type[2] .. (found.types[name] and "" or "local")
    end
  end
  key[#key + 1] = result and number[result.dst.name] or ""
  key[#key + 1] = text:gsub("[%a_][%w_]*", function(name) return number[name] and "$" .. number[name] end)
  found.key = table.concat(key, "\n")
  return found
end

-- All sections of a body, which replace(list, i, n, node) puts a node in the place of.
local function sections_in(fn, body, by)
  local found = {}
  local _, whole = names_of(table.concat(by.lines(body, "  "), "\n"))
  local function scan(list, outer, outermost)
    local visible = declare(list, setmetatable({}, { __index = outer }), by)
    local i = 1
    while list[i] do
      local n, section = 1, list[i].section
      while section and list[i + n] and list[i + n].section == section do n = n + 1 end
      local run = table.move(list, i, i + n - 1, 1, {})
      local one = section and section_of(run, table.move(list, i + n, #list, 1, {}), visible, whole, by, outermost)
      if one then
        one.list, one.fn = list, fn
        found[#found + 1] = one
      elseif not section then
        local node, inner = list[i], visible
        if node.var then inner = setmetatable({ [node.var] = { "ptrdiff_t ", "" } }, { __index = visible }) end
        if node.body then scan(node.body, inner, false) end
        if node.otherwise then scan(node.otherwise, inner, false) end
      end
      i = i + n
    end
  end
  local params = {}
  for _, p in ipairs(fn.params) do params[p.name] = { p.kind .. (p.kind:sub(-1) == "*" and "" or " "), "" } end
  scan(body, params, true)
  return found
end

-- ---- functions ----

-- The order of the arguments of a section: as its function has its parameters, then all others.
local function order_of(one)
  local at, list = {}, {}
  for i, p in ipairs(one.fn.params) do at[p.name] = i end
  for i in ipairs(one.args) do list[i] = i end
  local function rank(i) return at[one.args[i]] or #one.fn.params + i end
  table.sort(list, function(a, b) return rank(a) < rank(b) end)
  return list
end

-- The parameters of the function of a section, { text before the name, name, text behind it } each.
local function params_of(one, order)
  local params = {}
  for i, n in ipairs(order) do
    local arg = one.args[n]
    params[i] = { one.types[arg][1], arg, one.types[arg][2] }
  end
  return params
end

-- Puts the call of a function into the place of a section.
local function call(one, name, order)
  local list, first, args = one.list, nil, {}
  for i, n in ipairs(order) do args[i] = one.args[n] end
  for i, node in ipairs(list) do
    if node == one.run[1] then first = i end
  end
  for _ = 2, #one.run do table.remove(list, first) end
  list[first] = { kind = "shared", name = name, args = args, dst = one.result and one.result.dst }
  for _, array in ipairs(one.locals) do
    local names = array[4].names
    for i = #names, 1, -1 do
      if names[i][1] == array[2] then table.remove(names, i) end
    end
  end
end

return function(functions, bodies, by)
  local groups, order, taken, before = {}, {}, {}, {}
  for _, fn in ipairs(functions) do
    taken[fn.name] = true
    for _, one in ipairs(sections_in(fn, bodies[fn], by)) do
      local group = groups[one.key]
      if not group then
        group = {}
        groups[one.key], order[#order + 1] = group, group
      end
      group[#group + 1] = one
    end
  end
  for _, group in ipairs(order) do
    local one = group[1]
    local lines = #one.lines
    if lines >= LEAST and (#group - 1) * lines - #group - 4 >= SAVED then
      local name, n = one.section.name, 1
      while taken[name] do
        n = n + 1
        name = ("%s_%d"):format(one.section.name, n)
      end
      taken[name] = true
      local args = order_of(one)
      before[one.fn] = before[one.fn] or {}
      table.insert(before[one.fn], { name = name, doc = one.section.doc, params = params_of(one, args),
                                     lines = one.lines, locals = one.locals, result = one.result and one.result.dst })
      for _, other in ipairs(group) do call(other, name, args) end
    end
  end
  return before
end
