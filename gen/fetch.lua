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

-- Rows that tile registers take with one panel.
local function most_rows(plan) return tiles.TOGETHER * 2 * plan.isa.tile end

-- What stands against it, of a plan.
local against = {
  { function(plan) return not plan.isa.rows.prefetch end,
    function(plan) return ("has no effect with isa = %s, which has no such instruction"):format(plan.isa.name) end },
  { function(plan) return plan.product.coarse or plan.weights.quant and not plan.product.tiled end,
    "has no effect with weights that no vectors of numbers are" },
  { function(plan) return plan.product.tiled and math.max(plan.cfg.seq, plan.cfg.seq_kv) > most_rows(plan) end,
    function(plan) return ("has no effect with tile registers and more than %d queries or keys"):format(
      most_rows(plan)) end },
  { function(plan) return not has_panels(plan) end,
    "has no effect where no projection goes through the rows panel by panel" },
}

-- Whether a plan has them, by the key `fetch` or by facts of the core.
function M.choose(plan)
  local cfg, cpu = plan.cfg, plan.cpu
  local rule = choices.against(against, plan)
  if cfg.fetch == "panels" and rule then tiles.refuse("fetch", cfg.fetch, rule) end
  if rule or cfg.fetch then return cfg.fetch == "panels" end
  local tiled, few, least = plan.product.tiled, tiles.few(cfg.seq), nil
  if tiled and not few then least = cpu.tiling.fetched end
  if not tiled and few and cfg.seq >= LEAST then least = cpu.fetched end
  local far = least and tiles.weight_bytes(plan) >= least
  if far then choices.add(plan.why, tiled and "fetched_tiles" or "fetched_panels") end
  return far
end

-- What is fetched beside a panel of a block: as much as it has, from behind it on, or, where no other weights follow
-- those of the product, what these end with.
function M.next(product, block, panel, followed)
  local size = block.width * product.depth
  return followed and panel + size or expr.min(panel + size, product.floats - size)
end

-- What the i-th of `count` tiles of rows fetches of it, at p, for product.operand: vectors do so for each tile, which
-- may have replaced them; tile registers, whose panels stay near, share a step.
function M.share(isa, product, block, i, count, p)
  if not product.multiply.tiled then return { p = p, numbers = block.width } end
  local numbers = isa.tile * math.max(1, #block.vecs * isa.tile // count)
  return { p = p:at(i * numbers), numbers = numbers }
end

return M
