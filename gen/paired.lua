-- Operands in pairs: where an ISA multiplies pairs of a small type, two numbers that follow each other in a sum lie in
-- a word of memory. A K step takes a word of A and a vector of words of B, so what is said of steps, panels and rows
-- holds for words.
--
--   of            along       made
--   X, Wq Wk Wv   d_model     by a stage of its own; when packing
--   Q^T, K        dk          behind the query projection; where keys are stored
--   P, V          keys        two rows at a time, as their tiles end
--   context, Wo   dv          likewise; when packing

local choices = require "choices"
local graph = require "graph"
local isas = require "isa.init"
local tiles = require "tiles"

local M = {}

-- What stands against it, as functions of the plan and the list of the formula, the first one counts: for all products,
-- and for those of attention.
local against = {
  { function(_, list)
    for _, name in ipairs { "queries", "keys", "values", "output" } do
      local stage = graph.find(list, name)
      if not stage or stage.kind == "copy" then return true end
    end
  end, "what is not projected is float32" },
  { function(_, list) return graph.find(list, "attend").keys.at == "cache" end, "a cache has rows of single numbers" },
  { function(_, list) return graph.find(list, "keys").turn end, "rows of float32 are turned" },
  { function(_, list)
    local attend = graph.find(list, "attend")
    return attend.depth % 2 + attend.out % 2 > 0
  end, "dk and dv have to be even" },
  { function(plan)
    local cfg = plan.cfg
    return (cfg.kv_rows or 0) % 2 + (cfg.key_rows or 0) % 2 + (cfg.context_rows or 0) % 2 > 0
  end, "given rows of tiles have to be even" },
}

local against_attention = {
  { function(plan) return plan.scores.shown end, "scores that are a result are float32" },
}

local function reason(plan, list, ...)
  for _, rows in ipairs { ... } do
    for _, row in ipairs(rows) do
      if row[1](plan, list) then return row[2] end
    end
  end
end

-- The products of a plan in pairs, where the ISA has such and nothing stands against them. list: the formula's.
function M.choose(plan, list)
  local function choose(name, what, ...)
    local own = isas.paired(plan.isa, plan[name].b)
    if not own then return end
    local found = reason(plan, list, ...)
    if found then
      choices.say(plan.why, ("no pairs in %s"):format(what), found)
    else
      plan[name] = own
      choices.add(plan.why, "pairs")
    end
  end
  choose("product", "projections", against)
  choose("attend_product", "attention", against, against_attention)
end

-- The list of stages with inputs, keys, values and context in pairs.
function M.rewrite(plan, list)
  local attend, edits = graph.find(list, "attend"), {}
  if plan.attend_product.group > 1 then
    local keys, values = graph.find(list, "keys").c, graph.find(list, "values").c
    keys.pairs, keys.head, values.pairs = "columns", tiles.words(plan.attend_product, keys.head), "rows"
  end
  if plan.product.group == 1 then return list end
  attend.context.pairs = true
  local first = { name = "narrow", kind = "narrow", inputs = {}, macs = function() return 0.0 end }
  local known = {}
  for _, name in ipairs { "queries", "keys", "values" } do
    local stage = graph.find(list, name)
    local input = stage.a
    if not known[input.name] then
      known[input.name] = { name = "pairs_" .. input.name, at = "workspace", head = 0 }
      table.insert(first.inputs, { name = input.name, to = known[input.name], rows = stage.rows, cols = input.row })
    end
    edits[name] = { graph.with(stage, { a = known[input.name] }) }
  end
  list = graph.edited(list, edits)
  table.insert(list, 1, first)
  return list
end

return M
