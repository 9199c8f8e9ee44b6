-- Projections by mmla, where an ISA has it: an instruction multiplies two words of two rows by two words of two
-- columns. So rows of X and of the context are interleaved in pairs, two words at a time, and panels of weights hold
-- two words of a column side by side. All projections then have columns in the lanes; attention keeps products by lane.

local choices = require "base.choices"
local graph = require "graph.init"
local isas = require "isa.init"

local M = {}

local function odd_rows(cfg, key) return (cfg[key] or 0) % 2 > 0 end

local EVEN = "given rows of tiles have to be even"

-- Reasons against it, for a plan, the list of the formula and a scheme: in all products with weights, and in
-- projections alone.
local against_products = { { function(plan) return odd_rows(plan.cfg, "out_rows") end, EVEN } }

local against_projections = {
  { function(plan) return plan.cfg.q_lanes == "queries" end, "q_lanes = queries asks for other lanes" },
  { function(_, list, scheme)
      local own = not scheme.integers and graph.output(list) -- context as attention stores it
      return own and graph.attend(list).out % 4 > 0
    end, "dv has to be a multiple of four" },
  { function(plan) return odd_rows(plan.cfg, "kv_rows") end, EVEN },
  table.unpack(against_products),
}

-- The scheme of products with weights in place of `scheme`: blocks of 2 x 2, if the ISA has them and there is no reason
-- against it. list: that of the formula.
function M.choose(plan, list, scheme)
  local own = graph.scheme(list) and isas.by_mmla(scheme)
  if not own then return scheme end
  local against = plan.feeds and against_products or against_projections
  local found = choices.against(against, plan, list, scheme)
  if found then
    choices.say(plan.why, "no products by mmla", found)
    return scheme
  end
  choices.add(plan.why, "mmla")
  return own
end

return M
