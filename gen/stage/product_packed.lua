-- How the weights of products are packed (stage/product.lua), a function for each nest of their loops.

local graph = require "graph.init"
local qk_of = require "graph.qk"
local tiles = require "schedule.tiles"

local M = {}

-- The panels as they are packed: those that a run multiplies, or those from which a run makes them.
function M.panels(stage, product)
  return stage.stored == stage.multiplied and product or tiles.packed(product, stage.stored, stage.steps)
end

-- The sections of weights and bias. of: the numbers of both, `floats` and `ld`, and the scheme of the weights.
function M.sections(stage, of, space, doc, add)
  add(space, { name = stage.weights.section, doc = doc, count = of.floats, type = of.scheme.packed })
  if stage.bias then add(space, { name = stage.bias.section, doc = "bias", count = of.ld }) end
end

-- A fill of a block of columns of weights, from column block.at on: `used` columns in panels of `width`.
local function weights_fill(pack, stage, block, fields)
  return pack.of_weights(stage.scheme, graph.with({
    used = block.used, width = block.width, scale = stage.scale, gain = stage.branch_gain,
    terms = { pack.term(stage.weights, block.at) } }, fields))
end

-- The fill of a bias.
local function bias_fill(pack, stage, used, width, rounds)
  return { to = pack:at(stage.bias.section), steps = 1, used = used, width = width, scale = stage.scale,
           gain = stage.branch_gain, terms = stage.bias.terms or { pack.term(stage.bias, 0) },
           rounds = rounds or {} }
end

-- Panels of weights and the bias, of a block of heads or of all heads. There the rows of one head may follow those of
-- another.
function M.fills(pack, stage)
  local weights, own, of_all = stage.weights, stage.packed, stage.nest == "groups"
  local steps = weights.steps or stage.steps
  local function add(matrix, fill)
    if of_all then pack:add(matrix.text, fill) else pack:add_heads(matrix, fill) end
  end
  pack:panels(own, pack:at(weights.section), function(panels, to, round)
    local heads = of_all and (
      weights.along and { count = weights.heads, to = tiles.words(own.scheme, steps) * panels.width, row = steps }
      or weights.b and { count = pack.plan.cfg.h, to = steps * panels.width, first = weights.inner })
    add(weights, weights_fill(pack, stage, panels, {
      to = to, steps = steps, quant = own.scheme.quant, rounds = { heads or round, heads and round } }))
  end)
  if stage.qk then qk_of.key_fills(pack, stage.qk) end
  if stage.bias then add(stage.bias, bias_fill(pack, stage, stage.product.columns, own.ld)) end
end

-- Some columns of the joint product `whole`. They are filled row by row, because columns of other projections may lie
-- beside them. The padding holds zeros already.
function M.columns(pack, stage, whole)
  local product, c = whole.product, stage.c
  -- Fills those of the columns that are among `used` columns from `at` on, in `steps` rows that are `row` apart.
  local function add(matrix, to, steps, row, at, used)
    local from = math.max(at, c.column)
    local n = math.min(at + used, c.column + c.columns) - from
    if n <= 0 then return end
    pack:add_heads(matrix, { to = to + from - at, steps = 1, used = n, width = n, scale = stage.scale,
                             terms = { pack.term(matrix, from - c.column) },
                             rounds = { { count = steps, to = row, row = 1 } } })
  end
  for _, panels in ipairs(product.panel_runs) do
    for j = 0, panels.count - 1 do
      add(stage.weights, pack:at(whole.weights.section) + tiles.panel_at(product, panels, j), stage.steps, panels.width,
        panels.at + j * panels.width, panels.used)
    end
  end
  if stage.bias then add(stage.bias, pack:at(whole.bias.section), 1, 0, 0, product.columns) end
end

-- Weights as operand A, in tiles as high as those of the product; count: matrices of a block of heads.
function M.lanes(pack, stage, product, count)
  local weights, bias = stage.weights, stage.bias
  local function rounds(matrix, size, round)
    return { stage.per == "head" and { count = count, to = size, [matrix.along] = matrix.width } or nil, round }
  end
  pack:rows(product, pack:at(weights.section), function(run, to, round)
    pack:add_heads(weights, weights_fill(pack, stage, { used = run.size, width = run.size, at = run.at }, {
      to = to, steps = stage.steps, rounds = rounds(weights, product.rows * product.steps, round) }))
  end)
  if not bias then return end
  pack:add_heads(bias, bias_fill(pack, stage, product.rows, product.rows, rounds(bias, product.rows)))
end

return M
