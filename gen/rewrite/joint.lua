-- Joins projections that read the same rows into one product. Its matrix is [Wq Wk Wv] of a block of heads, or [Wk Wv]
-- if the query projection has its lanes over queries. Columns then share vectors, in which separate projections would
-- leave lanes idle. Q, K and V stay tensors, which are columns of the product's rows.

local choices = require "base.choices"
local graph = require "graph.init"
local layouts = require "graph.layout"
local score = require "score.init"
local tensors = require "graph.tensor"

local M = {}

local function small(type) return type.round or type.quantized end

-- Reasons against it, for a plan and the projections that read the same rows.
local against = {
  { function(plan, parts)
      return parts[1] and small(parts[1].scheme.a) or small(plan.attend.scheme.a) or plan.weights.quant
    end,
    "has no effect with operands of a smaller type, which lie as products of their own read them" },
  { function(plan) return score.reads_lengths(plan.scores) end,
    "has no effect with lengths that a run says: products of their own leave out rows of K and V" },
  { function(_, parts) return #parts < 2 end, "has no effect with fewer than two projections of the same rows" },
}

-- These projections, in the order of the columns.
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

-- The reason against it, or nil. In `list`, the query projection is where its lanes put it.
function M.against(plan, list) return choices.against(against, plan, parts_of(list)) end

-- The list with the joint product.
function M.rewrite(plan, list)
  local parts, letters, columns, macs, biased = parts_of(list), "", 0, 0.0, false
  for _, stage in ipairs(parts) do
    letters, columns = letters .. stage.weights.section:sub(2), columns + graph.in_block(plan, stage) * stage.cols
    macs, biased = macs + stage:macs(), biased or stage.bias
  end
  local one = graph.with(parts[1], {
    name = letters, nest = "tiles", c = tensors.workspace(letters),
    heads = plan.head_blocks, cols = columns, -- as one wide head of each block
    weights = { section = "w" .. letters }, bias = biased and { section = "b" .. letters },
    macs = function() return macs end })
  local edits, first, column = {}, nil, 0
  for _, stage in ipairs(parts) do
    edits[stage] = { graph.with(stage, { nest = "columns" }) }
  end
  for _, stage in ipairs(list) do first = first or edits[stage] end
  table.insert(first, 1, one)
  list = graph.edited(list, edits)
  for _, stage in ipairs(parts) do
    local width = graph.in_block(plan, stage) * stage.cols
    list = graph.replaced(list, stage.c, layouts.columns(stage.c, one.c, column, width))
    column = column + width
  end
  return list
end

return M
