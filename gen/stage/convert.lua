-- Stages that only change the layout or the type of numbers. Each kind of stage is a row here.
--
--   kind               from                                to
--   narrow             inputs                              pairs, padded with zeros at the end of each row
--   round              inputs                              float32, rounded to the type of operand A
--   widen              inputs of a smaller type            float32
--   quantize           inputs                              words of integers, with a scale for each row
--   widen_heads        int8/int4 weights of a head block   pairs (stage/widened.lua)
--   widen_output       int8/int4 weights of the output     pairs
--   quantize_context   the context of all heads            words of integers; in lanes or rows, as the context
--   context_rows       the context, queries in the lanes   rows of words, padded with zeros
--   transpose          X of a group of queries             XT[d_model][group width]
--   key_rows           K of a block of heads               rows of words, padded with zeros; with an odd dk, float32
--                                                          rows become words
--   value_rows         V of a block of heads               a row of words for each column, padded with zeros
--
-- Without the padding of key_rows, the last words of K would be those of the next head: times zero, but 0 x Inf is NaN.
--
-- rewrite/conversions.lua puts most of them into the list. Two more kinds that copy numbers have files of their own:
-- stage/copy.lua shares the end of a projection, and stage/cache_append.lua computes the scales of a cache.

local expr = require "base.expr"
local graph = require "graph.init"
local groups = require "schedule.groups"
local layouts = require "graph.layout"
local paired = require "rewrite.paired"
local rows_of = require "stage.rows"
local quantize = require "emit.quantize"
local score = require "score.init"
local tiles = require "schedule.tiles"
local transpose = require "emit.transpose"
local ways = require "way.init"
local widened = require "stage.widened"

local M = {}

-- Adds a section for rows of words (graph/layout.lua).
local function add_words(add, where, to, doc)
  add(where, { name = to.name, doc = doc, cols = to.row, count = to.count, type = to.scheme.held })
end

-- ---- inputs: rows, divided into parts for tasks ----

local ROWS = 64 -- of a task

-- The parts, { input, size, count, at, first } each, with the remaining rows as a part of their own; and their number.
local function split(stage)
  local tasks, parts = 0, {}
  for _, input in ipairs(stage.inputs) do
    local function add(size, count, at)
      if size * count == 0 then return end
      parts[#parts + 1] = { input = input, size = size, count = count, at = at, first = tasks }
      tasks = tasks + count
    end
    local rest = input.rows % ROWS
    add(ROWS, input.rows // ROWS, 0)
    add(rest, 1, input.rows - rest)
  end
  return parts, tasks
end

-- row: phase, title, emit; each, operations on a number; held, whether the result has the operands' type.
local function of_inputs(row)
  local kind = { phase = row.phase, title = row.title, emit = row.emit }
  function kind.sections(_, stage, add)
    for _, input in ipairs(stage.inputs) do
      local to = input.to
      if to.words then
        add_words(add, "entry", to, row.title)
      else
        add("entry", { name = to.name, doc = row.title, cols = input.cols, count = input.rows * input.cols,
                       type = row.held and to.scheme.held })
      end
      if to.scales then
        local of_row = quantize.scales_of_row(to.scheme, tiles.words(to.scheme, input.cols))
        add("entry", { name = to.scales, doc = "scales of their rows", count = input.rows * of_row })
      end
    end
  end
  function kind.axes(_, stage)
    local parts, tasks = split(stage)
    return { { var = "part", items = parts, total = tasks } }
  end
  function kind.cycles(plan, stage)
    local sum = 0.0
    for _, input in ipairs(stage.inputs) do sum = sum + input.rows * input.cols end
    return row.each * sum / plan.per_cycle
  end
  return kind
end

-- The rows that are read: an input as given, or what a stage has made of it.
local function given(K, place, input)
  return input.of and K.plan.memory:tensor(place, input.of) or place[input.name]
end

-- The suffix of a name whose source is float32, while inputs have another type, or whose result has a type that only
-- the feed-forward has.
local function of_type(K, input)
  return (K.plan.arrays.round and input.of and input.of.at ~= "input" and "_" .. input.of.name or "")
    .. graph.suffix(K.plan, input.to.scheme)
end

-- Records copies of rows, which are handled as one array because they are contiguous. change(K, w, name, number, to)
-- returns the new value of a vector; name: a suffix for names of values. words: verb, for the function's name; done,
-- for the result's name; text, for the comment.
local function copied(words, change)
  return function(K, place, _, part, i)
    local t, input, count = K.t, part.input, part.size * part.input.cols
    local first = (i * part.size + part.at) * input.cols
    local params = { { "x", "in", given(K, place, input):at(first) },
                     { words.done, "out", K.plan.memory:at(place, input.to.name):at(first) } }
    local name = ("%s_%d%s"):format(words.verb, count, of_type(K, input))
    K:part(name, ("%d numbers%s."):format(count, words.text), params, function(p)
      K:covered(count, function(v, at, suffix)
        local number = t:read("load", v.w, "number" .. suffix, p.x:at(at), v.used)
        t:write(v.w, p[words.done]:at(at), change and change(K, v.w, suffix, number, input.to) or number, v.used)
      end)
    end)
  end
end

-- The source and the destination of a part of an input, and its first row.
local function ends_of(K, place, part, i)
  local input, first = part.input, i * part.size + part.at
  local to = K.plan.memory:at(place, input.to.name)
  return given(K, place, input):at(first * input.cols), to:at(layouts.at(input.to, first)), first
end

M.narrow = of_inputs {
  phase = "narrow", title = "inputs in pairs", each = 2.0,
  emit = function(K, place, _, part, i)
    local t, isa, input, to = K.t, K.plan.isa, part.input, part.input.to
    local scheme, interleave = to.scheme, ways.interleave(to.scheme)
    local x, pairs = ends_of(K, place, part, i)
    local name = layouts.label("narrow", to, part.size, input.cols) .. of_type(K, input)
    local text = ("%d rows of %d numbers in pairs."):format(part.size, input.cols)
    K:part(name, text, { { "x", "in", x }, { "pairs", "out", pairs } }, function(p)
      local function row(r, first)
        local function store(word, numbers)
          t:op(scheme.store_pairs, isa.full, nil, p.pairs:at(first + layouts.word_at(to, word)), numbers)
        end
        K:vectors("block", input.cols, function(at, used)
          t:scope(function()
            store(expr.share(at, scheme.group),
              t:read("load", isa.full, "numbers", p.x:at(r * input.cols + at), used))
          end)
        end)
        for word = paired.words_of_row(K.plan.isa, scheme, input.cols), to.words - 1, isa.lanes // scheme.group do
          t:scope(function() store(word, t:op("zero", isa.full, "zero")) end)
        end
      end
      local function together(i, count) -- rows whose words are interleaved
        for n = 0, count - 1 do row(i * interleave + n, i * (interleave * to.row) + interleave * n) end
      end
      K:each("row", part.size // interleave, function(i) together(i, interleave) end)
      if part.size % interleave > 0 then together(part.size // interleave, part.size % interleave) end
    end)
  end }

M.round = of_inputs {
  phase = "round", title = "inputs, rounded", each = 4.0, held = true,
  emit = copied({ verb = "round", done = "rounded", text = ", rounded" }, function(K, w, name, number, to)
    return to.scheme.a.round(K.t, w, "nearest" .. name, number)
  end) }

M.widen = of_inputs {
  phase = "widen", title = "inputs in float32", each = 2.0,
  emit = copied { verb = "widen", done = "wide", text = " in float32" } }

-- Each number is loaded twice, and multiplied.
M.quantize = of_inputs {
  phase = "quantize", title = "inputs in int8", each = 3.0,
  emit = function(K, place, _, part, i)
    local input = part.input
    local x, words, first = ends_of(K, place, part, i)
    quantize.rows(K, { rows = part.size, cols = input.cols, x = x, words = words, to = input.to,
                       of_type = of_type(K, input),
                       scales = K.plan.memory:at(place, input.to.scales):at(first), all = input.rows })
  end }

-- ---- weights ----

M.widen_heads = widened { phase = "widen_heads", title = "weights of heads in pairs", per = "heads",
                          space = "projected" }

M.widen_output = widened { phase = "widen_output", title = "weights of the output in pairs", space = "entry" }

-- ---- groups of queries ----

-- row: phase, title, each as above; numbers(plan, stage) of each query; sections, emit; cost.
local function of_groups(row)
  return { phase = row.phase, title = row.title, sections = row.sections, emit = row.emit, cost = row.cost,
           axes = function(plan) return { groups.axis(plan) } end,
           cycles = function(plan, stage)
             return row.each * plan.cfg.seq * row.numbers(plan, stage) / plan.per_cycle
           end }
end

-- A word is loaded, takes part in each step of a transposition, and is stored.
local TRANSPOSED = 6.0

M.quantize_context = of_groups {
  phase = "quantize_context", title = "context in int8", each = 3.0,
  numbers = function(_, stage) return stage.rows end,
  sections = function(plan, stage, add)
    local to, of_scales = stage.c, "scales of the context of queries"
    local words = tiles.words(to.scheme, stage.rows)
    local rows = quantize.scales_of_row(to.scheme, words)
    if to.at == "rows" then
      add_words(add, "entry", to, "context in int8")
      return add("entry", { name = to.scales, doc = of_scales, count = plan.cfg.seq * rows })
    end
    add("lanes", { name = to.name, doc = "context in int8", rows = words, type = to.scheme.held })
    add("lanes", { name = to.scales, doc = of_scales, rows = rows })
  end,
  emit = function(K, place, stage, group, i)
    local to, memory, first = stage.c, K.plan.memory, i * group.used + group.q0
    if to.at == "rows" then
      return quantize.rows(K, { rows = group.used, cols = stage.rows, to = to,
        x = memory:tensor(place, stage.a):at(layouts.at(stage.a, first)),
        words = memory:tensor(place, to):at(layouts.at(to, first)),
        scales = memory:at(place, to.scales):at(first), all = K.plan.cfg.seq })
    end
    local function of_group(name) return memory:of_group(place, name, group, i) end
    quantize.lanes(K, group, { scheme = to.scheme, rows = stage.rows, x = of_group(stage.a.name),
                               words = of_group(to.name), scales = of_group(to.scales) })
  end }

M.context_rows = of_groups {
  phase = "context_rows", title = "context in rows", each = TRANSPOSED,
  numbers = function(_, stage) return stage.words end,
  sections = function(_, stage, add) add_words(add, "entry", stage.c, "context in rows") end,
  emit = function(K, place, stage, group, i)
    local to, memory = stage.c, K.plan.memory
    local first = i * group.used + group.q0
    transpose.rows(K, "context_rows", group, memory:of_group(place, stage.a.name, group, i),
      { p = memory:tensor(place, to):at(layouts.at(to, first)), row = to.row, columns = stage.words, words = to,
        filled = true })
  end }

M.transpose = of_groups {
  phase = "transpose", title = "transpose", each = 2.0,
  numbers = function(plan) return plan.cfg.d_model end,
  sections = function(plan, stage, add)
    add("lanes", { name = "xt", doc = "X transposed", rows = tiles.words(stage.c.scheme, plan.cfg.d_model),
                   type = stage.c.scheme.held })
  end,
  emit = function(K, place, stage, group, i)
    local row, scheme = stage.a.row, stage.c.scheme
    local x = K.plan.memory:tensor(place, stage.a)
    local round = scheme.group == 1 and x.type.rounded ~= scheme.b and scheme.b.round
    local function change(w, name, number) return round(K.t, w, "rounded_" .. name, number) end
    transpose.panel(K, "transpose", group, { p = x:at(i * (group.used * row) + group.q0 * row), row = row,
        columns = tiles.words(scheme, K.plan.cfg.d_model), words = stage.a.tile_words and stage.a,
        change = round and change },
      K.plan.memory:of_group(place, "xt", group, i))
  end,
  -- In FMA slots, as for tiles: squares of vectors are shuffled in log2(lanes) steps, then stored.
  cost = function(plan)
    local lanes, ports, cfg = plan.isa.lanes, plan.cpu.ports, plan.cfg
    local vectors = tiles.ceil_div(cfg.seq, lanes) * cfg.d_model
    return vectors * math.max(math.log(lanes, 2) / ports.shuffle, 1 / ports.store) * plan.cpu.fmas
  end }

-- ---- a block of heads ----

-- Copies a row of words unchanged.
local function copy_words(K, stage, from, to)
  local t, w = K.t, K.plan.isa.full
  K:vectors("block", stage.words, function(at, used)
    t:scope(function() t:op("store", w, nil, to:at(at), t:read("load", w, "words", from:at(at), used)) end)
  end)
end

-- Makes a row of words from float32: a word has a number and the one half a row after it. The last word and the padding
-- have zeros.
local function words_of_row(K, stage, from, to)
  local t, w, lanes = K.t, K.plan.isa.full, K.plan.isa.lanes
  transpose.words_apart(K, stage.words, function(at, firsts, seconds)
    t:scope(function()
      local first = t:read("load", w, "first", from:at(at), firsts)
      local second = seconds > 0 and t:read("load", w, "second", from:at(at + stage.words), seconds)
        or t:op("zero", w, "none")
      t:write(w, to:at(at), t:op(stage.c.scheme.pair, w, "words", first, second),
        stage.c.row % lanes > 0 and firsts or lanes)
    end)
  end)
  for at = tiles.round_up(stage.words, lanes), stage.c.row - 1, lanes do
    t:scope(function() t:op("store", w, nil, to:at(at), t:op("zero", w, "none")) end)
  end
end

M.key_rows = {
  phase = "key_rows", title = "rows of K", per = "heads", axes = rows_of.at_once,
  sections = function(plan, stage, add)
    local to = stage.c
    local rows = graph.in_block(plan, stage) * (to.head // to.row) + tiles.rows_behind(to.scheme)
    add("projected", { name = to.name, doc = "rows of K", cols = to.row, count = rows * to.row,
                       type = to.scheme.held })
  end,
  emit = function(K, place, stage)
    local plan, from, to = K.plan, stage.a, stage.c
    local bounds, heads = score.keys_seen(plan.scores, place), graph.in_block(plan, stage)
    local rows, make = plan.kv_rows, copy_words
    if stage.ragged then rows, make = plan.cfg.seq_kv, words_of_row end
    local params = { { "k", "in", rows_of.operands(K, place, from) },
                     { "rows", "out", plan.memory:at(place, to.name) } }
    K:part("fill_rows", ("Rows of K of %d head%s, padded with zeros."):format(heads, heads > 1 and "s" or ""),
      params, rows_of.bounded(K, bounds, params, function(p)
      K:each("head", heads, function(head)
        local first = p.bounds.first or 0
        K:each("row", (p.bounds.stop or rows) - first, function(i)
          local row = i + first
          make(K, stage, p.k:at(layouts.at(from, row, head)), p.rows:at(layouts.at(to, row, head)))
        end)
      end)
    end))
  end,
  -- A load and a store for each vector.
  cycles = function(plan, stage) return 2.0 * stage.heads * plan.cfg.seq_kv * stage.c.row / plan.isa.lanes end }

-- Records a block of words: at most as many rows of words of V as there are lanes are transposed. Blocks after the last
-- key of a run are left as they are, because no tile reads them.
local function value_block(K, place, stage, size, first)
  local t, plan, lanes = K.t, K.plan, K.plan.isa.lanes
  local ld, row = stage.a.row, stage.c.row
  local params = { { "v", "in", rows_of.operands(K, place, stage.a):at(first * ld) },
                   { "rows", "out", plan.memory:at(place, stage.c.name):at(first * stage.c.k_stride) } }
  local bounds = { stop = score.keys_seen(plan.scores, place).stop }
  params[3] = { "key", "int", bounds.stop and first * stage.c.scheme.group }
  K:part("value_rows_" .. size, ("Transposes %d rows of words of V."):format(size), params,
    rows_of.bounded(K, bounds, params, function(p)
    local function block(at, used)
      t:scope(function()
        local list = {}
        for r = 0, lanes - 1 do
          list[r] = r < size and t:read("load", plan.isa.full, "v_r" .. r, p.v:at(r * ld + at), used)
            or t:op("zero", plan.isa.full, "v_r" .. r)
        end
        list = transpose.square(t, list, "t")
        for j = 0, used - 1 do t:op("store", plan.isa.full, nil, p.rows:at((at + j) * row), list[j]) end
      end)
    end
    local function all() K:vectors("block", graph.in_block(plan, stage) * stage.cols, block) end
    -- The first block is always made, because tiles of a run without any key read it and need zeros there.
    if p.bounds.stop then t:when(p.key, p.bounds.stop + 1, all) else all() end
  end))
end

M.value_rows = {
  phase = "value_rows", title = "rows of V", per = "heads",
  sections = function(_, stage, add) add_words(add, "projected", stage.c, "rows of V") end,
  -- Blocks of as many words as there are lanes: { size, at } each.
  axes = function(plan, stage)
    local lanes, words = plan.isa.lanes, tiles.words(stage.c.scheme, plan.kv_rows)
    local whole, items = words // lanes, {}
    if whole > 0 then items[1] = { first = 0, count = whole, size = lanes } end
    if words % lanes > 0 then items[#items + 1] = { first = whole, count = 1, size = words % lanes } end
    return { { var = "block", items = items, total = tiles.ceil_div(words, lanes) } }
  end,
  emit = function(K, place, stage, item, i)
    value_block(K, place, stage, item.size, (item.first + i) * K.plan.isa.lanes)
  end,
  cycles = function(plan, stage)
    return TRANSPOSED * stage.heads * stage.cols * stage.c.words / plan.isa.lanes
  end }

return M
