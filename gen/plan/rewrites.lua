-- The rewrites of the list of stages, in their order.
--
--   row of a list   { name, applies(plan, list), rewrite(plan, list) -> list }
--   of_formula      change what the formula says, whatever the arrangement
--   of_arrangement  depend on the lanes and heads of an arrangement (plan/arrange.lua), before tiles are chosen
--   of_groups       depend on the tiles of its groups of queries

local context_rows = require "stage.context_rows"
local copy = require "stage.copy"
local decode = require "rewrite.decode"
local fold = require "rewrite.fold"
local joint = require "stage.joint"
local keep = require "stage.keep"
local key_rows = require "stage.key_rows"
local paired = require "rewrite.paired"
local quadrants = require "stage.quadrants"
local quantized = require "rewrite.quantized"
local queries = require "rewrite.queries"
local round = require "stage.round"
local value_rows = require "stage.value_rows"
local widen = require "stage.widen"

local M = {}

local function always() return true end

M.of_formula = {
  { "fold", fold.applies, fold.rewrite },
  { "decode", decode.applies, decode.rewrite },
  { "pairs", always, paired.rewrite },
  { "int8", quantized.applies, quantized.rewrite },
  { "round", round.applies, round.rewrite },
  { "context_rows", context_rows.applies, context_rows.rewrite },
  { "widen", widen.applies, widen.rewrite },
}

M.of_arrangement = {
  { "queries", always, queries.rewrite },
  { "quadrants", quadrants.asked, quadrants.rewrite },
  { "joint", function(plan) return plan.in_one end, joint.rewrite },
}

M.of_groups = {
  { "keep", always, keep.rewrite },
  { "copy", always, copy.rewrite },
  { "key_rows", key_rows.applies, key_rows.rewrite },
  { "value_rows", value_rows.applies, value_rows.rewrite },
}

-- The list that the rows make of a list of stages, one after the other.
function M.apply(rows, plan, list)
  for _, row in ipairs(rows) do
    local _, applies, rewrite = table.unpack(row)
    if applies(plan, list) then list = rewrite(plan, list) end
  end
  return list
end

return M
