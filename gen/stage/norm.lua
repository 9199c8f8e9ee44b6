-- A norm of whole rows, before the projections or after Y: (x - mean) / sqrt(variance + eps), or x over the root mean
-- square, times gains, plus the biases of a layer norm. Rows of another tensor may be added to that. Sources: Ba et
-- al., Layer Normalization, 2016; Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
--
-- Lanes are columns of a row, and the rows of a few queries are done at once. The mean and the mean square are taken in
-- two passes over a row that L1 holds (emit/norm.lua). A row does not depend on its neighbours.

local expr = require "base.expr"
local groups = require "schedule.groups"
local layouts = require "graph.layout"
local norm = require "emit.norm"

local M = { phase = "norm", title = "norm" }

-- The sections of gains and biases, which are named as their matrices.
local function given(stage) return { stage.gains, stage.biases } end

function M.sections(plan, stage, add)
  local docs = { "gains of " .. stage.name, "biases of " .. stage.name }
  for i, name in ipairs(given(stage)) do add("packed", { name = name, doc = docs[i], count = stage.cols }) end
  local c = stage.c
  if c.at == "rows" then
    add("entry", { name = c.name, doc = "normed rows", cols = c.row, count = plan.cfg.seq * c.row })
  end
end

function M.fills(pack, stage)
  for _, name in ipairs(given(stage)) do
    pack:add(name, { to = pack:at(name), steps = 1, used = stage.cols, width = stage.cols, scale = 1.0,
                     gain = stage.branch_gain, terms = { { a = name } }, rounds = {} })
  end
end

-- All groups of queries. Where keys are made from the same rows, also those that a run does not ask for.
function M.axes(plan, stage)
  local axis = groups.axis(plan)
  if stage.of_keys then axis.queries = nil end
  return { axis }
end

-- Three loads of a number, a store, and four operations on it.
function M.cycles(plan, stage) return 6.0 * plan.cfg.seq * stage.cols / plan.isa.lanes end

function M.describe(_, stage)
  return { { stage.name, ("of rows of %d, %s"):format(stage.cols, stage.norm.norm) } }
end

-- Row number r of a block, at x, goes to out, plus a row at `add` if there is one. own: K, stage, the parameters p, and
-- factors, those of the block's rows.
local function row(own, r, x, out, add)
  local K, p, centered = own.K, own.p, own.stage.norm.norm == "layer"
  local t, w, lanes = K.t, K.plan.isa.full, K.plan.isa.lanes
  local by = t:op("dup", w, "factor", own.factors:at(r))
  local mean = centered and t:op("dup", w, "mean", own.factors:at(lanes + r))
  norm.vectors(K, own.stage.cols, function(column, used)
    local function load(name, from) return t:read("load", w, name, from:at(column), used) end
    local value = load("value", x)
    if mean then value = t:op("sub", w, "centered", value, mean) end
    local normal, gain = t:op("mul", w, "normal", value, by), load("gain", p.gains)
    local result = p.biases and t:op("fma", w, "result", normal, gain, load("bias", p.biases))
      or t:op("mul", w, "result", normal, gain)
    if add then result = t:op("add", w, "added", load("given", add), result) end
    t:write(w, out:at(column), result, used)
  end)
end

-- `count` rows from row `from` on.
local function all_rows(own, from, count)
  local K, p, a, c = own.K, own.p, own.stage.a, own.stage.c
  norm.row_factors(K, own.stage.norm, count, own.stage.cols, own.factors, function(r, column)
    return p.x:at((from + r) * a.row + column)
  end)
  local function one(r)
    local i, add = from + r, own.stage.add
    K.t:scope(function()
      row(own, r, p.x:at(i * a.row), p.out:at(i * c.row), add and p.add:at(i * add.row))
    end)
  end
  if not p.asked then return K:each("row", count, one) end
  if not K.full then return K.t:loop("row", expr.min(count, p.asked - from), one) end
  for r = 0, count - 1 do K.t:when(from + r, p.asked, function() one(r) end) end
end

-- The same, if a run asks for one of them.
local function block(own, from, count)
  if not own.p.asked then return all_rows(own, from, count) end
  own.K.t:when(from, own.p.asked, function() all_rows(own, from, count) end)
end

function M.emit(K, place, stage, group, i)
  local memory, lanes, first = K.plan.memory, K.plan.isa.lanes, i * group.used + group.q0
  local function rows_of(tensor) return memory:tensor(place, tensor):at(layouts.at(tensor, first)) end
  local params = { { "x", "in", rows_of(stage.a) }, { "gains", "in", memory:at(place, stage.gains) },
                   { "biases", "in", stage.biases and memory:at(place, stage.biases) },
                   { "add", "in", stage.add and rows_of(stage.add) }, { "out", "out", rows_of(stage.c) },
                   { "asked", "int", place.rows and stage.c.at == "input" and place.rows - first } }
  K:part(("%s_%dx%d"):format(stage.name, group.used, stage.cols), ("Normalizes %d rows."):format(group.used), params,
    function(p)
    local own, rest = { K = K, stage = stage, p = p, factors = K.t:buffer("factors", 2 * lanes) }, group.used % lanes
    K:each("block", group.used // lanes, function(b) block(own, b * lanes, lanes) end)
    if rest > 0 then block(own, group.used - rest, rest) end
  end)
end

return M
