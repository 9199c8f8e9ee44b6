-- Projections that read the same rows as one product. Its matrix is [Wq Wk Wv] of a block of heads, or [Wk Wv] where
-- the lanes of the query projection are queries. Few columns then share vectors, in which each alone would leave lanes
-- idle. Q, K and V stay tensors (part.lua): columns of the product's rows. A tile of rows is a task.

local choices = require "base.choices"
local fetch = require "schedule.fetch"
local graph = require "graph.init"
local product_of = require "emit.product"
local project = require "stage.project"
local score = require "score.init"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"

local M = { phase = project.phase, title = project.title, per = project.per, statements = project.statements }

-- ---- the rewrite ----

local function small(type) return type.round or type.quantized end

-- What stands against it, of a plan and those of its projections that read the same rows.
local against = {
  { function(plan) return small(plan.scheme.a) or small(plan.attend_scheme.a) or plan.weights.quant end,
    "has no effect with operands of a smaller type, which lie as products of their own read them" },
  { function(plan) return score.reads_lengths(plan.scores) end,
    "has no effect with lengths that a run says: products of their own leave out rows of K and V" },
  { function(_, parts) return #parts < 2 end, "has no effect with fewer than two projections of the same rows" },
}

-- Those projections, in the order of the columns.
local function parts_of(list)
  local parts, attend = {}, graph.attend(list)
  for _, operand in ipairs { attend.queries, attend.keys, attend.values } do
    local stage, first = graph.projection(list, operand), parts[1]
    local alone = not stage or stage.qk or stage.merged or stage.c.at ~= "workspace" or stage.c.staged
      or first and first.a.name ~= stage.a.name
    if not alone then parts[#parts + 1] = stage end
  end
  return parts
end

-- Why it cannot be, or nil. list: with the queries' product where its lanes put it.
function M.against(plan, list) return choices.against(against, plan, parts_of(list)) end

-- The list with it.
function M.rewrite(plan, list)
  local parts, letters, columns, macs, biased = parts_of(list), "", 0, 0.0, false
  for _, stage in ipairs(parts) do
    letters, columns = letters .. stage.weights.section:sub(2), columns + graph.in_block(plan, stage) * stage.cols
    macs, biased = macs + stage:macs(), biased or stage.bias
  end
  local one = graph.with(parts[1], {
    name = letters, kind = "joint", parts = parts, columns = columns, c = tensors.workspace(letters),
    weights = { section = "w" .. letters }, bias = biased and { section = "b" .. letters },
    macs = function() return macs end })
  local edits, first, column = {}, nil, 0
  for _, stage in ipairs(parts) do
    edits[stage] = { graph.with(stage, { kind = "part" }) }
  end
  for _, stage in ipairs(list) do first = first or edits[stage] end
  table.insert(first, 1, one)
  list = graph.edited(list, edits)
  for _, stage in ipairs(parts) do
    local width = graph.in_block(plan, stage) * stage.cols
    list = graph.replaced(list, stage.c, tensors.columns(stage.c, one.c, column, width))
    column = column + width
  end
  return list
end

-- ---- the plan ----

function M.plan(plan, stage)
  local product, cost = tiles.columns(plan.weights, project.keys, { { rows = stage.rows, count = 1 } }, stage.columns,
    { steps = stage.steps, order = "rows" })
  return cost, { product = product }
end

-- Whether its weights stay in the second-level cache, or meet no second tile of rows.
function M.stays_near(plan, stage)
  return fetch.stay(plan, stage.product) or tiles.count(stage.product) == 1
end

function M.sections(plan, stage, add)
  local product = stage.product
  add("head", { name = stage.weights.section, doc = "weights", count = product.floats })
  if stage.bias then add("head", { name = stage.bias.section, doc = "bias", count = product.ld }) end
  add("projected", { name = stage.name, doc = "rows of Q, K and V", cols = product.ld,
                     count = plan.kv_rows * product.ld })
end

-- Tiles of rows, of which a task has several; and the rows of V that a tile of keys may touch behind the last one, if
-- there are any.
function M.axes(plan, stage)
  local items, total = {}, 0
  for _, run in ipairs(stage.product.runs[1]) do
    items[#items + 1] = { size = run.size, at = run.at, count = run.count, first = total }
    total = total + run.count
  end
  local grain = tiles.ceil_div(total, plan.tasks_wanted)
  if plan.kv_rows > plan.cfg.seq_kv then
    items[#items + 1] = { margin = true, count = 1, first = total }
    total = total + 1
  end
  return { { var = "tile", items = items, total = total, grain = grain } }
end

-- ---- the work ----

-- A tile of rows with all panels.
local function record(K, stage, size, p)
  local product, a = stage.product, stage.a
  local own = K.plan.fetch == "ahead" and fetch.of(K.plan, product)
  product_of.each_panel(K, product, function(panels, j, panel)
    local column = j * panels.width + panels.at
    local next = own and fetch.of_tile(own, panels, p.w, panel, 0)
    K:chunks(product.chunks, function(mode, k0, steps)
      product_of.column_tile(K, size, panels, {
        label = stage.name, mode = mode, steps = steps, a = { p = p.x:at(k0), row = a.row, k_stride = 1 },
        b = product_of.operand(product, panels, p.w:at(panel), k0, next), bias = p.bias and p.bias:at(column),
        c = { p = p.out:at(column), row = product.ld } })
    end)
  end)
end

function M.emit(K, place, stage, run, i)
  local memory = K.plan.memory
  if run.margin then
    return K:part("clear_values", "Zeros in the rows of V behind the last key.",
      { { "values", "out", memory:at(place, "values") } }, function(p) project.clear_values(K, p.values, {}) end)
  end
  choices.add(K.t.why, "project_order")
  local row = i * run.size + run.at
  local params = { { "x", "in", memory:tensor(place, stage.a):at(row * stage.a.row) },
                   { "w", "in", memory:at(place, stage.weights.section) },
                   { "out", "out", memory:at(place, stage.name):at(row * stage.product.ld) } }
  if stage.bias then params[4] = { "bias", "in", memory:at(place, stage.bias.section) } end
  K:part(("project_%s_%d"):format(stage.name, run.size), ("Projects %d rows: the columns of %s."):format(run.size,
    stage.name:upper():gsub(".", ", %0"):sub(3)), params, function(p) record(K, stage, run.size, p) end)
end

function M.fills() end -- those of its parts

return M
