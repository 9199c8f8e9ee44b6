-- The tables of rope that a run makes of the angles it is given (rope_at = run). Each kind is a nest:
--
--   queries   rows of cosines and sines become lanes, for each group of queries
--   keys      of interleaved pairs: a row of cosines and one of sines become the two of graph/qk.lua
--
-- Like a norm, they read what a run gives, and come before all that multiplies.

local graph = require "graph.init"
local groups = require "schedule.groups"
local qk_of = require "graph.qk"
local transpose = require "emit.transpose"

local M = {}

local PHASE, TITLE, ROWS = "angles", "angles of rows", 64 -- rows of a task

local function moving(name, nest, qk, fields)
  return graph.moving(graph.with({ name = name, kind = "angles", nest = nest, as_given = true, turns = qk }, fields))
end

-- The stage that makes rows of keys.
local function maker_of_keys(list)
  for _, stage in ipairs(list) do
    if stage.qk and not stage.context then return stage end
  end
end

function M.applies(_, list)
  local qk = graph.attend(list).qk
  return qk ~= nil and qk.given ~= nil
end

function M.rewrite(_, list)
  local keys, qk = maker_of_keys(list), graph.attend(list).qk
  local all = { moving("query_angles", "queries", qk, {}) }
  if qk.beside then all[2] = moving("key_angles", "keys", qk, { rows = keys.rows, fill = keys.fill }) end
  return table.move(list, 1, #list, #all + 1, all)
end

-- ---- queries ----

M.queries = { phase = PHASE, title = TITLE, axes = function(plan) return { groups.axis(plan) } end }

function M.queries.sections(_, stage, add)
  for _, name in ipairs(qk_of.query_tables(stage.turns)) do
    add("lanes", { name = name, doc = "rotations of Q", rows = stage.turns.pairs })
  end
end

-- A number is loaded, takes part in each step of a transposition, and is stored.
function M.queries.cycles(plan, stage) return 6.0 * 2 * plan.cfg.seq * stage.turns.pairs / plan.per_cycle end

function M.queries.describe(_, stage)
  return { { "angles", ("of a run, put into lanes: %d cosines and sines a row"):format(stage.turns.pairs) } }
end

function M.queries.emit(K, place, stage, group, i)
  local columns, first = stage.turns.pairs, i * group.used + group.q0
  for n, name in ipairs(qk_of.query_tables(stage.turns)) do
    local given = place[({ "rope_cos", "rope_sin" })[n]]
    local from = { p = given:at(first * columns), row = columns, columns = columns, letter = "A" }
    transpose.panel(K, "angles", group, from, K.plan.memory:of_group(place, name, group, i))
  end
end

-- ---- keys ----

M.keys = { phase = PHASE, title = TITLE }

function M.keys.sections(_, stage, add)
  local names, width = qk_of.key_tables(stage.turns)
  for _, name in ipairs(names) do
    add("entry", { name = name, doc = "rotations of K", cols = width, count = stage.rows * width })
  end
end

function M.keys.axes(_, stage)
  local whole, rest = stage.rows // ROWS, stage.rows % ROWS
  local parts = {}
  if whole > 0 then parts[1] = { rows = ROWS, first = 0, count = whole } end
  if rest > 0 then parts[#parts + 1] = { rows = rest, first = whole, count = 1 } end
  return { { var = "part", items = parts, total = whole + (rest > 0 and 1 or 0) } }
end

function M.keys.cycles(plan, stage) return 10.0 * 2 * stage.rows * stage.turns.pairs / plan.per_cycle end

-- Stores the lanes of a and b side by side: those of `used` pairs.
local function store_beside(K, to, name, a, b, used)
  local t, w, lanes = K.t, K.plan.isa.full, K.plan.isa.lanes
  local block = 1
  while block < lanes do
    local low = t:op("trn_lo", w, ("%s_low_%d"):format(name, block), a, b, block)
    a, b, block = low, t:op("trn_hi", w, ("%s_high_%d"):format(name, block), a, b, block), 2 * block
  end
  t:write(w, to, a, math.min(lanes, 2 * used))
  if 2 * used > lanes then t:write(w, to:at(lanes), b, 2 * used - lanes) end
end

-- (x, y) becomes x (cos, sin) + y (-sin, cos).
function M.keys.emit(K, place, stage, part, i)
  local t, w, columns = K.t, K.plan.isa.full, stage.turns.pairs
  local names, width = qk_of.key_tables(stage.turns)
  local first = (i + part.first) * ROWS
  local params = {}
  for n, name in ipairs { "cosines", "sines" } do
    params[n] = { name, "in", place[stage.turns.given[n]]:at(first * columns) }
  end
  for n, name in ipairs(names) do
    params[n + 2] = { name, "out", K.plan.memory:at(place, name):at(first * width) }
  end
  K:part("key_angles_" .. part.rows, ("The factors of %d rows of K, side by side."):format(part.rows), params,
    function(p)
    K:each("row", part.rows, function(r)
      K:vectors("block", columns, function(at, used)
        t:scope(function()
          local cosine = t:read("load", w, "cosine", p.cosines:at(r * columns + at), used)
          local sine = t:read("load", w, "sine", p.sines:at(r * columns + at), used)
          local minus = t:op("sub", w, "minus", t:op("zero", w, "zero"), sine)
          store_beside(K, p[names[1]]:at(r * width + 2 * at), "first", cosine, sine, used)
          store_beside(K, p[names[2]]:at(r * width + 2 * at), "second", minus, cosine, used)
        end)
      end)
    end)
  end)
end

return M
