-- Dequantizes int8/int4 weights to pairs, as products read them: each integer is multiplied by its scale and rounded. A
-- panel of a product is a task.
--
-- Returns a function of row = { phase, title, per, space }, which makes a kind of stage.

local graph = require "graph.init"
local product_of = require "emit.product"
local tiles = require "schedule.tiles"

-- The product that reads the weights of such a stage.
local function reader(plan, stage)
  for _, other in ipairs(plan.stages) do
    if other.wide == stage.name then return other end
  end
end

-- ---- the work ----

-- Makes so many rows of pairs, for a vector of columns, from words of integers. at: words, scale, pairs.
local function widen_words(K, own, w, rows, at)
  local t, quant, width = K.t, own.packed.scheme.quant, own.panels.width
  local each = quant.in_word // 2
  local function word(i, pairs)
    t:scope(function()
      local integers = t:op("load_words", w, "integers", at.words:at(i * width))
      for k = 0, pairs - 1 do
        local two = {}
        for n = 1, 2 do
          local name = ("%d_%d"):format(k, n)
          local number = t:op(quant.op, w, "number" .. name, integers, 2 * k + n - 1)
          two[n] = t:op("mul", w, "weight" .. name, number, at.scale)
        end
        local pair = t:op(own.product.scheme.pair, w, "pair" .. k, two[1], two[2])
        t:op("store", w, nil, at.pairs:at((i * each + k) * width), pair)
      end
    end)
  end
  K:each("word", rows // each, function(i) word(i, each) end)
  if rows % each > 0 then word(rows // each, rows % each) end
end

-- Rows of weights that are done for all vectors of columns before the next ones, so that memory is read in order.
local SOME = 32

-- A panel, by groups of rows that share a row of scales. Zeros follow as padding.
local function panel(K, own, p)
  local t, lanes, packed, width = K.t, K.plan.isa.lanes, own.packed, own.panels.width
  local steps, all = packed.steps, own.product.depth
  local group_size = packed.scheme.quant.group or SOME
  local size = group_size % SOME == 0 and SOME or group_size
  local rows = tiles.ceil_div(steps, 2)
  local function group(i, count)
    local from = product_of.operand(packed, own.panels, p.words, i * size)
    for c, v in ipairs(own.panels.vecs) do
      local column = (c - 1) * lanes
      t:scope(function()
        widen_words(K, own, v.w, count, {
          words = from.p:at(column), scale = t:op("load", v.w, "scale", from.scales:at(column)),
          pairs = p.pairs:at(i * (size // 2 * width) + column) })
      end)
    end
  end
  K:each("group", steps // size, function(i) group(i, size // 2) end)
  if steps % size > 0 then group(steps // size, tiles.ceil_div(steps % size, 2)) end
  K:each("row", all - rows, function(i)
    for c, v in ipairs(own.panels.vecs) do
      t:op("store", v.w, nil, p.pairs:at((rows + i) * width + (c - 1) * lanes), t:op("zero", v.w, "none_c" .. c - 1))
    end
  end)
end

local function emit(K, place, stage, panels, j)
  local of = reader(K.plan, stage)
  local packed, product = of.packed, of.product
  local function at(name, own)
    return K.plan.memory:at(place, name):at(tiles.panel_at(own, panels, j))
  end
  local suffix = graph.suffix(K.plan, of.scheme)
  K:part(("widen_int%d_%dx%d%s"):format(packed.scheme.quant.bits, packed.steps, panels.used, suffix),
    ("Dequantizes %d rows of %d weights to pairs."):format(packed.steps, panels.used),
    { { "words", "in", at(of.weights.section, packed) }, { "pairs", "out", at(stage.name, product) } },
    function(p) panel(K, { packed = packed, product = product, panels = panels }, p) end)
end

-- ---- the kind ----

local EACH = 3.0 -- operations of a number

return function(row)
  local kind = { phase = row.phase, title = row.title, per = row.per, emit = emit }
  function kind.cycles(plan, stage)
    local blocks, product = row.per == "heads" and plan.head_blocks or 1, reader(plan, stage)
    return EACH * product.scheme.group * blocks * product.product.floats / plan.per_cycle
  end
  function kind.sections(plan, stage, add)
    local product = reader(plan, stage).product
    add(row.space, { name = stage.name, doc = row.title, count = product.floats, type = product.scheme.packed })
  end
  function kind.axes(plan, stage)
    local product = reader(plan, stage).product
    return { { var = "panel", items = product.panel_runs, total = product.panels } }
  end
  return kind
end
