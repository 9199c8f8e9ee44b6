-- Nodes of a tape: what they use, and their text.
--
--   words_of[text]       the names in the text of a variable or pointer
--   prune(body, used)    drops values that nothing uses, last ones first; returns the set `used`
--   content(fn)          what a function does, as a text

local expr = require "base.expr"

local M = {}
local NOTHING = {}

-- The names in the text of a variable or pointer, which comes many times ("args->q" has args).
M.words_of = setmetatable({}, {
  __index = function(known, text)
    local list = {}
    for word in text:gmatch("[%a_][%w_]*") do list[#list + 1] = word end
    known[text] = list
    return list
  end,
})

-- Of each kind of node: the fields that its text has besides lists and bodies, and those that use what others make.
local kinds = {
  op = { says = { "op", "dst", "mutable", "updates" }, uses = {} },
  apply = { says = { "fn", "dst" }, uses = {} },
  call = { says = { "fn" }, uses = {} },
  result = { says = { "result" }, uses = { "result" } },
  int = { says = { "name", "value" }, uses = { "value" } },
  int_at = { says = { "name", "base", "off", "floats" }, uses = { "base", "off" } },
  loop = { says = { "var", "count", "unrolled" }, uses = { "count" } },
  when = { says = { "left", "right" }, uses = { "left", "right" } },
  unless = { says = {}, uses = {} },
  scope = { says = {}, uses = {} },
  place = { says = { "name", "text" }, uses = {} },
  buffer = { says = { "name", "count" }, uses = {} },
  fence = { says = {}, uses = {} },
  bump = { says = { "pointer", "by" }, uses = { "by" } },
  note = { says = { "text" }, uses = {} },
}

-- Marks a value by itself, the names in a text or an expression by name.
local function mark(used, what)
  if type(what) == "string" then
    for _, word in ipairs(M.words_of[what]) do used[word] = true end
  elseif type(what) ~= "table" then
    return
  elseif what.base then
    mark(used, what.base)
    mark(used, what.off)
  elseif what.terms then
    expr.variables(what, function(name) mark(used, name) end)
  else
    used[what] = true
  end
end

-- What a statement uses, in the set `used`.
local function note_uses(node, used)
  for _, a in ipairs(node.args or NOTHING) do
    if type(a) == "table" then mark(used, a) end
  end
  for _, c in ipairs(node.conditions or NOTHING) do mark(used, c) end
  for _, key in ipairs(kinds[node.kind].uses) do mark(used, node[key]) end
end

-- Drops values that nothing uses, last ones first, and returns what is used.
function M.prune(body, used)
  for i = #body, 1, -1 do
    local node = body[i]
    local made = node.dst and not node.updates and node.dst or node.name -- of an int
    if made and not used[made] then
      table.remove(body, i)
    else
      if node.otherwise then M.prune(node.otherwise, used) end
      if node.body then M.prune(node.body, used) end
      note_uses(node, used)
    end
  end
  return used
end

-- What a function does, as a text: two have the same if and only if they print the same but for name and doc.
function M.content(fn)
  local out, n = {}, 0
  local function say(what)
    n = n + 1
    if type(what) ~= "table" then
      out[n] = (type(what) == "string" or type(what) == "number") and what or tostring(what)
    elseif what.base then
      out[n] = what.base
      say(expr.text(what.off))
    else
      out[n] = what.number or what.name or expr.text(what)
    end
  end
  local function say_all(list)
    for _, what in ipairs(list or NOTHING) do say(what) end
    say ";"
  end
  local function scan(body)
    for _, node in ipairs(body or NOTHING) do
      say(node.kind)
      for _, key in ipairs(kinds[node.kind].says) do say(node[key]) end
      say(node.w and node.w.lanes)
      say_all(node.args)
      say_all(node.conditions)
      scan(node.body)
      scan(node.otherwise)
    end
    say "}"
  end
  say(fn.attr)
  say_all(fn.takes)
  for _, p in ipairs(fn.params) do say(p.kind .. p.name) end
  scan(fn.body)
  return table.concat(out, "\n")
end

return M
