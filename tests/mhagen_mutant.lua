-- build/mhagen-mutant INDEX ...: build/mhagen with one node of what it records changed, for tests/mutate_tape.py.
-- The changes are those that no kernel should stand: of a store or an accumulator left out, of two operands
-- exchanged that do not commute, of an address one float further, of a loop one round shorter, of a literal with
-- the other sign, of two pointers of a call exchanged, and of a number in the list of packing.

local host = require "host"
local cprint = require "tape.cprint"
local errors = require "command.errors"
local pack = require "plan.pack"

-- Operands that may not change places, by op.
local ORDERED = { sub = { 1, 2 }, div = { 1, 2 }, lt = { 1, 2 }, sel = { 2, 3 }, fma = { 2, 3 }, trn_lo = { 1, 2 },
                  trn_hi = { 1, 2 }, scale2 = { 1, 2 } }

-- All changes of the functions of a tape: { text, apply }, in the order of the text.
local function changes(functions)
  local list = {}
  local function add(fn, what, apply)
    list[#list + 1] = { text = fn.name .. ": " .. what, apply = apply }
  end
  local function scan(fn, body)
    for i, node in ipairs(body) do
      if node.kind == "op" then
        local name = node.op.name
        local title = name .. (node.dst and " of " .. node.dst.name or "")
        if node.op.result == "-" or node.updates then
          add(fn, "no " .. title, function() table.remove(body, i) end)
        end
        local pair = ORDERED[name]
        if pair then
          local a, b = node.args[pair[1]], node.args[pair[2]]
          if a ~= b then
            add(fn, "exchanged operands of " .. title, function() node.args[pair[1]], node.args[pair[2]] = b, a end)
          end
        end
        for k, arg in ipairs(node.args) do
          if type(arg) == "table" and arg.base then
            add(fn, "one float further in " .. title, function() node.args[k] = arg:at(1) end)
          elseif node.op.args[k] == "s" then
            add(fn, "the other sign of the literal of " .. title, function() node.args[k] = -arg end)
          end
        end
      elseif node.kind == "call" then
        local first -- pointer
        for k, arg in ipairs(node.args) do
          if type(arg) == "table" and arg.base then
            if first then
              local j, other = first, node.args[first]
              add(fn, ("exchanged arguments %d and %d of %s"):format(j, k, node.fn.name),
                function() node.args[j], node.args[k] = arg, other end)
            end
            first = k
          end
        end
      elseif node.kind == "loop" then
        add(fn, "one round less of " .. node.var, function() node.count = node.count - 1 end)
      end
      if node.body then scan(fn, node.body) end
      if node.otherwise then scan(fn, node.otherwise) end
    end
  end
  for _, fn in ipairs(functions) do scan(fn, fn.body) end
  return list
end

-- The same of the fills of a list of packing.
local function packing_changes(list)
  local found = {}
  local function add(fill, what, record, key)
    found[#found + 1] = { text = ("packing of %s: %s + 1"):format(fill.text, what),
                          apply = function() record[key] = (record[key] or 0) + 1 end }
  end
  for _, name in ipairs { "fills", "rounded" } do
    for _, fill in ipairs(list.lists[name]) do
      for _, key in ipairs { "to", "scale" } do add(fill, key, fill, key) end
      for _, round in ipairs(fill.rounds) do add(fill, "to of a round", round, "to") end
      for _, term in ipairs(fill.terms) do add(fill, "column of a term", term, "column") end
    end
  end
  return found
end

local function pick(list, index) return list[(index - 1) % #list + 1], (index - 1) % #list + 1 end

local function tell(change, number, count)
  change.apply()
  errors.must(host.print(("mutant %d of %d: %s\n"):format(number, count, change.text)))
end

-- A negative index is of a change of the packing.
return function(arguments)
  local index = tonumber(table.remove(arguments, 1))
  local print_functions, done = cprint.functions, false
  function cprint.functions(t)
    if done then return print_functions(t) end
    done = true -- the self-test has a tape of its own
    local list = changes(t.functions)
    if index > 0 then
      local change, number = pick(list, index)
      tell(change, number, #list)
    end
    return print_functions(t)
  end
  local list_packing = pack.list
  function pack.list(plan)
    local list = list_packing(plan)
    if index < 0 then
      local found = packing_changes(list)
      local change, number = pick(found, -index)
      tell(change, number, #found)
    end
    return list
  end
  return require "main"(arguments)
end
