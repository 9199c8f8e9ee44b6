-- How much code a plan will become, before any of it is made: the statements of every register
-- tile that the unrolling level turns into straight-line text.

local M = {}

-- FMAs, loads and the tile's start and end, for one tile.
local function tile(rows, vectors, steps, epilogue)
  return steps * (rows * vectors + rows + vectors + 1) + rows * vectors * epilogue
end

local SCORE = 14 -- statements of exp2 and the sums, per vector of scores
local STORE = 4
local BYTES = 9 -- of machine code for a statement

-- Statements of one execution of everything, or of one copy of every tile.
function M.statements(plan)
  local cfg, level = plan.cfg, plan.cfg.unroll
  local straight = level == "full"
  local function k_steps(steps)
    if straight or level == "k" then return steps end
    return math.min(steps, plan.k_unroll * 2)
  end
  local function times(count) return straight and count or 1 end

  local sum = 0
  local function columns(product, steps, repeats)
    for _, block in ipairs(product.blocks) do
      for _, run in ipairs(product.row_runs) do
        sum = sum + times(repeats * block.count * run.count) * tile(run.size, #block.vecs, k_steps(steps), STORE)
      end
    end
  end
  columns(plan.k, cfg.d_model, plan.head_blocks)
  columns(plan.v, cfg.d_model, plan.head_blocks)
  for _, group in ipairs(plan.groups) do
    local n, groups = #group.vecs, group.count
    for _, run in ipairs(group.q) do
      sum = sum + times(groups * plan.head_blocks * run.count)
        * tile(run.size, n, k_steps(cfg.d_model), STORE)
    end
    local heads = groups * cfg.h
    sum = sum + times(heads * group.keys.tiles) * tile(group.keys.rows, n, k_steps(cfg.dk), SCORE)
    for _, run in ipairs(group.context) do
      sum = sum + times(heads * run.count) * tile(run.size, n, k_steps(cfg.seq_kv), STORE)
    end
    columns(group.out, cfg.h * cfg.dv, groups)
  end
  return sum
end

function M.check(plan)
  local cfg = plan.cfg
  local statements = M.statements(plan)
  if statements > cfg.code_limit then
    error({
      key = "unroll", value = cfg.unroll,
      rule = ("would be about %d statements, %d bytes of code; code_limit = %d allows %d statements"):format(
        statements, statements * BYTES, cfg.code_limit, cfg.code_limit),
    }, 0)
  end
end

return M
