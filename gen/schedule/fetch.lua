-- How weights are prefetched, while those before them are multiplied:
--
--   panels   panels are the outer loop; tiles of a panel fetch the whole next panel into the nearest cache. For few
--            queries, whose weights come from far
--   ahead    each tile fetches what it reads itself a little later: for few queries, on a core that requests few lines
--            by itself. Also for weights that are widened, since no core looks far ahead there
--   shares   each tile fetches a share of what is next into the second-level cache: for more queries, whose products
--            take at least as long as the weights. For few queries where a core's facts say so

local choices = require "base.choices"
local expr = require "base.expr"
local tiles = require "schedule.tiles"
local ways = require "way.init"

local M = { LINE = 64 } -- bytes of a line of a cache, which an instruction fetches

-- Words between what is multiplied and what is fetched: 2 KB; and 8 KB of weights that are widened.
local AHEAD, AHEAD_WIDENED = 512, 2048

local STEPS = 8 -- the most queries for which weights that are widened are fetched so

local function distance(scheme) return scheme.quant and AHEAD_WIDENED or AHEAD end

local function no_instruction(op)
  return function(plan) return not plan.isa.rows[op] end, function(plan)
    return ("has no effect with isa = %s, which has no such instruction"):format(plan.isa.name)
  end
end

-- What stands against it, of a plan.
local NO_VECTORS = "has no effect with weights that no vectors of numbers are"
local no_vectors = { function(plan) return ways.of(plan.scheme).fetched == "none" end, NO_VECTORS }
local no_numbers = { function(plan) return plan.weights.quant and not ways.of(plan.scheme).words end, NO_VECTORS }
local not_widened = { function(plan) return plan.widens end, "has no effect with pairs that a run makes of weights" }
local no_tiles = { function(plan) return ways.of(plan.scheme).fetched == "shares" end, "tile registers take shares" }
local against = {
  panels = { not_widened, { no_instruction "prefetch" }, no_vectors, no_numbers, no_tiles },
  ahead = { not_widened, { no_instruction "prefetch" }, no_vectors, no_tiles },
  shares = { not_widened, { no_instruction "prefetch_far" }, no_vectors, no_numbers },
}

-- Whether few queries read weights that are widened, more than the second-level cache keeps.
local function widens_far(plan)
  local own = plan.weights
  if not own.quant or plan.scheme.integers and not own.quant.group or plan.cfg.seq > STEPS then return false end
  return tiles.weight_bytes(own) // tiles.in_step(own.scheme) > 2 * plan.cpu.cached
end

-- How weights are to be fetched, by the key `fetch` or by facts of the core: `panels`, `shares`, `ahead` or `none`.
function M.kind(plan)
  local cfg, facts = plan.cfg, ways.of(plan.scheme).facts(plan.cpu)
  if cfg.fetch then return cfg.fetch end
  for _, row in ipairs(facts.fetch) do
    local kind, least, most, bytes = table.unpack(row)
    local holds = cfg.seq >= least and cfg.seq <= most and tiles.weight_bytes(plan) >= bytes
    if holds and not choices.against(against[kind], plan) then return kind end
  end
  return widens_far(plan) and not choices.against(against.ahead, plan) and "ahead" or "none"
end

-- How those of a plan are, that has its stages; nil if not.
function M.choose(plan)
  local kind, panels = M.kind(plan), false
  if kind == "none" then return nil end
  for _, stage in ipairs(plan.stages) do
    panels = panels or stage.nest == "rows" or stage.nest == "groups" or kind == "ahead" and stage.nest == "tiles"
  end
  local rule = choices.against(against[kind], plan)
    or not panels and "has no effect where no projection goes through the rows panel by panel"
  if not rule then
    if kind == "panels" then choices.add(plan.why, "fetched_panels") end
    if kind == "ahead" then choices.add(plan.why, plan.weights.quant and "fetched_widened" or "fetched_ahead") end
    if kind == "shares" then choices.add(plan.why, "fetched_shares") end
    return kind
  end
  if plan.cfg.fetch then tiles.refuse("fetch", kind, rule) end
end

-- Whether the panels of a product stay in the second-level cache while tiles of rows meet all of them, one by one.
function M.stay(plan, product) return product.scheme.b.bytes * product.floats <= plan.cpu.cached end

-- Whether the tiles of such a product fetch from the next one, whose panels lie behind its own. behind: numbers that
-- follow those of the product.
function M.crosses(plan, product, behind)
  local several = tiles.keeps_sums(product) and tiles.count(product) > tiles.TOGETHER
  local alone = ways.of(product.scheme).fetched == "shares" and not several
  return plan.fetch == "shares" and not alone and behind >= product.floats and M.stay(plan, product)
end

-- Where what is fetched beside a panel of a block begins, and how wide it is. With `ahead` it begins a little behind
-- where the panel does; else it lies behind the panel or, where tiles cross to the next product, in the same place of
-- that. Where no weights follow it is what those of the product end with. Behind the last panel of a product another
-- one begins.
function M.next(kind, product, panels, panel, behind, crosses)
  local last = panels == product.panel_runs[#product.panel_runs] and not crosses and kind ~= "ahead"
  local width, own = last and product.panel_runs[1].width or panels.width, panels.width * product.depth
  local size = kind == "ahead" and distance(product.scheme) or crosses and product.floats or own
  if behind >= math.max(size, width * product.depth) then return panel + size, width end
  return expr.min(panel + size, product.floats - own), panels.width
end

-- What the i-th of `count` tiles fetches of so wide a panel, at p, in each K step of its own, for product.operand: so
-- many numbers, from p on for the first step.
function M.part(kind, product, p, width, i, count)
  if kind ~= "shares" then return { p = p, numbers = width } end
  local first = expr.div(i * width, count)
  return { p = p:at(first * product.depth), numbers = tiles.ceil_div(width, count), far = true }
end

-- Numbers of weights that follow those of a block of heads at least: those of Wo.
function M.behind(plan)
  local floats = 0
  for _, stage in ipairs(plan.stages) do floats = floats + (stage.nest == "groups" and stage.product.floats or 0) end
  return floats
end

-- How the weights of a product are fetched, for `of_tile`; nil if they are not.
function M.of(plan, product)
  local behind = M.behind(plan)
  return plan.fetch and { kind = plan.fetch, product = product, behind = behind,
                          crosses = M.crosses(plan, product, behind), count = tiles.count(product) } or nil
end

-- What the i-th of a product's tiles fetches beside a panel of a block, of the weights w. own: as `of` has it.
function M.of_tile(own, panels, w, panel, i)
  local next, width = M.next(own.kind, own.product, panels, panel, own.behind, own.crosses)
  return M.part(own.kind, own.product, w:at(next), width, i, own.count)
end

return M
