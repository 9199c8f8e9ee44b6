-- What is projected of a block of heads with lanes over columns: K[key][hb*dk] = X Wk + bk, V likewise, and Q.

local choices = require "base.choices"
local expr = require "base.expr"
local fetch = require "schedule.fetch"
local graph = require "graph.init"
local isas = require "isa.init"
local memory = require "schedule.memory"
local product_of = require "emit.product"
local score = require "score.init"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"
local qk_of = require "graph.qk"
local emit_qk = require "emit.qk"
local ways = require "way.init"
local wording = require "base.wording"

local M = { phase = "keys_values", title = "keys and values", per = "heads" }

M.keys = { rows = "kv_rows", vectors = "kv_vectors" }

-- Keys that a word of values has.
local function keys_of_word(c) return c.pairs == "rows" and 2 or 1 end

-- Numbers of a column, and of a row, that a word has as a tile stores it.
local function down(c) return c.in_place and 1 or keys_of_word(c) end
local function across(c) return c.pairs == "columns" and not c.in_place and 2 or 1 end

function M.plan(plan, stage)
  local values = stage.c.operand == "values"
  local weights = values and plan.value_weights or plan.weights
  local product, cost = tiles.columns(weights, M.keys,
    { { rows = stage.rows, count = 1, even = down(stage.c) > 1 or ways.interleave(plan.scheme) > 1,
        twice = ways.of(plan.scheme).twice } },
    graph.in_block(plan, stage) * stage.cols, { steps = tiles.words(weights.scheme, stage.steps), order = "rows",
      rounded = stage.c.held or stage.c.pairs and not stage.c.in_place })
  local stored = values and plan.stored_values or plan.stored
  return cost, {
    product = product, packed = plan.widens and tiles.packed(product, stored.scheme, stage.steps) or product,
    c = not stage.c.exact and tensors.with(stage.c, { row = product.ld // across(stage.c) }) or nil }
end

-- Rows of what is projected: tiles of keys may touch more than there are. Those of a cache are the same for kernels of
-- any tiles and number of queries; an exact one has no more than there are.
local function rows(plan, stage)
  if stage.c.exact then return plan.cfg.seq_kv end
  local scheme = plan.attend_scheme
  if stage.c.at == "cache" then return plan.cfg.seq_kv + tiles.highest(isas.by_vectors(scheme)) end
  if stage.c.operand == "queries" or stage.c.staged then return stage.rows end
  return plan.kv_rows + (stage.c.operand == "keys" and tiles.rows_behind(scheme) or 0)
end

-- What a stage makes of a block of heads, in the workspace or in a cache.
function M.result_section(plan, stage, add)
  local c, height = stage.c, rows(plan, stage)
  if c.at == "cache" then
    local each = c.exact and height * c.row or memory.aligned(height * c.row)
    add("cache", { name = stage.name, doc = stage.name, cols = c.row, height = height, each = each,
                   count = plan.head_blocks * each, exact = c.exact })
  else
    add("projected", { name = stage.name, doc = stage.name, cols = c.row,
                       count = tiles.ceil_div(height, down(c)) * c.row,
                       type = (c.held or c.pairs and not c.in_place) and plan.attend_scheme.held })
  end
end

function M.sections(plan, stage, add)
  local product, packed = stage.product, stage.packed
  add("head", { name = stage.weights.section, doc = "weights", count = packed.floats, type = packed.scheme.packed })
  if stage.bias then add("head", { name = stage.bias.section, doc = "bias", count = product.ld }) end
  M.result_section(plan, stage, add)
  if stage.qk then qk_of.key_sections(plan, stage.qk, add) end
end

local STRAIGHT = 64 -- vectors of a row of zeros that are stored without a loop

-- Row i of V becomes zeros: all of it, or its columns in a row that has more than those.
function M.clear_row(K, v, i)
  local t, isa, values = K.t, K.plan.isa, K.plan.attend.values
  local columns, zeros = values.columns or values.row, {}
  local whole = columns // isa.lanes
  local looped = whole > STRAIGHT and whole or 0
  local function zero(w)
    zeros[w] = zeros[w] or t:op("zero", w, w == isa.full and "zero" or "zero_tail")
    return zeros[w]
  end
  t:scope(function()
    if looped > 0 then
      local full = zero(isa.full)
      K:each("i", looped, function(j) t:write(isa.full, v:at(i * values.row + j * isa.lanes), full, isa.lanes) end)
    end
    for at = looped * isa.lanes, columns - 1, isa.lanes do
      local vector = isas.vector(isa, columns, at)
      t:write(vector.w, v:at(i * values.row + at), zero(vector.w), vector.used)
    end
  end)
end

-- Rows of V that a key tile may touch and nobody sees become zeros, so that zero weights stay zeros: `count` from
-- row `from` on.
local function clear_rows(K, v, from, count)
  K:each("row", count, function(i) M.clear_row(K, v, from + i) end)
end

local function highest_tile(plan)
  local most = 0
  for _, group in ipairs(plan.groups) do most = math.max(most, group.keys.rows) end
  return most
end

-- Those behind the last key, and those before the first one. Of pairs those of which no key is seen: what a key has
-- beside it that nobody sees is finite, or the safe path keeps it out.
function M.clear_values(K, v, bounds)
  local plan, by = K.plan, keys_of_word(K.plan.attend.values)
  local most, rows = tiles.ceil_div(highest_tile(plan), by), tiles.ceil_div(plan.kv_rows, by)
  local stop = expr.ceil_div(bounds.stop or plan.cfg.seq_kv, by)
  if bounds.stop or plan.kv_rows > plan.cfg.seq_kv then clear_rows(K, v, stop, expr.min(most, rows - stop)) end
  if bounds.first and most > 1 then
    local first = expr.div(bounds.first, by)
    local count = K.t:int("before", expr.min(most - 1, first))
    clear_rows(K, v, first - count, count)
  end
end

-- Those behind the rows that a cache has now. p: out, where the first row of this run is, past, the number of those
-- before it, and bounds. Straight code goes through all tiles of keys.
local function clear_behind(K, stage, p)
  local plan, stop = K.plan, p.bounds.stop or stage.rows
  if not plan.attend.touches then return end
  if not K.full then return clear_rows(K, p.out, stop, expr.min(highest_tile(plan), plan.kv_rows - stop - p.past)) end
  for i = stage.rows, plan.kv_rows - 1 do
    K.t:when(p.past, plan.kv_rows - i, function() M.clear_row(K, p.out, i) end)
  end
end

-- Those behind all rows of a cache, which other kernels may have higher tiles for.
local function clear_margin(K, stage, v)
  local seq_kv = K.plan.cfg.seq_kv
  clear_rows(K, v, seq_kv, rows(K.plan, stage) - seq_kv)
end

-- What a run bounds the rows by that are projected: { first =, stop = }.
function M.bounds_of(K, place, stage)
  if K.full or stage.fill then return {} end
  if stage.c.operand == "queries" or stage.behind then return { stop = place.rows } end
  return score.keys_seen(K.plan.scores, place)
end

-- The tiles of a run of rows: the first, and how many. Where a run bounds the keys, whole tiles are left out.
local function span_of(K, run, bounds)
  local from, count = 0, run.count
  if bounds.stop then count = expr.min(count, expr.ceil_div(bounds.stop - run.at, run.size)) end
  if bounds.first then
    from = K.t:int("from" .. run.at, expr.div(expr.max(bounds.first - run.at, 0), run.size))
  end
  return from, K.t:int("tiles" .. run.at, count - from, { -(run.at + run.count * run.size), run.count })
end

-- build(first, some) for `count` tiles of a run from number `from` on: one at a time, or a few.
local function each_part(K, run, from, count, few, build)
  if not few then return K:each("tile", count, function(i) build(from + i, 1) end) end
  if run.count <= few then return build(from, count) end
  K:each("part", expr.ceil_div(count, few), function(i)
    build(from + i * few, K.t:int("some", expr.min(few, count - i * few), { 1, few }))
  end)
end

-- The tiles of some runs by all panels: these are the inner loop, but of tile registers, and where tiles fetch
-- weights that lie behind those of a panel. p.number: that of the first tile, if it is not the first of all.
local function record_tiles(K, stage, p, runs)
  local product, a, c, k_stride = stage.product, stage.a, stage.c, stage.a.k_stride or 1
  local fetched, before = fetch.of(K.plan, product), {}
  local number = p.number or 0
  for _, run in ipairs(runs) do before[run], number = number, number + run.count end
  local function next_of(panels, panel, i)
    return fetched and fetch.of_tile(fetched, panels, p.w, panel, i)
  end
  local function tiles_of(run, from, count, panels, j, panel)
    local column = j * panels.width + panels.at
    local function row_of(i) return (i + from) * run.size + run.at end
    product_of.each_tile(K, product, panels, run.size, count, {
      label = stage.name, alone = #runs == 1, bias = p.bias and p.bias:at(column),
      a = function(i, k0)
        local scales = p.row_scales and p.row_scales:at(row_of(i))
        local own, sums = product_of.of_rows(product.scheme, scales, a.scaled_rows, k0)
        return { p = p.x:at(row_of(i) * a.row + k0 * k_stride), row = a.row, k_stride = k_stride,
                 streamed = tiles.streamed(K.plan.cpu, a, panels.width * product.depth),
                 scales = own, sums = sums }
      end,
      b = function(i, k0)
        return product_of.operand(product, panels, p.w:at(panel), k0, next_of(panels, panel, i + from + before[run]))
      end,
      c = function(i)
        local word = expr.share(run.size % down(c) == 0 and row_of(i) or run.at, down(c)) -- a last odd row is alone
        return { p = p.out:at(word * c.row + expr.share(column, across(c))), row = c.row, exact = c.exact,
                 round = c.held and K.plan.attend_scheme.b, pairs = not c.in_place and c.pairs, scale = c.scale }
      end,
    })
  end
  local pass = not a.tile_words and not fetch.stay(K.plan, product) -- and so cross to no other product
  local panels_first = pass or fetched and not fetched.crosses
  if pass then
    choices.add(K.t.why, "panels_pass")
  elseif not panels_first then
    choices.add(K.t.why, a.tile_words and "panels_outside" or "project_order")
  end
  local spans = {}
  for i, run in ipairs(runs) do spans[i] = { span_of(K, run, p.bounds) } end
  local few = not panels_first and a.tile_words and tiles.keeps_sums(product) and tiles.TOGETHER
  if a.tile_words and not few or panels_first then
    return product_of.each_panel(K, product, function(panels, j, panel)
      for i, run in ipairs(runs) do tiles_of(run, spans[i][1], spans[i][2], panels, j, panel) end
    end)
  end
  for i, run in ipairs(runs) do
    each_part(K, run, spans[i][1], spans[i][2], few, function(first, some)
      product_of.each_panel(K, product, function(panels, j, panel) tiles_of(run, first, some, panels, j, panel) end)
    end)
  end
end

-- Adds the rows that a run wants at most to the parameters of a function, which record(p) has as p.bounds then: its
-- first, and where they stop. In straight code there are none.
function M.bounded(K, bounds, params, record)
  local first, stop = not K.full and bounds.first, not K.full and bounds.stop
  if first then params[#params + 1] = { "pad", "int", first } end
  if stop then params[#params + 1] = { "len", "int", stop } end
  return function(p)
    p.bounds = { first = first and p.pad, stop = stop and p.len }
    record(p)
  end
end

local in_place = {}

-- Each row as pairs of its columns, where its first half was.
function in_place.columns(K, stage, p)
  local t, isa, first = K.t, K.plan.isa, p.bounds.first or 0
  K:each("row", (p.bounds.stop or stage.rows) - first, function(i)
    local row = p.out:at((i + first) * stage.c.row)
    K:vectors("block", graph.in_block(K.plan, stage) * stage.cols, function(at, used)
      t:scope(function()
        local numbers = t:read("load", isa.full, "numbers", row:at(at), used)
        t:op(K.plan.attend_scheme.store_pairs, isa.full, nil, row:at(expr.share(at, 2)), numbers)
      end)
    end)
  end)
end

-- Each two rows as one of pairs, where the first rows were. Beside a last one stand zeros.
function in_place.rows(K, stage, p)
  local t, isa, ld = K.t, K.plan.isa, stage.c.row
  local first, stop = expr.div(p.bounds.first or 0, 2), p.bounds.stop or stage.rows
  local function pair(word, alone)
    K:vectors("block", graph.in_block(K.plan, stage) * stage.cols, function(at, used)
      t:scope(function()
        local row = p.out:at(word * (2 * ld) + at)
        local even = t:read("load", isa.full, "even", row, used)
        local odd = alone and t:op("zero", isa.full, "none") or t:read("load", isa.full, "odd", row:at(ld), used)
        local both = t:op(K.plan.attend_scheme.pair, isa.full, "pair", even, odd)
        t:op("store", isa.full, nil, p.out:at(word * ld + at), both)
      end)
    end)
  end
  local whole = expr.div(stop, 2)
  if not expr.is_const(whole) then first, whole = t:int("first_word", first), t:int("words", whole) end
  K:each("word", whole - first, function(i) pair(i + first) end)
  t:when(whole * 2, stop, function() pair(whole, true) end)
end

-- What is done to the rows that a stage has made: keys are turned, rows become pairs where they lie, and what stands
-- behind values becomes zeros.
function M.finish(K, stage, p)
  if stage.qk then emit_qk.keys(K, stage, p) end
  if stage.c.in_place then in_place[stage.c.pairs](K, stage, p) end
  if stage.c.operand ~= "values" or stage.c.exact or stage.c.staged then return end
  if p.past then return clear_behind(K, stage, p) end
  if stage.fill then return clear_margin(K, stage, p.out) end
  M.clear_values(K, p.out, p.bounds)
end

-- Where rows of keys or values begin, as attention reads them.
function M.operands(K, place, tensor)
  local p = K.plan.memory:tensor(place, tensor)
  return tensor.in_place and p:as(K.plan.attend_scheme.held) or p
end

-- Rows of C before those that a stage makes.
function M.rows_before(stage, past) return stage.c.at == "cache" and past or 0 end

-- The function that projects a block of heads; `record` does it with its parameters, which `more` adds to. part: { row,
-- rows } of X, if it is not all of them.
function M.record(K, place, stage, more, record, part)
  local plan, memory = K.plan, K.plan.memory
  local past, bounds = stage.behind and place[stage.behind], M.bounds_of(K, place, stage)
  K.role = stage.name
  local row = part and part.row or 0
  local before = M.rows_before(stage, past) + expr.share(row, down(stage.c))
  local params = { { "x", "in", memory:tensor(place, stage.a):at(row * stage.a.row) },
                   { "w", "in", memory:at(place, stage.wide or stage.weights.section) },
                   { "out", "out", memory:at(place, stage.name):at(before * stage.c.row) } }
  if stage.bias then params[#params + 1] = { "bias", "in", memory:at(place, stage.bias.section) } end
  if stage.a.scales then params[#params + 1] = { "row_scales", "in", memory:at(place, stage.a.scales):at(row) } end
  if past then params[#params + 1] = { "past", "int", past } end
  local bounded = M.bounded(K, bounds, params, record)
  local turns = stage.qk and emit_qk.key_params(K, place, stage.qk) or {}
  table.move(turns, 1, #turns, #params + 1, params)
  table.move(more, 1, #more, #params + 1, params)
  local heads = graph.in_block(plan, stage)
  K:part("project_" .. stage.name .. (part and "_" .. part.rows or ""), ("Projects %s of %d head%s%s."):format(
    stage.name, heads, heads > 1 and "s" or "", part and (" for %d rows"):format(part.rows) or ""), params, function(p)
    bounded(p)
    M.finish(K, stage, p)
  end)
  K.role = nil
end

function M.emit(K, place, stage, item, i)
  local runs, more, part = stage.product.runs[1], {}, nil
  if item.tiles then
    local size, number = runs[1].size, (item.first + i) * tiles.TOGETHER
    part = { row = number * size, rows = item.tiles * size }
    more[1] = { "number", "int", number }
    runs = { { size = size, count = item.tiles, at = 0 } }
    choices.add(K.t.why, "parts")
  end
  M.record(K, place, stage, more, function(p) record_tiles(K, stage, p, runs) end, part)
end

-- All rows at once.
function M.at_once() return { { var = "which", items = { { first = 0, count = 1 } }, total = 1 } } end

-- Whether tiles of rows are taken a few at a time, by the weights of keys, values and queries in turn: rows of X that
-- the second-level cache does not keep, where nothing says how many are asked for, or is done behind the last one.
local function in_parts(plan, stage)
  local product, c, run = stage.product, stage.c, stage.product.runs[1][1]
  local margin = c.operand == "values" and not c.staged and plan.kv_rows > plan.cfg.seq_kv
  return tiles.keeps_sums(product) and #product.runs[1] == 1 and run.count > tiles.TOGETHER
    and not (stage.qk or stage.behind or stage.fill or c.in_place or margin or score.reads_lengths(plan.scores))
    and product.scheme.b.bytes * product.steps * stage.rows > plan.cpu.cached
end

function M.axes(plan, stage)
  if not in_parts(plan, stage) then return M.at_once() end
  local few, run = tiles.TOGETHER, stage.product.runs[1][1]
  local count = run.count
  local items = { { first = 0, count = count // few, tiles = few } }
  if count % few > 0 then items[2] = { first = count // few, count = 1, tiles = count % few } end
  return { { var = "part", items = items, total = tiles.ceil_div(count, few),
             along = ("%s %dx%d"):format(stage.a.name, count, run.size) } }
end

function M.statements(count, plan, stage)
  local product = stage.product
  for _, runs in ipairs(product.runs) do count:columns(product, runs, plan.head_blocks) end
end

function M.describe(plan, stage)
  local product = stage.product
  return { { stage.name, ("tiles %s, %s; %d of %d heads together"):format(wording.column_tiles(product),
    wording.chain(product.chunks), graph.in_block(plan, stage), stage.heads) } }
end

-- What is packed for a stage behind its weights.
function M.fill_more(pack, stage)
  local bias, product = stage.bias, stage.product
  if stage.qk then qk_of.key_fills(pack, stage.qk) end
  if not bias then return end
  pack:add_heads(bias, { to = pack:at(bias.section), steps = 1,
    used = graph.in_block(pack.plan, bias) * stage.cols, width = product.ld, scale = stage.scale,
    terms = { pack.term(bias, 0) }, rounds = {} })
end

function M.fills(pack, stage)
  local weights, product = stage.weights, stage.packed
  pack:panels(product, pack:at(weights.section), function(panels, to, round)
    pack:add_heads(weights, pack:of_weights { to = to, steps = stage.steps, used = panels.used, width = panels.width,
      scale = stage.scale, terms = { pack.term(weights, panels.at) }, rounds = { round },
      quant = product.scheme.quant })
  end)
  M.fill_more(pack, stage)
end

return M
