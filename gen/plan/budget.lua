-- How much code a plan will become. An estimate comes first, so that a hopeless unrolling level is refused at once: it
-- counts the statements of register tiles, as often as the level writes them. The exact count of all functions comes
-- later.

local graph = require "graph.init"
local kinds = require "stage.init"
local tiles = require "schedule.tiles"

local M = {}
local Count = {}
Count.__index = Count

local STORE = 4
local BYTES = 6 -- of machine code for a statement, measured

-- How often something is written: `count` times in straight-line code, once in a loop.
function Count:times(count) return self.straight and count or 1 end

-- Adds `copies` tiles: their FMAs and loads, and `epilogue` statements for each vector of accumulators.
function Count:copies(copies, rows, vectors, steps, epilogue)
  local level = self.plan.cfg.unroll
  if not self.straight and level ~= "k" then steps = math.min(steps, 2 * tiles.LOOP_STEPS) end
  self.sum = self.sum + copies * (steps * (rows * vectors + rows + vectors + 1) + rows * vectors * epilogue)
end

-- Adds the code of `count` equal tiles.
function Count:tiles(count, rows, vectors, steps) self:copies(self:times(count), rows, vectors, steps, STORE) end

-- Adds the code of a product with vectors over columns that is computed `repeats` times.
function Count:columns(product, runs, repeats)
  for _, panels in ipairs(product.panel_runs) do
    for _, run in ipairs(runs) do
      self:tiles(repeats * panels.count * run.count, run.size, #panels.vecs, product.steps)
    end
  end
end

-- The statements of one execution of everything in straight-line code; otherwise of one copy of each tile.
function M.statements(plan)
  local count = setmetatable({ plan = plan, straight = plan.cfg.unroll == "full", sum = 0 }, Count)
  for _, stage in ipairs(plan.stages) do
    local add = kinds.of(stage).statements
    if add then add(count, plan, stage) end
  end
  return count.sum
end

-- The most stack that a kernel needs, in KB.
function M.stack(plan)
  local bytes, kept = 0, 0
  for _, stage in ipairs(plan.stages) do
    bytes = bytes + kinds.ask("stack", 0, plan, stage)
    if stage.product and tiles.keeps_sums(stage.product) then kept = 16 end -- the sums of four tiles
  end
  -- Rows that change scores keep vectors for each score of a tile: clang 14 takes 4 KB for a tile with softcap, of five
  -- kinds.
  local changed = #plan.scores.changes > 0 and 16 or 0
  -- clang 22 takes 17.6 KB with a mask of one row of keys, a sink and both ends of the interval of keys.
  local hidden = #plan.scores.hides > 0 and 8 or 0
  -- Compilers round operands before the products that take them: clang 22 takes 18 KB for 19x6 tiles.
  local rounded = 0
  for _, scheme in ipairs(graph.schemes(plan.stages)) do rounded = scheme.a.round and 16 or rounded end
  return 16 + changed + hidden + kept + rounded + (plan.cfg.unroll == "full" and -(-bytes // 1024) or 0)
end

local function refuse(cfg, about, statements)
  error({
    key = "unroll", value = cfg.unroll,
    rule = ("%s %d statements, about %d bytes of code; code_limit = %d is the most, raise it to allow this"):format(
      about, statements, statements * BYTES, cfg.code_limit),
  }, 0)
end

-- Raises an error for a plan that is certain to exceed the limit; the estimate may be off by a factor of three. `auto`
-- is not refused here, because its code can still become shorter.
function M.check_estimate(plan)
  local statements = M.statements(plan)
  if plan.cfg.unroll ~= "auto" and statements > 3 * plan.cfg.code_limit then
    refuse(plan.cfg, "would be about", statements)
  end
end

local COUNTED = { op = 1, call = 1, apply = 1, result = 1, int = 1, int_at = 1, place = 1, bump = 1 }

-- The statements of some functions as a compiler sees them: an unrolled loop counts once for each round.
function M.count(functions)
  local function count(body)
    local sum = 0
    for _, node in ipairs(body or {}) do
      local inside = count(node.body) + count(node.otherwise)
      sum = sum + (COUNTED[node.kind] or 0) + inside * (node.unrolled and node.count or 1)
    end
    return sum
  end
  local sum = 0
  for _, fn in ipairs(functions) do sum = sum + count(fn.body) end
  return sum
end

-- Raises an error if so many statements exceed the limit.
function M.check(plan, statements)
  if statements > plan.cfg.code_limit then refuse(plan.cfg, "would be", statements) end
end

return M
