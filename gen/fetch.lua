-- Panels of weights that are fetched while the one before is multiplied: of layers whose weights come from far, for few
-- queries. A panel then serves all rows of X, one tile after the other, and each K step of these fetches as much of the
-- next panel.

local choices = require "choices"
local expr = require "expr"
local tiles = require "tiles"

local M = {}

local LEAST = 4 -- queries: for fewer the weights pass by once, and the hardware's own fetching is as fast as can be

-- Whether a stage goes through all rows with one panel of weights.
local function has_panels(plan)
  for _, stage in ipairs(plan.stages) do
    if stage.kind == "project" or stage.kind == "output" then return true end
  end
  return false
end

-- What stands against it, of a plan.
local against = {
  { function(plan) return not plan.isa.rows.prefetch end,
    function(plan) return ("has no effect with isa = %s, which has no such instruction"):format(plan.isa.name) end },
  { function(plan) return plan.product.tiled or plan.product.coarse or plan.weights.quant end,
    "has no effect with weights that no vectors of numbers are" },
  { function(plan) return not has_panels(plan) end,
    "has no effect where no projection goes through the rows panel by panel" },
}

-- Whether a plan has them, by the key `fetch` or by facts of the core.
function M.choose(plan)
  local cfg, cpu = plan.cfg, plan.cpu
  local rule = choices.against(against, plan)
  if cfg.fetch == "panels" and rule then tiles.refuse("fetch", cfg.fetch, rule) end
  if rule or cfg.fetch then return cfg.fetch == "panels" end
  local far = cpu.fetched and cfg.seq >= LEAST and tiles.few(cfg.seq) and tiles.weight_bytes(plan) >= cpu.fetched
  if far then choices.add(plan.why, "fetched_panels") end
  return far
end

-- What is fetched beside a panel of a block: as much as it has, from behind it on, or, where no other weights follow
-- those of the product, what these end with.
function M.next(product, block, panel, followed)
  local size = block.width * product.depth
  return followed and panel + size or expr.min(panel + size, product.floats - size)
end

return M
