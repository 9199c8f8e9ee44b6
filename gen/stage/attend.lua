-- Attention of one group of queries: scores, softmax and context, head by head.

local again = require "emit.again"
local apply = require "stage.apply"
local choices = require "choices"
local head = require "emit.head"
local probs = require "emit.probs"
local memory = require "memory"
local score = require "score.init"
local statistics = require "emit.stats"
local transpose = require "emit.transpose"
local words = require "words"

local M = { phase = "attend", title = "attend", per = "heads" }

-- Queries, scores, softmax and context of one group for one block of heads.
local function attend(K, group, a)
  local t, plan, cfg = K.t, K.plan, K.plan.cfg
  local params = {
    { "packed", "in", a.packed }, { "keys", "in", a.keys },
    { "values", "in", a.values },
    { "scratch", "out", a.scratch }, { "o", "out", a.o },
  }
  local projected, query = plan.stage.queries, plan.stage.query
  local key_query, value_context = plan.stage.key_query, plan.stage.value_context
  if a.xt then table.insert(params, 1, { "xt", "in", a.xt }) end
  if projected then params[#params + 1] = { "queries", "in", a.queries } end
  if cfg.probs then params[#params + 1] = { "probs", "out", a.probs } end
  params[#params + 1] = { "q0", "int", a.q0 }
  score.add_params(plan.scores, params, a.reads)
  K:part("attend_" .. group.name, ("Attention of %d queries, %d head%s."):format(
    group.used, plan.hb, plan.hb > 1 and "s" or ""), params, function(p)
    local function scratch(name) return plan.memory:from(p.scratch, name) end
    local stats, q = scratch "stats", nil
    if projected then
      q = scratch "q"
      transpose.panel(K, "queries_lanes", group, plan.hb * projected.cols, projected.c.row, p.queries, q)
    elseif query then
      q = scratch "q"
      apply.record(K, query, { group = group, packed = p.packed, head = 0, b = p.xt, c = q })
    end

    -- Lane i of the group sees the keys first[i] .. last[i].
    local reads = { cfg = cfg }
    for _, read in ipairs(plan.scores.reads) do reads[read.name] = p[read.name] end
    local seen = score.of_query(reads, group.count == 1 and group.q0 or p.q0)
    local span = score.span(plan.scores, group, seen, K.full)
    score.name_span(span, t)
    if plan.scores.masked then
      t:block(function()
        head.each_stat(K, group, stats, function(_, name, _, put)
          for _, which in ipairs { "last", "first" } do
            if plan.scores.bounds[which] then
              put(which, score.lane_bound(plan.scores, t, group, which, tonumber(name:sub(2)) + 1, seen))
            end
          end
        end)
      end)
    end

    local function one_head(i, kv) -- and the number of its keys and values, which others may share
      local ptrs = {
        q = q and q:at(i * ((projected or query).cols * group.width)), p = scratch "p", stats = stats,
        k = p.keys:at(kv * plan.attend.keys.head), v = p.values:at(kv * plan.attend.values.head),
        o = p.o:at(i * (plan.attend.out * group.width)), reads = p,
      }
      local function applied(stage, b, c)
        apply.record(K, stage, { group = group, packed = p.packed, head = kv, b = b, c = c })
        return c
      end
      if key_query then ptrs.q = applied(key_query, ptrs.q or p.xt, scratch "kq") end
      local o = ptrs.o
      if value_context then ptrs.o = scratch "c" end
      head.pass(K, group, ptrs, { span = span })
      again.check(K, group, ptrs, span)
      if value_context then applied(value_context, ptrs.o, o) end
      if cfg.probs then
        ptrs.probs = p.probs:at(i * (cfg.seq * cfg.seq_kv))
        probs.write(K, group, ptrs, span)
      end
    end
    local share = plan.attend.share
    K:each("head", plan.hb // share, function(kv)
      K:each("sharing", share, function(i) one_head(kv * share + i, kv) end)
    end)
  end)
end

function M.emit(K, place, stage, group, i)
  choices.add(K.t.why, "one_pass")
  local plan, cfg, memory = K.plan, K.plan.cfg, K.plan.memory
  local q0, projected = i * group.used + group.q0, plan.stage.queries
  attend(K, group, {
    xt = plan.stage.transpose and memory:of_group(place, "xt", group, i),
    packed = memory:base(place, "head"),
    queries = projected and memory:tensor(place, projected.c):at(q0 * projected.c.row),
    keys = memory:tensor(place, stage.keys), values = memory:tensor(place, stage.values),
    scratch = memory:base(place, "task"),
    o = memory:of_group(place, "context", group, i):at(place.hb * (plan.hb * stage.out * group.width)),
    probs = cfg.probs and place.probs:at(place.hb * (plan.hb * cfg.seq * cfg.seq_kv) + q0 * cfg.seq_kv),
    q0 = q0, reads = place,
  })
end

-- ---- the plan ----

function M.axes(plan)
  return { { var = "g", items = plan.groups, total = plan.group_count, grain = plan.groups_per_task } }
end

-- Of the widest group and one task: queries, those with Wk applied, weights, context before Wv is applied, statistics.
function M.sections(plan, stage, add)
  local widest, in_list = plan.widest, plan.stage
  local query = in_list.queries or in_list.query
  local function add_task(name, doc, rows) add("task", { name = name, doc = doc, count = rows * widest }) end
  if query then add_task("q", "Q", plan.hb * query.cols) end
  if in_list.key_query then add_task("kq", "Q with Wk", in_list.key_query.cols) end
  add("task", { name = "p", doc = "weights of scores", count = plan.weights_floats })
  if in_list.value_context then add_task("c", "context of a head", in_list.value_context.steps) end
  add_task("stats", "statistics", statistics.count(plan.scores))
  add("lanes", { name = "context", doc = "context of all heads", rows = plan.cfg.h * stage.out })
end

-- With all that is applied to its queries.
function M.cycles(plan, stage)
  local macs = stage:macs()
  for _, other in ipairs(plan.stages) do
    if other.kind == "apply" then macs = macs + other:macs() end
  end
  return 2.0 * macs / plan.per_cycle
end

local SCORE = 5 -- statements of exp2 and the sums, per vector of scores

function M.statements(count, plan, stage)
  local cfg = plan.cfg
  for _, group in ipairs(plan.groups) do
    local n, heads = #group.vecs, group.count * cfg.h
    -- Of score tiles there are a first, a next and a maximum one, behind a mask more.
    local kinds = count.straight and 1 or plan.scores.masked and 6 or 3
    count:copies(count:times(heads * group.keys.tiles) + kinds - 1, group.keys.rows, n, stage.depth, SCORE)
    for _, run in ipairs(group.context) do count:tiles(heads * run.count, run.size, n, cfg.seq_kv) end
  end
end

-- In straight code compilers keep every broadcast of the keys and values of a head, to use it for the next group of
-- queries.
function M.stack(plan, stage)
  return plan.cfg.seq_kv * (stage.depth + stage.breadth) * plan.isa.lanes * memory.BYTES
end

function M.describe(plan, stage)
  local lines, first = {}, plan.stage.query or plan.stage.key_query
  for _, group in ipairs(plan.groups) do
    local width = group.width == group.used and group.used or group.used .. " of " .. group.width
    lines[#lines + 1] = { "attend", ("%d x %s queries%s"):format(group.count, width,
      first and ": Q " .. words.runs(plan.groups[1].products[first.name].runs, group.used) or "") }
    lines[#lines + 1] = { "", ("scores %dx%d k%d | context %s k%d"):format(group.keys.rows, group.used, stage.depth,
      words.runs(group.context, group.used), math.min(plan.cfg.seq_kv, group.keys.block_tiles * group.keys.rows)) }
  end
  return lines
end

return M
