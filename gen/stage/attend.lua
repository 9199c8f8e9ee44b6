-- Attention of one group of queries: scores, softmax and context, head by head.

local again = require "emit.again"
local head = require "emit.head"
local probs = require "emit.probs"
local product_of = require "emit.product"
local score = require "score.init"
local transpose = require "emit.transpose"

-- Queries, scores, softmax and context of one group for one block of heads.
local function attend(K, group, a)
  local t, plan, cfg = K.t, K.plan, K.plan.cfg
  local params = {
    { "xt", "in", a.xt }, { "packed", "in", a.packed }, { "keys", "in", a.keys },
    { "values", "in", a.values },
    { "scratch", "out", a.scratch }, { "o", "out", a.o },
  }
  if a.queries then params[#params + 1] = { "queries", "in", a.queries } end
  if cfg.probs then params[#params + 1] = { "probs", "out", a.probs } end
  params[#params + 1] = { "q0", "int", a.q0 }
  score.add_params(plan.scores, params, a.reads)
  K:part("attend_" .. group.name, ("Attention of %d queries, %d head%s."):format(
    group.used, plan.hb, plan.hb > 1 and "s" or ""), params, function(p)
    local stats = p.scratch:at(plan.scratch.stats)
    local function weights(name) return p.packed:at(plan.head[name]) end
    local q
    if plan.projected.q then
      q = p.scratch:at(plan.scratch.q)
      local width = plan.hb * plan.fold.query
      transpose.panel(K, "queries_lanes", group, width, plan.projected.q.ld, p.queries, q)
    elseif plan.q then
      q = p.scratch:at(plan.scratch.q)
      product_of.rows(K, "query", plan.q, group, weights "wq", p.xt, weights "bq", q)
    end

    -- Lane i of the group sees the keys first[i] .. last[i].
    local seen = { cfg = cfg, query = group.count == 1 and group.q0 or p.q0 }
    for _, read in ipairs(plan.scores.reads) do seen[read.name] = p[read.name] end
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

    K:each("head", plan.hb, function(i)
      local ptrs = {
        q = q and q:at(i * (plan.fold.query * group.width)), p = p.scratch:at(plan.scratch.p), stats = stats,
        k = p.keys:at(i * plan.keys.head), v = p.values:at(i * plan.values.head),
        o = p.o:at(i * (plan.fold.out * group.width)), reads = p,
      }
      local function apply(label, product, which, from, bias, to)
        local size = product.rows * product.steps
        product_of.rows(K, label, product, group, weights(which):at(i * size), from, bias, to)
      end
      if plan.kq then
        local kq = p.scratch:at(plan.scratch.kq)
        local bias = not q and weights "bq":at(i * plan.kq.rows)
        apply("key_query", plan.kq, "wk", q and ptrs.q or p.xt, bias, kq)
        ptrs.q = kq
      end
      local o = ptrs.o
      if plan.vc then ptrs.o = p.scratch:at(plan.scratch.c) end
      head.pass(K, group, ptrs, { span = span })
      again.check(K, group, ptrs, span)
      if plan.vc then apply("value_context", plan.vc, "wv", ptrs.o, nil, o) end
      if cfg.probs then
        ptrs.probs = p.probs:at(i * (cfg.seq * cfg.seq_kv))
        probs.write(K, group, ptrs, span)
      end
    end)
  end)
end

local function emit(K, place, group, i)
  local plan, cfg = K.plan, K.plan.cfg
  local q0 = i * group.used + group.q0
  local kv = place.ws:at(plan.entry.kv + place.heads_slot * plan.kv.total)
  attend(K, group, {
    xt = place.ws:at(plan.entry.xt + group.xt + i * group.xt_floats),
    packed = place.packed:at(plan.packed.heads + place.hb * plan.head.total),
    queries = plan.projected.q and kv:at(plan.kv.q + q0 * plan.projected.q.ld),
    keys = plan.projected.k and kv:at(plan.kv.k) or place.k,
    values = plan.projected.v and kv:at(plan.kv.v) or place.v,
    scratch = place.ws:at(plan.entry.scratch + place.scratch_slot * plan.scratch.total),
    o = place.ws:at(plan.entry.o + group.o + i * group.o_floats
      + place.hb * (plan.hb * plan.fold.out * group.width)),
    probs = cfg.probs and place.probs:at(place.hb * (plan.hb * cfg.seq * cfg.seq_kv) + q0 * cfg.seq_kv),
    q0 = q0, reads = place,
  })
end

-- All that the fold leaves but the products of other stages.
local function cycles(plan)
  local cfg, f = plan.cfg, plan.fold
  local columns = cfg.seq * plan.out.steps
  if plan.projected.k then columns = columns + cfg.h * cfg.seq_kv * cfg.dk end
  if plan.projected.v then columns = columns + cfg.h * cfg.seq_kv * cfg.dv end
  if plan.projected.q then columns = columns + cfg.h * cfg.seq * f.query end
  return plan.cycles - 2.0 * cfg.d_model * columns / plan.per_cycle
end

return function(plan)
  return { {
    phase = "attend", title = "attend", per = "heads", emit = emit,
    axes = { { var = "g", items = plan.groups, total = plan.group_count, grain = plan.groups_per_task } },
    cycles = cycles(plan),
  } }
end
