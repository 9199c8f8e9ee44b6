-- V of a block of heads with a row for each of its columns, as a context product of tile registers takes it: rows of
-- words, which two keys have. Zeros are behind the words of the last keys. Blocks of words behind those that a run has
-- are left as they are, for no tile reads them.

local graph = require "graph.init"
local project = require "stage.project"
local score = require "score.init"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"
local transpose = require "emit.transpose"
local ways = require "way.init"

local M = { phase = "value_rows", title = "rows of V", per = "heads" }

local function columns(plan, stage) return graph.in_block(plan, stage) * stage.cols end

function M.applies(plan) return ways.of(plan.attend_scheme).rows_of_a end

-- The list with this stage in front of attention.
function M.rewrite(plan, list)
  local scheme, attend = plan.attend_scheme, graph.find(list, "attend")
  local to = tensors.workspace "value_rows"
  local stage = { name = "value_rows", kind = "value_rows", a = attend.values, c = to,
                  heads = plan.cfg.h_kv, cols = attend.breadth, macs = function() return 0.0 end }
  tiles.lay(to, scheme, columns(plan, stage), tiles.words(scheme, plan.cfg.seq_kv))
  to.head = attend.breadth * to.row
  return graph.edited(list, { attend = { stage, graph.with(attend, { value_rows = to }) } })
end

function M.sections(plan, stage, add)
  add("projected", { name = stage.c.name, doc = "rows of V", cols = stage.c.row, count = stage.c.count,
                     type = plan.attend_scheme.held })
end

-- Blocks of as many words as there are lanes: { size, at } each.
function M.axes(plan, stage)
  local lanes, words = plan.isa.lanes, tiles.words(plan.attend_scheme, plan.kv_rows)
  local whole, items = words // lanes, {}
  if whole > 0 then items[1] = { first = 0, count = whole, size = lanes } end
  if words % lanes > 0 then items[#items + 1] = { first = whole, count = 1, size = words % lanes } end
  return { { var = "block", items = items, total = tiles.ceil_div(words, lanes) } }
end

function M.emit(K, place, stage, item, i)
  local t, plan, lanes = K.t, K.plan, K.plan.isa.lanes
  local ld, row, first = stage.a.row, stage.c.row, (item.first + i) * lanes
  local params = { { "v", "in", project.operands(K, place, stage.a):at(first * ld) },
                   { "rows", "out", plan.memory:at(place, stage.c.name):at(first * stage.c.step) } }
  local bounds = { stop = score.keys_seen(plan.scores, place).stop }
  if bounds.stop then params[3] = { "key", "int", first * plan.attend_scheme.group } end
  K:part("value_rows_" .. item.size, ("%d words of rows of V, from as many rows of words."):format(item.size), params,
    project.bounded(K, bounds, params, function(p)
    local function block(at, used)
      t:block(function()
        local list = {}
        for r = 0, lanes - 1 do
          list[r] = r < item.size and t:read("load", plan.isa.full, "v_r" .. r, p.v:at(r * ld + at), used)
            or t:op("zero", plan.isa.full, "v_r" .. r)
        end
        list = transpose.square(t, list, "t")
        for j = 0, used - 1 do t:op("store", plan.isa.full, nil, p.rows:at((at + j) * row), list[j]) end
      end)
    end
    local function all() K:vectors("block", columns(plan, stage), block) end
    -- Where a run has no key, tiles read zeros of the first block.
    if p.bounds.stop then t:when(p.key, p.bounds.stop + 1, all) else all() end
  end))
end

-- A word is read, goes through as many exchanges as there are steps of a transposition, and is stored.
function M.cycles(plan, stage)
  return 6.0 * stage.heads * stage.cols * stage.c.words / plan.isa.lanes
end

return M
