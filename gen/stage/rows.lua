-- Rows of queries, keys or values of a block of heads, made by a product or a copy: where they lie, which of them a run
-- asks for, and what follows once they are made.

local emit_qk = require "emit.qk"
local expr = require "base.expr"
local graph = require "graph.init"
local isas = require "isa.init"
local layouts = require "graph.layout"
local memory = require "schedule.memory"
local score = require "score.init"
local tiles = require "schedule.tiles"

-- The phase of stages that make such rows.
local M = { phase = "keys_values", title = "keys and values", per = "heads" }

-- How many rows are stored. Tiles of keys may touch more rows than there are. The height of a cache does not depend on
-- a kernel's tiles or number of queries, so that kernels can share it. An exact cache has no extra rows.
local function height_of(plan, stage)
  if stage.c.exact then return plan.cfg.seq_kv end
  local scheme = plan.attend.scheme
  if stage.c.at == "cache" then return plan.cfg.seq_kv + tiles.highest(isas.by_vectors(scheme)) end
  if stage.c.operand == "queries" or stage.c.staged then return stage.rows end
  return plan.kv_rows + (stage.c.operand == "keys" and tiles.rows_behind(scheme) or 0)
end

-- The section of the result for a block of heads, in the workspace or in a cache.
function M.result_section(plan, stage, add)
  local c, height, ends = stage.c, height_of(plan, stage), layouts.stored(stage.c)
  if c.at == "cache" then
    local each = c.exact and height * c.row or memory.aligned(height * c.row)
    add("cache", { name = stage.name, doc = stage.name, cols = c.row, height = height, each = each,
                   count = plan.head_blocks * each, exact = c.exact })
  else
    add("projected", { name = stage.name, doc = stage.name, cols = c.row,
                       count = tiles.ceil_div(height, ends.down) * c.row, type = ends.type })
  end
end

local STRAIGHT = 64 -- vectors of a row of zeros that are stored without a loop

-- Clears row i of V: all of it, or only its own columns if the row also has those of other tensors.
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

-- Clears `count` rows of V from row `from` on, which a tile of keys may touch though nobody sees them, so that their
-- zero weights contribute zeros.
local function clear_rows(K, v, from, count)
  K:each("row", count, function(i) M.clear_row(K, v, from + i) end)
end

local function highest_tile(plan)
  local most = 0
  for _, group in ipairs(plan.groups) do most = math.max(most, group.keys.rows) end
  return most
end

-- Clears rows after the last key and before the first one. Of paired rows, it clears those with no visible key. A pair
-- may have one visible key and one hidden; the hidden one is finite, or the safe path keeps it out.
function M.clear_values(K, v, bounds)
  local plan, by = K.plan, layouts.rows_of_word(K.plan.attend.values)
  local most, rows = tiles.ceil_div(highest_tile(plan), by), tiles.ceil_div(plan.kv_rows, by)
  local stop = expr.ceil_div(bounds.stop or plan.cfg.seq_kv, by)
  if bounds.stop or plan.kv_rows > plan.cfg.seq_kv then clear_rows(K, v, stop, expr.min(most, rows - stop)) end
  if bounds.first and most > 1 then
    local first = expr.div(bounds.first, by)
    local count = K.t:int("before", expr.min(most - 1, first))
    clear_rows(K, v, first - count, count)
  end
end

-- Clears rows after those that a cache holds now. p: out, the first row of this run; past, the number of rows before
-- it; and bounds. Straight-line code goes through all tiles of keys.
local function clear_behind(K, stage, p)
  local plan, stop = K.plan, p.bounds.stop or stage.rows
  if not plan.attend.touches then return end
  if not K.full then return clear_rows(K, p.out, stop, expr.min(highest_tile(plan), plan.kv_rows - stop - p.past)) end
  for i = stage.rows, plan.kv_rows - 1 do
    K.t:when(p.past, plan.kv_rows - i, function() M.clear_row(K, p.out, i) end)
  end
end

-- Clears the rows after the end of a cache, because other kernels with taller tiles may touch them.
local function clear_margin(K, stage, v)
  local seq_kv = K.plan.cfg.seq_kv
  clear_rows(K, v, seq_kv, height_of(K.plan, stage) - seq_kv)
end

-- The run-time range of rows to project: { first =, stop = }.
function M.bounds_of(K, place, stage)
  if K.full or stage.fill then return {} end
  if stage.c.operand == "queries" or stage.behind then return { stop = place.rows } end
  return score.keys_seen(K.plan.scores, place)
end

-- The first tile of a run of rows, and how many there are. Tiles with no key that a run needs are left out.
function M.span(K, run, bounds)
  local from, count = 0, run.count
  if bounds.stop then count = expr.min(count, expr.ceil_div(bounds.stop - run.at, run.size)) end
  if bounds.first then
    from = K.t:int("from" .. run.at, expr.div(expr.max(bounds.first - run.at, 0), run.size))
  end
  return from, K.t:int("tiles" .. run.at, count - from, { -(run.at + run.count * run.size), run.count })
end

-- Adds the range of rows that a run needs to the parameters of a function. record(p) finds it in p.bounds: the first
-- row, and the end. Straight-line code has no range.
function M.bounded(K, bounds, params, record)
  local first, stop = not K.full and bounds.first, not K.full and bounds.stop
  params[#params + 1] = { "pad", "int", first }
  params[#params + 1] = { "len", "int", stop }
  return function(p)
    p.bounds = { first = first and p.pad, stop = stop and p.len }
    record(p)
  end
end

local in_place = {}

-- Packs the columns of each row into pairs, in place: they take the first half of the row.
function in_place.columns(K, stage, p)
  local t, isa, first = K.t, K.plan.isa, p.bounds.first or 0
  K:each("row", (p.bounds.stop or stage.rows) - first, function(i)
    local row = p.out:at(layouts.at(stage.c, i + first))
    K:vectors("block", graph.in_block(K.plan, stage) * stage.cols, function(at, used)
      t:scope(function()
        local numbers = t:read("load", isa.full, "numbers", row:at(at), used)
        t:op(stage.c.scheme.store_pairs, isa.full, nil, row:at(expr.share(at, 2)), numbers)
      end)
    end)
  end)
end

-- Packs every two rows into one row of pairs, in place. A last odd row is paired with zeros.
function in_place.rows(K, stage, p)
  local t, isa, ld = K.t, K.plan.isa, stage.c.row
  local first, stop = expr.div(p.bounds.first or 0, 2), p.bounds.stop or stage.rows
  local function pair(word, alone)
    K:vectors("block", graph.in_block(K.plan, stage) * stage.cols, function(at, used)
      t:scope(function()
        local row = p.out:at(word * (2 * ld) + at)
        local even = t:read("load", isa.full, "even", row, used)
        local odd = alone and t:op("zero", isa.full, "none") or t:read("load", isa.full, "odd", row:at(ld), used)
        local both = t:op(stage.c.scheme.pair, isa.full, "pair", even, odd)
        t:op("store", isa.full, nil, p.out:at(word * ld + at), both)
      end)
    end)
  end
  local whole = expr.div(stop, 2)
  if not expr.is_const(whole) then first, whole = t:int("first_word", first), t:int("words", whole) end
  K:each("word", whole - first, function(i) pair(i + first) end)
  t:when(whole * 2, stop, function() pair(whole, true) end)
end

-- Finishes rows that a stage has made: applies norm and rope to keys, packs rows into pairs in place, and clears the
-- rows after V.
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
  return tensor.in_place and p:as(tensor.scheme.held) or p
end

-- The number of rows that C has before those of a stage.
function M.rows_before(stage, past) return stage.c.at == "cache" and past or 0 end

-- A text that says how many heads are done together.
function M.together(plan, stage)
  return ("; %d of %d heads together"):format(graph.in_block(plan, stage), stage.heads)
end

-- All rows at once.
function M.at_once() return { { var = "which", items = { { first = 0, count = 1 } }, total = 1 } } end

return M
