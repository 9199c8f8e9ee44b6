-- How much code a plan will become. An estimate before any of it is made, so that a hopeless level
-- is refused at once: the statements of the register tiles, each as often as the unrolling level
-- writes it. And the exact count of the functions' text afterwards.

local M = {}

-- FMAs, loads and the tile's start and end, for one tile.
local function tile(rows, vectors, steps, epilogue)
  return steps * (rows * vectors + rows + vectors + 1) + rows * vectors * epilogue
end

local SCORE = 5 -- statements of exp2 and the sums, per vector of scores
local STORE = 4
local BYTES = 6 -- of machine code for a statement, measured

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
  local function columns(product, runs, steps, repeats)
    for _, block in ipairs(product.blocks) do
      for _, run in ipairs(runs) do
        sum = sum + times(repeats * block.count * run.count) * tile(run.size, #block.vecs, k_steps(steps), STORE)
      end
    end
  end
  for _, product in pairs(plan.projected) do
    local repeats = plan.head_blocks * (product.quadrants or 1)
    for _, runs in ipairs(product.runs) do columns(product, runs, product.steps, repeats) end
  end
  for i, group in ipairs(plan.groups) do
    local n, groups = #group.vecs, group.count
    local heads = groups * cfg.h
    local function rows(product, repeats)
      for _, run in ipairs(product and product.runs or {}) do
        sum = sum + times(repeats * run.count) * tile(run.size, n, k_steps(product.steps), STORE)
      end
    end
    rows(plan.q, groups * plan.head_blocks)
    rows(plan.kq, heads)
    rows(plan.vc, heads)
    -- Of score tiles there are a first, a next and a maximum one, behind a mask more.
    local kinds = straight and 1 or plan.scores.masked and 6 or 3
    sum = sum + (times(heads * group.keys.tiles) + kinds - 1)
      * tile(group.keys.rows, n, k_steps(plan.fold.depth), SCORE)
    for _, run in ipairs(group.context) do
      sum = sum + times(heads * run.count) * tile(run.size, n, k_steps(cfg.seq_kv), STORE)
    end
    columns(plan.out, plan.out.runs[i], plan.out.steps, groups)
  end
  return sum
end

local function refuse(cfg, about, statements)
  error({
    key = "unroll", value = cfg.unroll,
    rule = ("%s %d statements, about %d bytes of code; code_limit = %d is the most, raise it to allow this"):format(
      about, statements, statements * BYTES, cfg.code_limit),
  }, 0)
end

-- Raises an error for a plan that is sure to be above the limit; the estimate is good to a factor
-- of three. `auto` is not refused by it: it can still be made shorter.
function M.check_estimate(plan)
  local statements = M.statements(plan)
  if plan.cfg.unroll ~= "auto" and statements > 3 * plan.cfg.code_limit then
    refuse(plan.cfg, "would be about", statements)
  end
end

-- The statements of a text.
function M.count(text)
  local _, statements = text:gsub(";\n", "")
  return statements
end

-- Raises an error for a text above the limit.
function M.check(plan, statements)
  if statements > plan.cfg.code_limit then refuse(plan.cfg, "would be", statements) end
end

return M
