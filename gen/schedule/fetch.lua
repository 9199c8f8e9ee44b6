-- How weights are prefetched, while those before them are multiplied:
--
--   panels   panels are the outer loop, and the tiles of a panel prefetch the whole next panel into L1. For few
--            queries, whose weights come from L3 or DRAM
--   ahead    each tile prefetches what it will read itself a little later. For few queries, on a core whose hardware
--            prefetcher runs only a few lines ahead. Also for weights that are dequantized, because those instructions
--            keep any core from loading far ahead
--   shares   each tile prefetches a share of what comes next into L2. For more queries, whose products take at least as
--            long as reading the weights, and for few queries where the facts of a core say so

local choices = require "base.choices"
local expr = require "base.expr"
local tiles = require "schedule.tiles"
local ways = require "way.init"

local M = { LINE = 64 } -- bytes of a cache line, which one instruction prefetches

local AHEAD = { { 2048, "prefetch" } } -- like `widened` in machine/cpu.lua, for weights that are not dequantized
local WORD = 4

local STEPS = 8 -- the most queries for which dequantized weights are prefetched by `ahead`

local function hints_ahead(own) return own.product.scheme.quant and own.plan.cpu.widened or AHEAD end

-- Words between the weights that are multiplied and those of the farthest hint.
local function distance(own)
  local hints = hints_ahead(own)
  return hints[#hints][1] // WORD
end

local function no_instruction(op)
  return function(plan) return not plan.isa.rows[op] end, function(plan)
    return ("has no effect with isa = %s, which has no such instruction"):format(plan.isa.name)
  end
end

-- Reasons against each kind, for a plan.
local NO_VECTORS = "has no effect with weights that no vectors of numbers are"
local no_vectors = { function(plan) return ways.of(plan.scheme).fetched == "none" end, NO_VECTORS }
local no_numbers = { function(plan) return plan.weights.quant and not ways.of(plan.scheme).words end, NO_VECTORS }
local not_widened = { function(plan) return plan.stored ~= plan.weights end,
                      "has no effect with pairs that a run makes of weights" }
local no_tiles = { function(plan) return ways.of(plan.scheme).fetched == "shares" end, "tile registers take shares" }
local against = {
  panels = { not_widened, { no_instruction "prefetch" }, no_vectors, no_numbers, no_tiles },
  ahead = { not_widened, { no_instruction "prefetch" }, no_vectors, no_tiles },
  shares = { not_widened, { no_instruction "prefetch_far" }, no_vectors, no_numbers },
}

-- Why a kind has no effect in all of a plan, or nil.
local function why_not(kind, plan)
  return choices.against(against[kind], plan) or choices.against(against[kind], plan.feeding)
end

-- Whether few queries read weights that are dequantized in registers and exceed L2.
local function widens_far(plan)
  local own = plan.weights
  if not own.quant or plan.scheme.integers and not own.quant.group or plan.cfg.seq > STEPS then return false end
  return tiles.weight_bytes(own) // tiles.in_step(own.scheme) > 2 * plan.cpu.cached
end

-- How to prefetch weights, by the key `fetch` or by facts of the core: `panels`, `shares`, `ahead` or `none`.
function M.kind(plan)
  local cfg, facts = plan.cfg, ways.of(plan.scheme).facts(plan.cpu)
  if cfg.fetch then return cfg.fetch end
  for _, row in ipairs(facts.fetch) do
    local kind, least, most, bytes = table.unpack(row)
    local holds = cfg.seq >= least and cfg.seq <= most and tiles.weight_bytes(plan) >= bytes
    if holds and not why_not(kind, plan) then return kind end
  end
  return widens_far(plan) and not why_not("ahead", plan) and "ahead" or "none"
end

-- How a plan, whose stages are known, prefetches weights; nil if it does not.
function M.choose(plan)
  local kind, panels = M.kind(plan), false
  if kind == "none" then return nil end
  for _, stage in ipairs(plan.stages) do
    panels = panels or stage.nest == "rows" or stage.nest == "groups" or kind == "ahead" and stage.nest == "tiles"
  end
  local rule = why_not(kind, plan)
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

-- Whether the panels of a product stay in L2 while each tile of rows goes through all of them.
function M.stay(plan, product) return product.scheme.b.bytes * product.floats <= plan.cpu.cached end

-- Whether the tiles of such a product prefetch weights of the next product, whose panels follow its own. behind: how
-- many numbers follow those of the product.
function M.crosses(plan, product, behind)
  local several = tiles.keeps_sums(product) and tiles.count(product) > tiles.TOGETHER
  local alone = ways.of(product.scheme).fetched == "shares" and not several
  return plan.fetch == "shares" and not alone and behind >= product.floats and M.stay(plan, product)
end

-- Whether at least `size` numbers of weights follow a product, and at least a panel of this width.
local function follows(own, size, width) return own.behind >= math.max(size, width * own.product.depth) end

-- How the tiles of a product prefetch beside a panel of a block, `own`: { plan, product, behind, the numbers of weights
-- that follow those of the product, crosses, count of tiles, shares if a run says how many tiles there are }.

-- Where the weights to prefetch beside a panel of a block begin, and how wide they are. With `ahead` they begin a
-- little after the panel itself does. Otherwise they follow the panel, or have its place in the next product if tiles
-- cross to that. If no weights follow, they are the last of the product. After the last panel of a product, another one
-- begins.
function M.next(own, panels, panel)
  local product, is_ahead = own.product, own.plan.fetch == "ahead"
  local last = panels == product.panel_runs[#product.panel_runs] and not own.crosses and not is_ahead
  local width, all = last and product.panel_runs[1].width or panels.width, panels.width * product.depth
  local size = is_ahead and distance(own) or own.crosses and product.floats or all
  if follows(own, size, width) then return panel + size, width end
  return expr.min(panel + size, product.floats - all), panels.width
end

-- The hints of `ahead`: { at, op } each, with `at` relative to the farthest hint. Hints before the first weight are
-- left out.
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

-- The number of shares of a panel if each has a cache line for each block of K steps.
local function least_shares(product, width)
  return tiles.ceil_div(width * tiles.LOOP_STEPS * product.scheme.b.bytes, M.LINE)
end

-- What the i-th tile prefetches of a panel at p that is so wide, as product.operand takes it. Each of its K steps
-- prefetches `numbers` numbers, from p on in the first step, by hints { at, op }. share: the numbers, if a run says how
-- many; a block of K steps has a cache line of them at most. spread: a block issues them at once.
function M.part(own, p, width, i)
  local kind = own.plan.fetch
  if kind ~= "shares" then
    local hints = kind == "ahead" and hints_of(own, width) or { { at = 0, op = "prefetch" } }
    return { p = p, numbers = width, hints = hints }
  end
  local shares = own.shares or { count = own.count, parts = {} }
  local numbers = shares.parts[width] or tiles.ceil_div(width, own.count)
  return { p = p:at(expr.div(i * width, shares.count) * own.product.depth), numbers = numbers,
           share = not expr.is_const(numbers) and numbers or nil, spread = true,
           hints = { { at = 0, op = "prefetch_far" } } }
end

-- The shares of panels that tiles prefetch in a run of so many rows: { count, parts: the numbers of a K step, by the
-- width of a panel }. Each tile has one, of at most a cache line for each block of K steps. Nil if all runs have as
-- many. sets: the rows of the tiles, as tiles.starts takes them.
function M.shares(K, own, rows, sets, panel_runs)
  local scheme = own.product.scheme
  if own.plan.fetch ~= "shares" or K.full or ways.of(scheme).tile_words(scheme) then return nil end
  local starts = tiles.starts(sets)
  local count, all = #starts - 1, starts[#starts]
  local least, more = 1, 0 -- tiles, and how many may begin before their part of all rows
  for _, run in ipairs(panel_runs) do least = math.max(least, least_shares(own.product, run.width)) end
  for number = 1, count - 1 do more = math.max(more, number - starts[number + 1] * count // all) end
  if least >= count then return nil end
  local filled = K.t:int("filled", expr.min(expr.div(rows * count + (all - count), all) + more, count))
  local shares, parts = K.t:int("shares", expr.max(filled, least), { least, count }), {}
  for i, run in ipairs(panel_runs) do
    parts[run.width] = parts[run.width]
      or K.t:int("share" .. (i > 1 and i or ""), expr.div(shares + (run.width - 1), shares))
  end
  return { count = shares, parts = parts }
end

-- How many numbers of weights follow those of a block of heads at least: those of Wo.
function M.behind(plan)
  local floats = 0
  for _, stage in ipairs(plan.stages) do floats = floats + (stage.nest == "groups" and stage.product.floats or 0) end
  return floats
end

-- How the weights of a product are prefetched, for `of_tile`; nil if they are not.
function M.of(plan, product)
  local behind = M.behind(plan)
  return plan.fetch and { plan = plan, product = product, behind = behind,
                          crosses = M.crosses(plan, product, behind), count = tiles.count(product) } or nil
end

-- What the i-th of a product's tiles prefetches beside a panel of a block; w: the weights.
function M.of_tile(own, panels, w, panel, i)
  local next, width = M.next(own, panels, panel)
  return M.part(own, w:at(next), width, i)
end

return M
