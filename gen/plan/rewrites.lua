-- The rewrites of the list of stages, in order.
--
--   row of a list   { name, applies(plan, list), rewrite(plan, list) -> list }
--   of_formula      change the formula, whatever the arrangement
--   of_arrangement  depend on the lanes and heads of an arrangement (plan/arrange.lua), before tiles are chosen
--   of_groups       depend on the tiles of the groups of queries

local angles = require "stage.angles"
local conversions = require "rewrite.conversions"
local copy = require "stage.copy"
local decode = require "rewrite.decode"
local fold = require "rewrite.fold"
local graph = require "graph.init"
local joint = require "rewrite.joint"
local cache_append = require "stage.cache_append"
local paired = require "rewrite.paired"
local quantized = require "rewrite.quantized"
local queries = require "rewrite.queries"
local widened = require "rewrite.widened"

local M = {}

local function always() return true end

M.of_formula = {
  { "fold", fold.applies, fold.rewrite },
  { "decode", decode.applies, decode.rewrite },
  { "pairs", always, paired.rewrite },
  { "int8", quantized.applies, quantized.rewrite },
  { "round", always, conversions.round },
  { "context_rows", conversions.lacks_context_rows, conversions.context_rows },
  { "widen", conversions.has_small_inputs, conversions.widen },
  { "widened", always, widened.rewrite },
}

M.of_arrangement = {
  { "queries", always, queries.rewrite },
  { "joint", function(plan) return plan.in_one end, joint.rewrite },
}

M.of_groups = {
  { "cache_append", always, cache_append.rewrite },
  { "copy", always, copy.rewrite },
  { "key_rows", conversions.has_short_keys, conversions.key_rows },
  { "value_rows", conversions.lacks_value_rows, conversions.value_rows },
  { "angles", angles.applies, angles.rewrite },
}

-- Those that need no attention.
local without = { pairs = true, int8 = true, round = true, widen = true, widened = true }

-- Applies the rewrites of a list to a list of stages, one after the other.
function M.apply(rows, plan, list)
  for _, row in ipairs(rows) do
    local name, applies, rewrite = table.unpack(row)
    local passes = graph.attend(list).passes
    if (without[name] or not passes) and applies(plan, list) then list = rewrite(plan, list) end
  end
  return list
end

return M
