-- Products with weights, C = A B + bias. They are one kind of stage, whose loops are nested in one of these ways
-- (`nest`):
--
--   nest      lanes     loops of a run or its tasks            inside of them
--   rows      columns   blocks of heads, parts of the rows     tiles of rows and panels, in the order that suits caches
--   tiles     columns   blocks of heads, tiles of rows         panels of one product of the same rows
--   columns   columns   none: some columns of such a product   (only how they are packed)
--   groups    columns   blocks of groups of queries, panels    tiles of rows
--   lanes     queries   none: attention records it             tiles, for all heads of a block or for each
--
-- With "tiles", several projections are one product, [Wq Wk Wv] (rewrite/joint.lua). "groups" has a file of its own,
-- stage/product_groups.lua. The end of a tile is data: its bias, `add`, and the layout of C (emit/ending.lua).

local choices = require "base.choices"
local emit_qk = require "emit.qk"
local expr = require "base.expr"
local fetch = require "schedule.fetch"
local graph = require "graph.init"
local layouts = require "graph.layout"
local packed = require "stage.product_packed"
local product_of = require "emit.product"
local qk_of = require "graph.qk"
local rows_of = require "stage.rows"
local score = require "score.init"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"
local ways = require "way.init"
local wording = require "base.wording"

local M = { groups = require "stage.product_groups" }

-- ---- what `rows` and `tiles` have in common ----

local of_rows = { phase = rows_of.phase, title = rows_of.title, per = rows_of.per }

local KEYS = { rows = "kv_rows", vectors = "kv_vectors" }

function of_rows.plan(plan, stage)
  local ends = layouts.stored(stage.c)
  local product, cost = tiles.columns(tiles.target(plan, stage.multiplied), KEYS,
    { { rows = stage.rows, count = 1, even = ends.down > 1 or ways.interleave(stage.scheme) > 1,
        twice = ways.of(stage.scheme).twice } },
    graph.in_block(plan, stage) * stage.cols, { steps = tiles.words(stage.multiplied, stage.steps), order = "rows",
                                                rounded = ends.round or ends.pairs })
  local c = not stage.c.exact and tensors.with(stage.c, { row = product.ld // ends.across })
  return cost, { product = product, c = c or nil, packed = packed.panels(stage, product) }
end

function of_rows.sections(plan, stage, add)
  packed.sections(stage, stage.packed, "head", "weights", add)
  if stage.nest == "tiles" then
    return add("projected", { name = stage.name, doc = "rows of Q, K and V", cols = stage.product.ld,
                              count = plan.kv_rows * stage.product.ld })
  end
  rows_of.result_section(plan, stage, add)
  if stage.qk then qk_of.key_sections(plan, stage.qk, add) end
end

function of_rows.statements(count, plan, stage)
  count:columns(stage.product, stage.product.runs[1], plan.head_blocks)
end

-- ---- rows: all panels of a block of heads ----

-- Records build(first, some) for `count` tiles of a run from number `from` on, one at a time or a few.
local function each_part(K, run, from, count, few, build)
  if not few then return K:each("tile", count, function(i) build(from + i, 1) end) end
  if run.count <= few then return build(from, count) end
  K:each("part", expr.ceil_div(count, few), function(i)
    build(from + i * few, K.t:int("some", expr.min(few, count - i * few), { 1, few }))
  end)
end

-- The tiles of some runs by all panels. Panels are the inner loop, except with tile registers, and where tiles prefetch
-- the weights that follow a panel. p.number: that of the first tile, if it is not the first of all.
local function record_rows(K, stage, p, runs)
  local product, a, c, ends = stage.product, stage.a, stage.c, layouts.stored(stage.c)
  local joint = stage.nest == "tiles"
  local fetched = (not joint or K.plan.fetch == "ahead") and fetch.of(K.plan, product)
  local function tiles_of(run, from, count, panels, j, panel)
    local column, number = j * panels.width + panels.at, run.first + (p.number or 0)
    product_of.each_tile(K, product, panels, run.size, count, {
      label = stage.name, alone = #runs == 1, bias = p.bias and p.bias:at(column), w = p.w:at(panel), a = a,
      row = a.row, k_stride = a.k_stride or 1, all = a.scaled_rows, ends = ends,
      tile = function(i)
        local row = (i + from) * run.size + run.at
        -- A last odd row is stored alone.
        local word = expr.share(run.size % ends.down == 0 and row or run.at, ends.down)
        return { x = p.x:at(layouts.at(a, row)), scales = p.row_scales and p.row_scales:at(row),
                 next = fetched and fetch.of_tile(fetched, panels, p.w, panel, i + from + number),
                 c = p.out:at(word * c.row + expr.share(column, ends.across)), row = c.row }
      end })
  end
  -- And tiles do not prefetch for another product.
  local pass = not (a.tile_words or joint) and not fetch.stay(K.plan, product)
  local panels_first = pass or fetched and not fetched.crosses
  if pass then
    choices.add(K.t.why, "panels_pass")
  elseif not panels_first then
    choices.add(K.t.why, a.tile_words and "panels_outside" or "project_order")
  end
  local spans = {}
  for i, run in ipairs(runs) do spans[i] = { rows_of.span(K, run, p.bounds) } end
  if fetched and p.bounds.stop then
    local sets = { { runs = runs, count = 1, size = 0 } }
    fetched.shares = fetch.shares(K, fetched, p.bounds.stop, sets, product.panel_runs)
  end
  local few = not panels_first and a.tile_words and tiles.keeps_sums(product) and tiles.TOGETHER
  if a.tile_words and not few or panels_first then
    return product_of.each_panel(K, product, function(panels, j, panel)
      for i, run in ipairs(runs) do tiles_of(run, spans[i][1], spans[i][2], panels, j, panel) end
    end)
  end
  for i, run in ipairs(runs) do
    each_part(K, run, spans[i][1], spans[i][2], few, function(first, some)
      product_of.each_panel(K, product, function(panels, j, panel) tiles_of(run, first, some, panels, j, panel) end)
    end)
  end
end

-- The function that projects a block of heads. part: { row, size, count, number }, the first row of X, so many tiles of
-- a size, and the number of the first, if it is only a part of them.
local function rows_function(K, place, stage, part)
  local plan, memory, row = K.plan, K.plan.memory, part and part.row or 0
  local runs = part and { { size = part.size, count = part.count, at = 0, first = 0 } } or stage.product.runs[1]
  local past, bounds = stage.behind and place[stage.behind], rows_of.bounds_of(K, place, stage)
  local before = expr.share(row, layouts.stored(stage.c).down)
  local to = layouts.at(stage.c, rows_of.rows_before(stage, past) + before)
  local params = { { "x", "in", memory:tensor(place, stage.a):at(layouts.at(stage.a, row)) },
                   { "w", "in", memory:at(place, stage.wide or stage.weights.section) },
                   { "out", "out", memory:at(place, stage.name):at(to) },
                   { "bias", "in", stage.bias and memory:at(place, stage.bias.section) },
                   { "row_scales", "in", stage.a.scales and memory:at(place, stage.a.scales):at(row) },
                   { "past", "int", past } }
  local bounded = rows_of.bounded(K, bounds, params, function(p) record_rows(K, stage, p, runs) end)
  local turns = stage.qk and emit_qk.key_params(K, place, stage.qk) or {}
  table.move(turns, 1, #turns, #params + 1, params)
  params[#params + 1] = { "number", "int", part and part.number }
  local heads, rows, name = graph.in_block(plan, stage), part and part.size * part.count, stage.name
  local text = ("Projects %s of %d head%s%s."):format(name, heads, heads > 1 and "s" or "",
    rows and (" for %d rows"):format(rows) or "")
  if stage.nest == "tiles" then
    text, name = ("Projects %d rows: the columns of %s."):format(rows, name:upper():gsub(".", ", %0"):sub(3)), nil
  end
  K.role = name
  K:part("project_" .. stage.name .. (rows and "_" .. rows or ""), text, params, function(p)
    bounded(p)
    rows_of.finish(K, stage, p)
  end)
  K.role = nil
end

-- Whether tiles of rows are taken a few at a time, with the weights of K, V and Q in turn for each few. This pays if L2
-- does not hold the rows of X. It needs a fixed number of rows, and nothing to do after the last one.
local function in_parts(plan, stage)
  local product, c, run = stage.product, stage.c, stage.product.runs[1][1]
  local margin = c.operand == "values" and not c.staged and plan.kv_rows > plan.cfg.seq_kv
  return tiles.keeps_sums(product) and #product.runs[1] == 1 and run.count > tiles.TOGETHER
    and not (stage.qk or stage.behind or stage.fill or c.in_place or margin or score.reads_lengths(plan.scores))
    and product.scheme.b.bytes * product.steps * stage.rows > plan.cpu.cached
end

M.rows = graph.with(of_rows, {
  fills = packed.fills,
  axes = function(plan, stage)
    if not in_parts(plan, stage) then return rows_of.at_once() end
    local few, run, count = tiles.TOGETHER, stage.product.runs[1][1], tiles.count(stage.product)
    local items = { { first = 0, count = count // few, tiles = few } }
    if count % few > 0 then items[2] = { first = count // few, count = 1, tiles = count % few } end
    return { { var = "part", items = items, total = tiles.ceil_div(count, few),
               along = ("%s %dx%d"):format(stage.a.name, count, run.size) } }
  end,
  emit = function(K, place, stage, item, i)
    if not item.tiles then return rows_function(K, place, stage) end
    local size, number = stage.product.runs[1][1].size, (item.first + i) * tiles.TOGETHER
    choices.add(K.t.why, "parts")
    rows_function(K, place, stage, { row = number * size, size = size, count = item.tiles, number = number })
  end,
  describe = function(plan, stage)
    return { { stage.name, wording.product(stage.product) .. rows_of.together(plan, stage) } }
  end,
})

-- ---- tiles: a product of several projections ----

M.tiles = graph.with(of_rows, {
  -- Whether its weights stay in L2, or there is only one tile of rows.
  stays_near = function(plan, stage) return fetch.stay(plan, stage.product) or tiles.count(stage.product) == 1 end,
  -- Tiles of rows, several for a task. If a tile of keys may touch rows of V after the last one, clearing these is one
  -- more place.
  axes = function(plan, stage)
    local items, total = { table.unpack(stage.product.runs[1]) }, tiles.count(stage.product)
    local grain = tiles.ceil_div(total, plan.tasks_wanted)
    if plan.kv_rows > plan.cfg.seq_kv then
      items[#items + 1] = { margin = true, count = 1, first = total }
      total = total + 1
    end
    return { { var = "tile", items = items, total = total, grain = grain } }
  end,
  emit = function(K, place, stage, run, i)
    if run.margin then
      local params = { { "values", "out", K.plan.memory:at(place, "values") } }
      return K:part("clear_values", "Clears the rows of V after the last key.", params,
        function(p) rows_of.clear_values(K, p.values, {}) end)
    end
    choices.add(K.t.why, "project_order")
    rows_function(K, place, stage, { row = i * run.size + run.at, size = run.size, count = 1 })
  end,
})

-- ---- columns: one of these projections ----

-- The joint product that computes its columns.
local function whole_of(plan, stage)
  for _, other in ipairs(plan.stages) do
    if other.c and other.c.name == stage.c.within then return other end
  end
end

M.columns = {
  -- Its row stride is that of the joint product.
  plan = function(plan, stage) return 0, { c = tensors.with(stage.c, { row = whole_of(plan, stage).product.ld }) } end,
  sections = function(_, stage, add)
    add("projected", { name = stage.name, within = stage.c.within, column = stage.c.column })
  end,
  fills = function(pack, stage) packed.columns(pack, stage, whole_of(pack.plan, stage)) end,
  -- The last one describes the tiles of the joint product.
  describe = function(plan, stage)
    local whole, first = whole_of(plan, stage), stage.c.column
    local last = first + stage.c.columns == whole.product.columns
    return { { stage.name, ("columns %d..%d of one product"):format(first, first + stage.c.columns - 1)
               .. rows_of.together(plan, stage) }, last and { "", "its " .. wording.product(whole.product) } or nil }
  end,
}

-- ---- lanes: applied to a group of queries ----

-- The sizes for a block of heads. Those of the first group serve all, because it has the most vectors.
local function in_lanes(plan, stage) return plan.groups[1].products[stage.name] end

-- How many matrices are packed for a block of heads: one for each, or one for all.
local function matrices(plan, stage) return stage.per == "head" and graph.in_block(plan, stage.weights) or 1 end

M.lanes = {
  sections = function(plan, stage, add)
    local product = in_lanes(plan, stage)
    local size = matrices(plan, stage) * product.rows
    packed.sections(stage, { floats = size * product.steps, scheme = stage.scheme, ld = size }, "head", "weights", add)
  end,
  statements = function(count, plan, stage)
    local product, heads = in_lanes(plan, stage), stage.per == "head" and plan.hb or 1
    for _, group in ipairs(plan.groups) do
      for _, run in ipairs(product.runs) do
        count:tiles(group.count * plan.head_blocks * heads * run.count, run.size, #group.vecs, product.steps)
      end
    end
  end,
  fills = function(pack, stage) packed.lanes(pack, stage, in_lanes(pack.plan, stage), matrices(pack.plan, stage)) end,
}

-- Applies the product for one head of a block, or for all of them. at: group; packed, where the weights of the block
-- begin; head, the number of the matrix; b and c, the matrices of the group.
function M.apply(K, stage, at)
  local plan, product = K.plan, in_lanes(K.plan, stage)
  local function from(matrix, size) return plan.memory:from(at.packed, matrix.section):at(at.head * size) end
  K:of(stage.name, product_of.rows, product, at.group, {
    label = stage.name, weights = from(stage.weights, product.rows * product.steps), b = at.b,
    bias = stage.bias and from(stage.bias, product.rows) or nil, c = at.c })
end

return M
