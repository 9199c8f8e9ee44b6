-- Copies keys or values of a block of heads out of inputs or a cache, if attention cannot read them in place. With a
-- mask, tiles may touch rows after the last one; keys may need rope; rows with a large stride may map to too few sets
-- of L1. Inputs are also copied into a cache.

local choices = require "base.choices"
local costs = require "schedule.costs"
local expr = require "base.expr"
local graph = require "graph.init"
local groups = require "schedule.groups"
local layouts = require "graph.layout"
local conversions = require "rewrite.conversions"
local paired = require "rewrite.paired"
local rows_of = require "stage.rows"
local score = require "score.init"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"
local qk_of = require "graph.qk"
local emit_qk = require "emit.qk"
local widening = require "emit.widening"

local M = { phase = rows_of.phase, title = rows_of.title, per = rows_of.per, axes = rows_of.at_once }

-- Whether rows of an input are so far apart that those of a block of keys exceed their sets of L1, while those of a
-- copy, which has `row` numbers a row, would not.
local function crowds(plan, attend, input, row)
  local passes, rows = 0, math.min(groups.key_block(plan), plan.cfg.seq_kv)
  for _, group in ipairs(plan.groups) do passes = passes + group.count * attend.share end
  local found = tiles.crowded(plan.cpu, rows, input.row) and not tiles.crowded(plan.cpu, rows, row)
    and not costs.below(plan, "copied_from", passes)
  if found then choices.add(plan.groups[1].why, "copied") end
  return found
end

-- Adds copies to the list where they are needed. Groups have their tiles already.
function M.rewrite(plan, list)
  local rows, spilling, read = plan.cfg.seq_kv, false, {}
  for _, group in ipairs(plan.groups) do spilling = spilling or rows % group.key_rows > 0 end
  local attend, before = graph.attend(list), {}
  for _, name in ipairs { "keys", "values" } do
    local input, cached = attend[name], attend[name].at == "cache"
    local of = { heads = input.heads or plan.cfg.h_kv }
    local heads, width = graph.in_block(plan, of), input.width or input.head
    local row = tiles.round_up(heads * width, plan.isa.lanes)
    local ragged = name == "keys" and conversions.ragged(attend) -- key_rows copies them
    local touched = attend.touches and (input.grows or input.type or not ragged and (plan.scores.masked and spilling
      or input.heads and crowds(plan, attend, input, row)))
    local qk = name == "keys" and not cached and attend.qk or nil
    local in_pairs = attend.scheme.group > 1 and not (input.pairs or ragged)
    -- Rows after those that a cache holds now are not this kernel's, so a tile must not touch them.
    if in_pairs or input.heads and (qk or touched) then
      local copy = tensors.workspace(cached and "copied_" .. name or name, { head = width, row = row, operand = name })
      if input.type and not in_pairs and attend.scheme.b.round then copy = layouts.held(copy, attend.scheme) end
      if in_pairs then copy = paired.in_pairs(attend, copy, { in_place = true }) end
      before[#before + 1] = graph.moving { name = copy.name, of = name, kind = "copy",
                                           phase = cached and "copies" or nil, a = input, c = copy, rows = rows,
                                           cols = width, heads = of.heads, qk = qk }
      read[name] = copy
    end
  end
  before[#before + 1] = graph.with(attend, read)
  return graph.edited(list, { [attend] = before })
end

-- The row stride of the copy, as a product would choose it.
function M.plan(plan, stage)
  if stage.c.exact then return 0 end
  local row = tiles.round_up(graph.in_block(plan, stage) * stage.cols, plan.isa.lanes)
  return 0, { c = tensors.with(stage.c, { row = row }) }
end

function M.sections(plan, stage, add)
  rows_of.result_section(plan, stage, add)
  if stage.qk then qk_of.key_sections(plan, stage.qk, add) end
end

function M.fills(pack, stage)
  if stage.qk then qk_of.key_fills(pack, stage.qk) end
end

-- Copies a row. In straight-line code the row may be beyond those that the cache holds now; a row of V becomes zeros
-- then.
local function if_there(K, stage, bounds, row, copy, clear)
  if not (K.full and stage.a.grows) then return copy() end
  K.t:when(row, bounds.stop, copy, stage.of == "values" and clear or nil)
end

function M.emit(K, place, stage)
  local t, plan, memory = K.t, K.plan, K.plan.memory
  local input, copy, kept = stage.a, stage.c, stage.c.at == "cache"
  local past = stage.behind and place[stage.behind]
  local params = { { "x", "in", memory:tensor(place, input) },
                   { "out", "out", memory:at(place, stage.name):at(rows_of.rows_before(stage, past) * copy.row) },
                   { "past", "int", past }, { "scales", "in", input.scales and memory:at(place, input.scales) } }
  local all = graph.in_block(plan, stage)
  local text = ("%s the %s of %d head%s."):format(kept and "Appends" or "Copies", stage.of, all, all > 1 and "s" or "")
  local bounds = (kept or copy.staged) and rows_of.bounds_of(K, place, stage) or score.keys_seen(plan.scores, place)
  local turns = stage.qk and emit_qk.key_params(K, place, stage.qk) or {}
  table.move(turns, 1, #turns, #params + 1, params)
  local verb = kept and "append_" or copy.staged and "take_" or "copy_"
  K:part(verb .. stage.of, text, params, rows_of.bounded(K, bounds, params, function(p)
    -- Heads that lie side by side are copied as one.
    local heads, columns = all, stage.cols
    if layouts.side_by_side(input, columns) and not input.scales then heads, columns = 1, heads * columns end
    K:each("head", heads, function(head)
      local first = p.bounds.first or 0
      if copy.pairs == "rows" then first = expr.div(first, 2) * 2 end -- begin with a whole pair
      K:each("row", (p.bounds.stop or stage.rows) - first, function(i)
        local row = i + first
        local x, out = p.x:at(layouts.at(input, row, head)), p.out:at(head * columns + row * copy.row)
        if_there(K, stage, bounds, row, function()
          K:covered(columns, function(v, at)
            t:write(v.w, out:at(at), widening.value(K, input, v, "given", x:at(at),
              p.scales and p.scales:at(head * plan.cfg.seq_kv + row)), v.used)
          end)
        end, function() rows_of.clear_row(K, p.out, row) end)
      end)
    end)
    rows_of.finish(K, stage, p)
  end))
end

-- A load and a store for each vector.
function M.cycles(plan, stage) return 2.0 * plan.head_blocks * stage.rows * stage.c.row / plan.isa.lanes end

function M.statements(count, plan, stage)
  count:tiles(plan.head_blocks * stage.rows, 1, tiles.ceil_div(stage.c.row, plan.isa.lanes), 1)
end

function M.describe(plan, stage)
  local together = rows_of.together(plan, stage)
  if stage.c.at == "cache" then return { { stage.name, "the inputs, put into the cache" .. together } } end
  return { { stage.name, ("%s, copied to %d rows"):format(stage.a.at == "cache" and "out of the cache" or "the inputs",
    plan.kv_rows) .. together } }
end

return M
