-- One of the projections that are made as one product (joint.lua): where its columns are, and how they are packed.

local graph = require "graph.init"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"
local wording = require "base.wording"

local M = {}

-- The product that makes it: of all.
local function joint_of(plan, stage) return graph.maker(plan.stages, stage.c.within) end

-- Its rows are those of all.
function M.plan(plan, stage)
  return 0, { c = tensors.with(stage.c, { row = joint_of(plan, stage).product.ld }) }
end

function M.sections(_, stage, add)
  add("projected", { name = stage.name, within = stage.c.within.name, column = stage.c.column })
end

-- build(lane, column, n): for each panel, or for what is as long as all columns, its part of n columns from lane `lane`
-- on; the first is `column` of its own. at, used: of the panel.
local function overlap(c, at, used, build)
  local from = math.max(at, c.column)
  local n = math.min(at + used, c.column + c.columns) - from
  if n > 0 then build(from - at, from - c.column, n) end
end

-- Row by row, for other parts may lie beside it; zeros are there.
function M.fills(pack, stage)
  local joint, c = joint_of(pack.plan, stage), stage.c
  local product = joint.product
  local function add(matrix, to, steps, row, column, n)
    pack:add_heads(matrix, { to = to, steps = 1, used = n, width = n, scale = stage.scale,
                             terms = { pack.term(matrix, column) }, rounds = { { count = steps, to = row, row = 1 } } })
  end
  for _, panels in ipairs(product.panel_runs) do
    for j = 0, panels.count - 1 do
      overlap(c, panels.at + j * panels.width, panels.used, function(lane, column, n)
        local to = pack:at(joint.weights.section) + tiles.panel_at(product, panels, j) + lane
        add(stage.weights, to, stage.steps, panels.width, column, n)
      end)
    end
  end
  if stage.bias then add(stage.bias, pack:at(joint.bias.section) + c.column, 1, 0, 0, c.columns) end
end

-- The last one tells of the tiles of all.
function M.describe(plan, stage)
  local joint, first = joint_of(plan, stage), stage.c.column
  local product, lines = joint.product, {}
  lines[1] = { stage.name, ("columns %d..%d of one product; %d of %d heads together"):format(first,
    first + stage.c.columns - 1, graph.in_block(plan, stage), stage.heads) }
  if joint.parts[#joint.parts].name == stage.name then
    lines[2] = { "", ("its tiles %s, %s"):format(wording.column_tiles(product), wording.chain(product.chunks)) }
  end
  return lines
end

return M
