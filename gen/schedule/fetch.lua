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

local AHEAD = { { 2048, "prefetch" } } -- as `widened` in machine/cpu.lua, of weights that are not
local WORD = 4

local STEPS = 8 -- the most queries for which weights that are widened are fetched so

local function hints_ahead(own) return own.product.scheme.quant and own.plan.cpu.widened or AHEAD end

-- Words between what is multiplied and what the farthest hint is of.
local function distance(own)
  local hints = hints_ahead(own)
  return hints[#hints][1] // WORD
end

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
    if kind == "ahead" then
      local widens, twice = plan.weights.quant, #plan.cpu.widened > 1
      choices.add(plan.why, not widens and "fetched_ahead" or twice and "fetched_twice" or "fetched_widened")
    end
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

-- Whether weights follow a product, so many and as many as a panel has that is so wide.
local function follows(own, size, width) return own.behind >= math.max(size, width * own.product.depth) end

-- What the tiles of a product fetch beside a panel of a block: { plan, product, behind, the numbers of weights that
-- follow those of the product, crosses, count of tiles }.

-- Where what is fetched beside a panel of a block begins, and how wide it is. With `ahead` it begins a little behind
-- where the panel does; else it lies behind the panel or, where tiles cross to the next product, in the same place of
-- that. Where no weights follow it is what those of the product end with. Behind the last panel of a product another
-- one begins.
function M.next(own, panels, panel)
  local product, is_ahead = own.product, own.plan.fetch == "ahead"
  local last = panels == product.panel_runs[#product.panel_runs] and not own.crosses and not is_ahead
  local width, all = last and product.panel_runs[1].width or panels.width, panels.width * product.depth
  local size = is_ahead and distance(own) or own.crosses and product.floats or all
  if follows(own, size, width) then return panel + size, width end
  return expr.min(panel + size, product.floats - all), panels.width
end

-- The hints of `ahead`: { at, op } each, so many numbers from what the farthest is of. Before the weights is nothing.
local function hints_of(own, width)
  local list, most = {}, distance(own)
  for _, hint in ipairs(hints_ahead(own)) do
    local at = hint[1] // WORD - most
    if follows(own, most, width) or own.product.floats - width * own.product.depth + at >= 0 then
      list[#list + 1] = { at = at, op = hint[2] }
    end
  end
  return list
end

-- What the i-th tile fetches of so wide a panel, at p, in each K step of its own, for product.operand: so many numbers,
-- from p on for the first step, by hints { at, op }; spread: with hints where a block of K steps has room for them.
function M.part(own, p, width, i)
  local kind = own.plan.fetch
  if kind ~= "shares" then
    local hints = kind == "ahead" and hints_of(own, width) or { { at = 0, op = "prefetch" } }
    return { p = p, numbers = width, hints = hints }
  end
  local first = expr.div(i * width, own.count)
  return { p = p:at(first * own.product.depth), numbers = tiles.ceil_div(width, own.count), spread = true,
           hints = { { at = 0, op = "prefetch_far" } } }
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
  return plan.fetch and { plan = plan, product = product, behind = behind,
                          crosses = M.crosses(plan, product, behind), count = tiles.count(product) } or nil
end

-- What the i-th of a product's tiles fetches beside a panel of a block, of the weights w.
function M.of_tile(own, panels, w, panel, i)
  local next, width = M.next(own, panels, panel)
  return M.part(own, w:at(next), width, i)
end

return M
