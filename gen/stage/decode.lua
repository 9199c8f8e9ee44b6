-- Attention of decode steps: few queries that read all of a long cache. Lanes run over keys for the scores, and over
-- columns of V for the context (schedule/decode.lua). emit/decode.lua records the code of a query.

local attention = require "stage.attention"
local decode = require "emit.decode"
local layouts = require "graph.layout"
local mask = require "emit.mask"
local rounding = require "emit.rounding"
local row_keys = require "emit.row_keys"
local score = require "score.init"
local steps = require "schedule.decode"
local transpose = require "emit.transpose"
local wording = require "base.wording"

local M = { phase = "attend", title = "attend", per = "heads", axes = attention.axes, fills = attention.fills,
            cycles = attention.cycles }

-- Queries that are used as rows; nil where a norm or rope handles them in lanes first. changed: they are scaled or
-- rounded before.
local function query_rows(plan)
  local rows = attention.query_rows(plan)
  if not rows or plan.attend.qk or rows.width ~= plan.attend.depth then return nil end
  local scale = rows.scale or plan.attend.query_scale
  return { tensor = rows.tensor, width = rows.width, height = rows.height, scale = scale,
           changed = scale or plan.attend.scheme.b.round }
end

-- How many rows of biases a query needs: one for each of the heads that share keys, or one for all heads.
local function bias_rows(plan) return mask.by_head(plan) and plan.attend.share or 1 end

-- Scales and rounds rows of queries, and stores heads side by side.
local function change_rows(own, rows, to)
  local K, group, plan = own.K, own.group, own.K.plan
  local t, w, round = K.t, plan.isa.full, plan.attend.scheme.b.round
  K:part(("queries_rows_%d"):format(group.used), ("%d rows of queries%s%s."):format(group.used,
    rows.scale and ", scaled" or "", round and ", rounded" or ""),
    { { "x", "in", own.p.queries }, { "rows", "out", to.p } }, function(p)
    K:each("query", group.used, function(r)
      attention.each_matrix(K, rows.tensor, rows.width, rows.height, function(columns, at, column)
        K:vectors("i", columns, function(c, used)
          t:scope(function()
            local value = t:read("load", w, "number", p.x:at(r * rows.tensor.row + at + c), used)
            if rows.scale then value = t:op("mul", w, "scaled", value, t:op("set", w, "scale", rows.scale)) end
            if round then value = round(t, w, "rounded", value) end
            t:write(w, p.rows:at(r * to.row + column + c), value, used)
          end)
        end)
      end)
    end)
  end)
end

-- The queries as rows. Queries in lanes are transposed back.
local function rows_of(own)
  local K, plan, depth, rows = own.K, own.K.plan, own.K.plan.attend.depth, query_rows(own.K.plan)
  if rows and not rows.changed then
    return { p = own.p.queries, row = rows.tensor.row, head = rows.tensor.head }
  end
  local to = { p = own:scratch "q_rows", row = plan.hb * depth, columns = plan.hb * depth, head = depth }
  if rows then
    change_rows(own, rows, to)
    return to
  end
  K:each("head", plan.attend.qk and plan.hb or 0, function(i)
    own:turn_queries(i, own.q:at(i * (plan.cfg.dk * own.group.width)))
  end)
  rounding.lanes(K, "scaled_queries", own.group, { p = own.q, rows = plan.hb * depth, scale = plan.attend.query_scale,
                                                   scheme = plan.attend.scheme })
  transpose.rows(K, "queries_rows", own.group, own.q, to)
  return to
end

-- The biases of query r, which sees keys as `seen` says, for the heads that share keys.
local function write_biases(own, kv, r, seen)
  local K, plan, scores, share = own.K, own.K.plan, own.K.plan.scores, own.K.plan.attend.share
  K:each("sharing", own.biases and bias_rows(plan) or 0, function(h)
    local first, last = score.interval(scores, seen)
    mask.row(K, own.group, score.of_block(scores, own.p, kv * share + h, r).mask,
      own.biases:at(h * mask.row_count(plan)), decode.range(plan, first, last + 1))
  end)
end

-- The sections of quantized queries, keys and weights, and of their scales (emit/decode_words.lua).
local function words_of(own)
  local list = {}
  for _, name in ipairs { "q", "q_scales", "panel", "p_words", "p_scales" } do
    list[name] = own:scratch(name == "q" and "q_words" or name)
  end
  return list
end

-- Query r of the heads that share keys and values kv.
local function one_query(own, queries, kv, r, reads)
  local K, p, cfg, attend = own.K, own.p, own.K.plan.cfg, own.K.plan.attend
  local share, context = attend.share, attend.context
  local k, v = own:of_keys(kv)
  local seen = row_keys.of_query(K, reads, r)
  write_biases(own, kv, r, seen)
  decode.heads(K, {
    q = queries.p:at(layouts.at(queries, r, kv * share)), q_head = queries.head, k = k, v = v,
    k_scales = own:scales_of("k_scales", kv), v_scales = own:scales_of("v_scales", kv),
    p = own:scratch "p", sums = own:scratch "sums", o = own:scratch "o_sums",
    out = { p = p.y:at(layouts.at(context, r, kv * share)), head = context.head },
    reads = seen,
    probs = p.probs and p.probs:at(kv * (share * cfg.seq * cfg.seq_kv) + r * cfg.seq_kv),
    words = attend.step.words and words_of(own),
    test = own.biases and own:scratch "test", seen = own.biases and not attend.step.words and own:scratch "seen_values",
  })
end

local function record(own)
  local K, plan, p = own.K, own.K.plan, own.p
  local share = plan.attend.share
  own.biases = #plan.scores.hides > 0 and own:scratch "mask"
  local queries = rows_of(own)
  K:each("kv", plan.hb // share, function(kv)
    local reads = score.of_head(plan.scores, own.seen, own:packed_from(kv * share), own.biases)
    K:each("query", own.group.used, function(r)
      K.t:when(r, p.rows and p.rows - own.seen.query or own.group.used, function()
        one_query(own, queries, kv, r, reads)
      end)
    end)
  end)
end

function M.emit(K, place, stage, group, i)
  attention.record(K, place, stage, { group = group, i = i, in_lanes = not query_rows(K.plan), build = record })
end

-- ---- the plan ----

function M.plan(plan, stage) return 0, { step = steps.planned(plan, stage) } end

-- Memory of a task: queries in lanes and as rows, weights, their sums, sums of the context, and what a mask needs.
function M.sections(plan, stage, add)
  local step, scored = stage.step, plan.attend.scheme.held
  local function add_task(name, doc, count, type)
    add("task", { name = name, doc = doc, count = count, type = type })
  end
  local rows = query_rows(plan)
  if not rows then attention.query_sections(plan, add) end
  if not rows or rows.changed then add_task("q_rows", "rows of Q", plan.cfg.seq * plan.hb * stage.depth) end
  add_task("p", "attention weights", stage.share * step.p_row, scored)
  add_task("sums", "sums of weights", stage.share * plan.isa.lanes)
  add_task("o_sums", "sums of the context", stage.share * step.product.ld)
  if step.words then
    add_task("q_words", "queries as integers", stage.share * stage.depth // 2)
    add_task("q_scales", "their scales", stage.share)
    add_task("panel", "a tile of K as columns", step.keys * stage.depth // 4)
    add_task("p_words", "weights as integers", stage.share * step.block // 2)
    add_task("p_scales", "their scales", stage.share)
  end
  if #plan.scores.hides > 0 then
    add_task("test", "whether a context is finite", plan.isa.lanes)
    if not step.words then
      add_task("seen_values", "values that are not hidden", step.block * step.seen_row + plan.isa.lanes, scored)
    end
    add_task("mask", "biases of a mask", bias_rows(plan) * mask.row_count(plan))
  end
  attention.packed_sections(plan, add)
  if stage.context.at == "rows" then
    add("entry", { name = "context", doc = "context of all heads", cols = stage.context.row,
                   count = plan.cfg.seq * stage.context.row, type = stage.context.pairs and stage.context.scheme.held })
  end
  attention.qk_sections(plan, stage, add)
end

function M.statements(count, plan, stage)
  local step = stage.step
  count:tiles(plan.cfg.h, step.keys, 1, -(-stage.depth // plan.isa.lanes))
  count:columns(step.product, step.product.runs[1], 2)
end

function M.describe(plan, stage)
  local step = stage.step
  return { { "attend", attention.queries_text(plan, plan.groups[1]) },
           { "", ("scores of %d keys k%d | context %s k%d"):format(step.keys, stage.depth,
             wording.column_tiles(step.product), math.min(plan.cfg.seq_kv, step.block)) } }
end

return M
