-- Appends rows of keys or values to a cache of a smaller type, from float32 results or from an input. An int8 cache has
-- a scale for each row of a head: the largest magnitude over 127. A row with NaN or Inf has the scale NaN.

local graph = require "graph.init"
local layouts = require "graph.layout"
local rows_of = require "stage.rows"
local transpose = require "emit.transpose"

local M = { phase = "cache_append", title = "rows into the cache", per = rows_of.per, axes = rows_of.at_once }

local LEAST = 2.0 ^ -100 -- the magnitude below which all of a row rounds to zero

-- Adds the stages that append rows to the cache, after all that make these rows.
function M.rewrite(_, list)
  local attend = graph.attend(list)
  local all = {}
  for i, stage in ipairs(attend.appends or {}) do all[i] = graph.with(stage, {}) end
  all[#all + 1] = attend
  return graph.edited(list, { [attend] = all })
end

function M.sections(plan, stage, add)
  local c, blocks, rows = stage.c, plan.head_blocks, plan.cfg.seq_kv
  add("cache", { name = c.name, doc = stage.of, cols = c.row, height = rows, each = rows * c.row,
                 count = blocks * rows * c.row, exact = c.exact })
  if not c.scales then return end
  local heads = graph.in_block(plan, stage)
  add("scales", { name = c.scales, doc = "scales of " .. stage.of, cols = rows, height = heads, each = heads * rows,
                  count = stage.heads * rows, exact = c.exact })
end

-- Quantizes n numbers from x on to `out`, and stores their scale.
local function quantize(K, x, out, scale, n)
  local t, w = K.t, K.plan.isa.full
  local function constant(name, value) return t:op("set", w, name, value) end
  local most, test = t:start("zero", w, "most"), t:start("zero", w, "test")
  local zero = t:op("zero", w, "zero")
  K:vectors("i", n, function(at, used)
    t:scope(function()
      local value = t:read("load", w, "value", x:at(at), used)
      t:update(most, "max", t:op("max", w, "size", value, t:op("sub", w, "minus", zero, value)), most)
      t:update(test, "fma", value, zero, test) -- becomes NaN with any NaN or Inf
    end)
  end)
  local largest = transpose.of_lanes(t, "max", most, "largest")
  local bounded = t:op("max", w, "bounded", largest, constant("least", LEAST))
  local inverse = t:op("div", w, "inverse", constant("top", 127.0), bounded)
  local part = t:op("div", w, "part", bounded, constant("steps", 127.0))
  local own = t:op("sel", w, "own", t:op("lt", w, "some", zero, largest), part, zero)
  t:write(w, scale, t:op("add", w, "scale", own, transpose.of_lanes(t, "add", test, "tests")), 1)
  K:vectors("i", n, function(at, used)
    t:scope(function()
      local value = t:read("load", w, "value", x:at(at), used)
      t:write(w, out:at(at), t:op("mul", w, "scaled", value, inverse), used)
    end)
  end)
end

function M.emit(K, place, stage)
  local t, plan, memory = K.t, K.plan, K.plan.memory
  local a, c, past, rows = stage.a, stage.c, stage.behind and place[stage.behind] or 0, K.plan.cfg.seq_kv
  local params = { { "x", "in", memory:tensor(place, a) }, { "out", "out", memory:at(place, c.name):at(past * c.row) },
                   { "scales", "out", c.scales and memory:at(place, c.scales):at(past) } }
  local all, bounds = graph.in_block(plan, stage), rows_of.bounds_of(K, place, stage)
  local text = ("Appends the %s of %d head%s to the cache."):format(stage.of, all, all > 1 and "s" or "")
  K:part("append_" .. stage.of, text, params, rows_of.bounded(K, bounds, params, function(p)
    local heads, columns = all, stage.cols
    if layouts.side_by_side(a, columns) and not c.scales then heads, columns = 1, heads * columns end
    K:each("head", heads, function(head)
      K:each("row", p.bounds.stop or stage.rows, function(row)
        local x, out = p.x:at(layouts.at(a, row, head)), p.out:at(head * columns + row * c.row)
        if c.scales then
          return t:scope(function() quantize(K, x, out, p.scales:at(head * rows + row), columns) end)
        end
        K:covered(columns, function(v, at)
          t:write(v.w, out:at(at), t:read("load", v.w, "made", x:at(at), v.used), v.used)
        end)
      end)
    end)
  end))
end

-- A load and a store for each vector.
function M.cycles(plan, stage) return 2.0 * stage.heads * stage.rows * stage.cols / plan.isa.lanes end

return M
