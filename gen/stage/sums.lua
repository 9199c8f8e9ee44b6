-- The sums of quadrants of X that are multiplied (quadrants.lua), with some rows each: S1 S2 above S3 S4.

local cut = require "schedule.cut"
local graph = require "graph.init"

local M = { phase = "sums" }

local function record(K, input, x, s)
  local t, d = K.t, input.cols
  local width, below = d // 2, input.rows // 2 * d
  K:part(("sums_%d_of_%dx%d"):format(input.size, input.rows, d),
    ("Sums of X's quadrants, %d rows of each: S1 S2 above S3 S4."):format(input.size),
    { { "x", "in", x }, { "s", "out", s } }, function(p)
    local function vector(v, name, at)
      local function load(quadrant, off) return t:read("load", v.w, quadrant .. name, p.x:at(off + at), v.used) end
      local function store(value, off) t:write(v.w, p.s:at(off + at), value, v.used) end
      local a11, a12 = load("a11", 0), load("a12", width)
      local a21, a22 = load("a21", below), load("a22", below + width)
      local s1 = t:op("add", v.w, "s1" .. name, a21, a22)
      local s2 = t:op("sub", v.w, "s2" .. name, s1, a11)
      store(s1, 0)
      store(s2, width)
      store(t:op("sub", v.w, "s3" .. name, a11, a21), below)
      store(t:op("sub", v.w, "s4" .. name, a12, s2), below + width)
    end
    K:each("row", input.size, function(r)
      K:covered(width, function(v, at, suffix) vector(v, suffix, r * d + at) end)
    end)
  end)
end

function M.emit(K, place, _, input, i)
  local first = (i * input.size + input.at) * input.cols
  local memory = K.plan.memory
  record(K, input, memory:tensor(place, input.tensor):at(first), memory:at(place, "sums_" .. input.name):at(first))
end

-- The inputs, each once, its rows in blocks for as many tasks: { name, rows, cols, size and count of the blocks,
-- at = first row, first = number of the first task }.
function M.plan(_, stage)
  local tasks, seen = 0, {}
  stage.inputs = {}
  for _, product in ipairs(graph.by_matrix(stage.of)) do
    local input = product.a
    if not seen[input.name] then
      seen[input.name] = true
      for _, run in ipairs(cut.balanced(product.rows // 2, 64)) do
        stage.inputs[#stage.inputs + 1] = { name = input.name, tensor = input, rows = product.rows,
                                            cols = input.row, size = run.size, count = run.count, at = run.at,
                                            first = tasks }
        tasks = tasks + run.count
      end
    end
  end
  stage.tasks = tasks
  return 0
end

function M.sections(_, stage, add)
  for _, input in ipairs(stage.inputs) do
    if input.at == 0 then
      add("entry", { name = "sums_" .. input.name, doc = "sums of quadrants", cols = input.cols,
                     count = input.rows * input.cols })
    end
  end
end

function M.axes(_, stage) return { { var = "part", items = stage.inputs, total = stage.tasks } } end

function M.cycles(plan) return 2.0 * plan.cfg.seq * plan.cfg.d_model / plan.per_cycle end

return M
