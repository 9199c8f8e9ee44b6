-- A product of weights with a group of queries in lanes: C[cols][width] = A B + bias. It is made for all heads of a
-- block at once or (per = "head") for each. Weights are packed in tiles as high as those of C. It is recorded as part
-- of attention; schedule/groups.lua has the tiles.

local graph = require "graph.init"
local product_of = require "emit.product"

local M = {}

-- The sizes for a block of heads, those of the first group: it has the most vectors, so what fits there fits all.
local function of(plan, stage) return plan.groups[1].products[stage.name] end

-- How often a block of heads does it, and how many matrices are packed for that: heads may share one.
local function heads(plan, stage) return stage.per == "head" and plan.hb or 1 end
local function matrices(plan, stage) return stage.per == "head" and graph.in_block(plan, stage.weights) or 1 end

function M.sections(plan, stage, add)
  local product = of(plan, stage)
  local size = matrices(plan, stage) * product.rows
  add("head", { name = stage.weights.section, doc = "weights", count = size * product.steps,
                type = plan.scheme.packed })
  if stage.bias then
    add("head", { name = stage.bias.section, doc = "bias", count = size })
  end
end

-- One head of a block, or all of them. at: group; packed, where the weights of the block begin; head = number of its
-- matrix; the matrices b and c of the group.
function M.record(K, stage, at)
  local plan, product = K.plan, of(K.plan, stage)
  local function packed(matrix, size)
    return plan.memory:from(at.packed, matrix.section):at(at.head * size)
  end
  K:of(stage.name, product_of.rows, product, at.group, {
    label = stage.name, weights = packed(stage.weights, product.rows * product.steps), b = at.b,
    bias = stage.bias and packed(stage.bias, product.rows) or nil, c = at.c })
end

function M.statements(count, plan, stage)
  local product = of(plan, stage)
  for _, group in ipairs(plan.groups) do
    for _, run in ipairs(product.runs) do
      count:tiles(group.count * plan.head_blocks * heads(plan, stage) * run.count, run.size, #group.vecs, product.steps)
    end
  end
end

function M.fills(pack, stage)
  local plan, product = pack.plan, of(pack.plan, stage)
  local each = stage.per == "head"
  local function rounds(matrix, size, round)
    return { each and { count = matrices(plan, stage), to = size, [matrix.along] = matrix.width } or nil, round }
  end
  local weights, bias = stage.weights, stage.bias
  pack:rows(product, pack:at(weights.section), function(run, to, round)
    pack:add_heads(weights, pack:of_weights { to = to, steps = stage.steps, used = run.size, width = run.size,
      scale = stage.scale, terms = { pack.term(weights, run.at) },
      rounds = rounds(weights, product.rows * product.steps, round) })
  end)
  if not bias then return end
  pack:add_heads(bias, { to = pack:at(bias.section), steps = 1, used = product.rows, width = product.rows,
    scale = stage.scale, terms = { pack.term(bias, 0) }, rounds = rounds(bias, product.rows) })
end

return M
