-- K of a block of heads, with zeros behind the words of each row, where its rows are no whole ones of tile registers: a
-- word of another head there would meet zeros of Q, but may be infinite.

local graph = require "graph.init"
local project = require "stage.project"
local score = require "score.init"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"

local M = { phase = "key_rows", title = "rows of K", per = "heads", axes = project.at_once }

function M.applies(plan, list)
  local words = tiles.words(plan.attend_scheme, graph.find(list, "attend").depth)
  return tiles.padded(plan.attend_scheme, words) > words
end

-- The list with this stage in front of attention.
function M.rewrite(plan, list)
  local scheme, attend = plan.attend_scheme, graph.find(list, "attend")
  local words = tiles.words(scheme, attend.depth)
  local row = tiles.padded(scheme, words)
  local keys = tiles.round_up(plan.cfg.seq_kv, scheme.group * scheme.pad)
  local to = tensors.workspace("key_rows", { row = row, head = keys * row })
  local stage = { name = "key_rows", kind = "key_rows", a = attend.keys, c = to, heads = plan.cfg.h_kv, words = words,
                  macs = function() return 0.0 end }
  return graph.edited(list, { attend = { stage, graph.with(attend, { keys = to }) } })
end

function M.sections(plan, stage, add)
  local rows = graph.in_block(plan, stage) * (stage.c.head // stage.c.row) + tiles.rows_behind(plan.attend_scheme)
  add("projected", { name = stage.c.name, doc = "rows of K", cols = stage.c.row, count = rows * stage.c.row,
                     type = plan.attend_scheme.held })
end

function M.emit(K, place, stage)
  local t, plan, from, to = K.t, K.plan, stage.a, stage.c
  local bounds, heads = score.keys_seen(plan.scores, place), graph.in_block(plan, stage)
  local params = { { "k", "in", project.operands(K, place, from) }, { "rows", "out", plan.memory:at(place, to.name) } }
  K:part("fill_rows", ("Rows of K of %d head%s, zeros behind their words."):format(heads, heads > 1 and "s" or ""),
    params, project.bounded(K, bounds, params, function(p)
    K:each("head", heads, function(head)
      local first = p.bounds.first or 0
      K:each("row", (p.bounds.stop or plan.kv_rows) - first, function(i)
        local row = i + first
        K:vectors("block", stage.words, function(at, used)
          t:block(function()
            local words = t:read("load", plan.isa.full, "words", p.k:at(head * from.head + row * from.row + at), used)
            t:op("store", plan.isa.full, nil, p.rows:at(head * to.head + row * to.row + at), words)
          end)
        end)
      end)
    end)
  end))
end

-- A load and a store for each vector.
function M.cycles(plan, stage)
  return 2.0 * stage.heads * plan.cfg.seq_kv * stage.c.row / plan.isa.lanes
end

return M
