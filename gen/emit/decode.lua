-- One query of a decode step (schedule/decode.lua) and the heads that share keys and values: scores, softmax and
-- context.
--
-- The weights of all keys that the query sees, from `first` to stop - 1, are stored. So the maximum is known before the
-- first weight is computed, no weight overflows, and no other key or value enters a sum.

local context = require "emit.decode_context"
local exp = require "tape.exp"
local expr = require "base.expr"
local fetch = require "emit.fetch"
local mask = require "emit.mask"
local probs = require "emit.probs"
local score = require "score.init"
local softmax = require "emit.softmax"
local step_of = require "schedule.decode"
local transpose = require "emit.transpose"
local weights = require "emit.weights"
local widening = require "emit.widening"
local words = require "emit.decode_words"

local M = {}

-- The keys that are read for a query which sees those from `first` to stop - 1, in whole tiles. The last tile may begin
-- before `first`. nil: all keys.
function M.range(plan, first, stop)
  if not plan.scores.bounded then return nil end
  local rows, all = plan.attend.step.keys, plan.cfg.seq_kv
  return { from = expr.min(first, all - rows),
           stop = expr.min(first + expr.ceil_div(stop - first, rows) * rows, all) }
end

-- Reduces a list pairwise, so that no dependency chain is long.
local function joined(t, op, list, name)
  local w, distance = t.isa.full, 1
  while distance < #list do
    for i = 1, #list - distance, 2 * distance do
      list[i] = t:op(op, w, ("%s%d_%d"):format(name, 2 * distance, i - 1), list[i], list[i + distance])
    end
    distance = 2 * distance
  end
  return list[1]
end

-- What the rows of gen/score read for the h-th of the heads that share keys.
local function of_head(K, p, h)
  local biases = p.mask and p.mask:at(mask.by_head(K.plan) and h * mask.row_count(K.plan) or 0)
  return score.of_head(K.plan.scores, p, function(name) return p[name]:at(h) end, biases)
end

-- ---- scores ----

-- A vector of scores after the rows of gen/score; c: its number in the tile.
local function behind_rows(t, scores, sum, c, at)
  local w, value = t.isa.full, sum
  local place = setmetatable({
    cfg = scores.cfg, softcap = scores.cfg.softcap, origin = at.origin, first = at.key + c * w.lanes,
    index = function(_, _, name) -- of t and w
      local first = t:op("index", w, "first_" .. name, at.key + c * w.lanes)
      return t:op("add", w, name, t:op("iota", w, "lane_" .. name), first)
    end }, { __index = at.reads })
  local function name(i) return ("changed%d_c%d"):format(i, c) end
  for i, row in ipairs(scores.biases) do
    local bias = row.bias(t, w, "bias_" .. name(i), place)
    value = t:op("add", w, name(i), value, bias)
  end
  for i, row in ipairs(scores.changes) do
    local of = name(#scores.biases + i)
    if row.bias then value = t:op("add", w, of, value, row.bias(t, w, "bias_" .. of, place)) end
    if row.change then value = row.change(t, w, of .. (row.bias and "_changed" or ""), place, value) end
  end
  for i, row in ipairs(scores.hides) do
    local of = ("%d_c%d"):format(i, c)
    value = t:op("sel", w, "seen" .. of, row.hides(t, w, "hide" .. of, place), t:op("set", w, "none" .. of, -math.huge),
      value)
  end
  return value
end

-- Prefetches so many rows of a later tile. If the plan says `beside`, it returns a function that fetches a share with
-- each vector of columns, in the order of memory; else it fetches all at once.
local function rows_ahead(K, next, row, keys, part)
  local tensor, columns = K.plan.attend.keys, K.plan.attend.depth
  local function lines(n, from) fetch(K.t, K.plan.cache.stored.bytes, n, next:at(from), "prefetch") end
  if K.plan.attend.step.ahead.beside then
    return function(column, used) lines(keys * used, part * (keys * columns) + column * keys) end
  end
  for r = 0, keys - 1 do lines(columns, row(r) * tensor.row) end
end

-- The products of q[dk] of each head with some keys of a tile. store(c, sums) gets vectors of scores, in which each
-- head has the same number of lanes, one head after the other. row(i): the row of the i-th of these keys, which are
-- part number `part` of the tile.
local function products(K, at, row, store, part)
  local t, plan, heads = K.t, K.plan, K.plan.attend.step.heads
  local w, keys = t.isa.full, plan.attend.step.keys // heads
  local scales = widening.rounds(K, plan.attend.keys) and at.scales
  local acc = {}
  for r = 0, keys - 1 do
    for h = 0, heads - 1 do acc[r * heads + h] = softmax.start_of_sums(t, w, ("acc_r%d_h%d"):format(r, h)) end
  end
  local fetched = plan.attend.step.ahead and rows_ahead(K, at.next, row, keys, part)
  K:vectors("i", plan.attend.depth, function(column, used)
    t:scope(function()
      if fetched then fetched(column, used) end
      local queries = {}
      for h = 0, heads - 1 do
        queries[h] = t:read("load", w, "query_h" .. h, at.q:at(h * at.q_head + column), used)
      end
      for r = 0, keys - 1 do
        local key = widening.value(K, plan.attend.keys, { w = w, used = used }, "key_r" .. r,
          at.k:at(row(r) * plan.attend.keys.row + column), scales and scales:at(row(r)))
        for h = 0, heads - 1 do t:update(acc[r * heads + h], "fma", key, queries[h], acc[r * heads + h]) end
      end
    end)
  end)
  local own = w.lanes // heads -- keys of a head in a vector
  for c = 0, keys // own - 1 do
    t:scope(function()
      local list = {}
      for i = 0, w.lanes - 1 do list[i] = acc[(c * own + i % own) * heads + i // own] end
      store(c, transpose.sums(t, list))
    end)
  end
end

-- The scores of a tile of keys for the heads that are multiplied together. The keys are taken in parts, each of which
-- is multiplied by all these heads at once, so that a row of the cache is read once. Vectors of one part wait where the
-- scores go, until those of all parts can be transposed into vectors with the keys of one head.
local function score_tile(K, p, at)
  local t, plan = K.t, K.plan
  local w, step, heads = t.isa.full, plan.attend.step, plan.attend.step.heads
  local own = w.lanes // heads
  local function place(h, c) return at.to:at(h * step.p_row + at.key + c * w.lanes) end
  local scales_last = at.scales and not widening.rounds(K, plan.attend.keys)
  local function finish(h, c, sum)
    if scales_last then
      sum = t:op("mul", w, "scaled_c" .. c, sum, t:op("load", w, "scales_c" .. c, at.scales:at(c * w.lanes)))
    end
    local of = setmetatable({ reads = of_head(K, p, at.head + h) }, { __index = at })
    t:op("store", w, nil, place(h, c), behind_rows(t, plan.scores, sum, c, of))
  end
  if heads == 1 then
    return products(K, at, function(r) return r end, function(c, sum) finish(0, c, sum) end, 0)
  end
  K:each("part", heads, function(part)
    t:scope(function()
      products(K, at, function(r) return r // own * w.lanes + part * own + r % own end,
        function(c, sum) t:op("store", w, nil, place(part, c), sum) end, part)
    end)
  end)
  for c = 0, step.keys // w.lanes - 1 do
    t:scope(function()
      local parts = {}
      for h = 0, heads - 1 do parts[h] = t:op("load", w, "part_r" .. h, place(h, c)) end
      parts = transpose.blocks(t, parts, "t", own)
      for h = 0, heads - 1 do t:scope(function() finish(h, c, parts[h]) end) end
    end)
  end
end

-- The same by integer products.
local function integer_scores(K, step, p, at, ptrs)
  local t, scores = K.t, K.plan.scores
  words.panel(K, step, { k = at.k, panel = p.panel })
  local function params(list, head)
    for _, name in ipairs { "first", "stop" } do list[#list + 1] = { name, "int", p[name] } end
    if scores.places then list[#list + 1] = { "place", "int", p.place } end
    list[#list + 1] = { "key", "int", at.key }
    score.add_head_params(scores, list, of_head(K, setmetatable({}, { __index = p }), head))
    return list
  end
  words.scores(K, step, { words = { q = p.q, q_scales = p.factors, panel = p.panel }, k_scales = at.scales,
                          to = p.p:at(at.key), next = at.next }, params, function(own, r, c, sum)
    local origin = scores.rises and t:op("index", t.isa.full, ("origin_r%d_c%d"):format(r, c),
      scores.places and own.place or own.stop - 1)
    return behind_rows(t, scores, sum, c, { key = own.key, origin = origin, reads = of_head(K, own, r) })
  end)
end

-- Scores of all heads, in whole tiles from the first key that is seen. The last tile may go beyond the last key that is
-- seen, but never beyond the cache: it begins earlier where fewer keys are left.
local function scores_of(K, step, ptrs)
  local t, plan = K.t, K.plan
  local own = step.words and ptrs.words
  local params = { { "q", "in", own and own.q or ptrs.q }, { "k", "in", ptrs.k }, { "p", "out", ptrs.p },
                   { "first", "int", ptrs.first }, { "stop", "int", ptrs.stop },
                   { "factors", "in", own and own.q_scales }, { "panel", "out", own and own.panel },
                   { "place", "int", plan.scores.places and ptrs.reads.place } }
  score.add_head_params(plan.scores, params, ptrs.reads)
  params[#params + 1] = { "scales", "in", ptrs.k_scales }
  K:part("step_scores", "Scores of the keys that a query sees, for the heads that share them.", params, function(p)
    local keys = plan.attend.keys
    local function first_of(i) return expr.min(p.first + i * step.keys, plan.cfg.seq_kv - step.keys) end
    local tiles = t:int("tiles", expr.ceil_div(p.stop - p.first, step.keys))
    K:each("tile", tiles, function(i)
      local key = t:int("key", first_of(i))
      local later = step.ahead and t:int("later", expr.min(i + step.ahead.tiles, tiles - 1))
      local next = later and t:int("next", first_of(later))
      if step.words then
        return integer_scores(K, step, p, { key = key, k = p.k:at(key * keys.row), scales = p.scales:at(key),
                                            next = next and p.k:at(next * keys.row) })
      end
      K:each("head", plan.attend.share // step.heads, function(g)
        t:scope(function()
          local origin, h = plan.scores.rises
            and t:op("index", t.isa.full, "origin", plan.scores.places and p.place or p.stop - 1), g * step.heads
          score_tile(K, p, { key = key, k = p.k:at(key * keys.row), next = next and p.k:at(next * keys.row),
                             scales = p.scales and p.scales:at(key), q = p.q:at(h * ptrs.q_head), q_head = ptrs.q_head,
                             to = p.p:at(h * step.p_row), head = h, origin = origin })
        end)
      end)
    end)
  end)
end

-- ---- softmax ----

-- Records build(list) for each block of vectors of `count` numbers; `from` is where the numbers begin.
local function blocks_of(K, from, count, build)
  local size = step_of.VECTORS * K.plan.isa.lanes
  K:each("block", expr.ceil_div(count, size), function(b)
    K.t:scope(function()
      local vectors = {}
      for i = 0, step_of.VECTORS - 1 do vectors[i + 1] = from:at(b * size + i * K.plan.isa.lanes) end
      build(vectors)
    end)
  end)
end

-- If the largest score of a head is -inf, a mask may hide all keys; then the maximum becomes zero. known: how many keys
-- it does not hide.
local function without_keys(K, ptrs)
  local params = { { "mask", "in", ptrs.mask }, { "most", "out", ptrs.sums }, { "known", "out", ptrs.test },
                   { "first", "int", ptrs.first }, { "stop", "int", ptrs.stop } }
  K:part("step_hidden", "A maximum of zero for a query from which a mask hides all keys.", params, function(p)
    local t, w = K.t, K.plan.isa.full
    local seen = t:start("zero", w, "seen")
    K:each("key", p.stop - p.first, function(i)
      t:scope(function()
        local out = context.hidden(t, w, p.mask:at(p.first + i))
        t:update(seen, "add", seen, t:op("zero_if", w, "counts", out, t:op("set", w, "one", 1.0)))
      end)
    end)
    local none = t:op("lt", w, "none", seen, t:op("set", w, "half", 0.5))
    t:op("store", w, nil, p.most, t:op("zero_if", w, "top", none, t:op("load", w, "found", p.most)))
    t:op("store", w, nil, p.known, seen)
  end, "cold")
end

-- The weights of one head and their sum, which is taken over vectors first and then over lanes.
local function weights_of(K, step, ptrs)
  local t, scores, w = K.t, K.plan.scores, K.plan.isa.full
  local params = { { "p", "out", ptrs.p }, { "sums", "out", ptrs.sums }, { "first", "int", ptrs.first },
                   { "stop", "int", ptrs.stop }, { "test", "out", ptrs.test } }
  score.add_head_params(scores, params, ptrs.reads)
  K:part("step_weights", "The weights of one query, and their sum.", params, function(p)
    local none = t:op("set", w, "none", -math.huge)
    for i = 0, step_of.VECTORS - 1 do t:op("store", w, nil, p.p:at(p.stop + i * w.lanes), none) end
    local from, count = p.p:at(p.first), p.stop - p.first
    local most = t:start("set", w, "most", -math.huge)
    blocks_of(K, from, count, function(vectors)
      local list = {}
      for i, at in ipairs(vectors) do list[i] = t:op("load", w, "score" .. i - 1, at) end
      t:update(most, "max", joined(t, "max", list, "max"), most)
    end)
    local round = K.plan.attend.scheme.b.round
    local top = transpose.of_lanes(t, "max", most, "most")
    if p.test then
      t:op("store", w, nil, p.sums, top)
      t:op("store", w, nil, p.test, t:op("set", w, "seen", 1.0))
      local above = t:op("lt", w, "above", context.lowest(t, w), top)
      t:unless({ t:op("all", w, "known", above) }, function() without_keys(K, p) end)
      top = t:op("load", w, "largest", p.sums)
    end
    local m = softmax.with_extras(t, w, "most", { scores = scores, reads = p }, top)
    if round then m = weights.whole(t, w, "top", m) end
    local sum = t:start("zero", w, "sum")
    blocks_of(K, from, count, function(vectors)
      local list = {}
      for i, at in ipairs(vectors) do
        local less = t:op("sub", w, "less" .. i - 1, t:op("load", w, "score" .. i - 1, at), m)
        local x = weights.not_far(t, w, i - 1, less)
        list[i] = exp.exp2(t, (round and "exact" or "weight") .. i - 1, x)
        if round then list[i] = round(t, w, "weight" .. i - 1, list[i]) end
        t:op("store", w, nil, at, list[i])
      end
      t:update(sum, "add", sum, joined(t, "add", list, "sum"))
    end)
    local all = transpose.of_lanes(t, "add", sum, "all")
    for i, row in ipairs(scores.extras) do
      local of = "extra" .. i
      local extra = exp.exp2(t, "p_" .. of, t:op("sub", w, "x_" .. of, row.extra(t, w, of, p), m))
      if p.test then
        local none = t:op("lt", w, "none_" .. of, t:op("load", w, "seen_" .. of, p.test), t:op("set", w, "half", 0.5))
        extra = t:op("zero_if", w, "counts_" .. of, none, extra)
      end
      all = t:op("add", w, "sum_" .. of, all, extra)
    end
    t:op("store", w, nil, p.sums, all)
  end)
end

-- ---- attention weights ----

-- The attention weights of one head, for args.probs.
local function probs_of(K, ptrs)
  local t, w = K.t, K.plan.isa.full
  local params = { { "p", "in", ptrs.p }, { "sums", "in", ptrs.sums }, { "probs", "out", ptrs.probs },
                   { "first", "int", ptrs.first }, { "stop", "int", ptrs.stop } }
  K:part("step_probs", "Normalizes and stores the attention weights of a query.", params, function(p)
    local inverse = context.inverse_of(K, w, p.sums)
    local least = probs.least(t, w, "", t:op("load", w, "all", p.sums))
    local first, last = t:op("index", w, "first_key", p.first), t:op("index", w, "last_key", p.stop - 1)
    K:vectors("i", K.plan.cfg.seq_kv, function(at, used)
      t:scope(function()
        local key = t:op("add", w, "key", t:op("iota", w, "lane"), t:op("index", w, "from", at))
        local value = probs.normal(t, w, "_key", t:op("load", w, "weight", p.p:at(at)), inverse, least)
        value = t:op("zero_if", w, "visible", t:op("lt", w, "behind", last, key), value)
        value = t:op("zero_if", w, "seen", t:op("lt", w, "before", key, first), value)
        t:write(w, p.probs:at(at), value, used)
      end)
    end)
  end)
end

-- Zeros for the context and the attention weights of a query that sees no key.
local function clear(K, out, weights)
  local t, w, cfg = K.t, K.plan.isa.full, K.plan.cfg
  local params = { { "out", "out", out.p }, { "probs", "out", weights } }
  K:part("step_none", "The context of a query that sees no key.", params, function(p)
    context.each_vector(K, function(h, at, used)
      context.put(K, p.out:at(h * out.head), at, t:op("zero", w, "zero"), used)
    end)
    if not weights then return end
    K:each("head", K.plan.attend.share, function(h)
      K:vectors("i", cfg.seq_kv, function(at, used)
        t:scope(function()
          t:write(w, p.probs:at(h * (cfg.seq * cfg.seq_kv) + at), t:op("zero", w, "zero"), used)
        end)
      end)
    end)
  end)
end

-- ---- all of it ----

-- ptrs:
--   q, q_head, k, v   of these heads; q_head: numbers from head to head
--   p, sums, o        weights, their sums and the context, in the workspace
--   out               { p, head }: where the context goes
--   reads             what the rows of gen/score read, with the query and its position
--   probs             where the attention weights of the query go, if they are wanted
--   test, seen        with a mask: a vector, and a block of values
function M.heads(K, ptrs)
  local t, step, scores = K.t, K.plan.attend.step, K.plan.scores
  local first, last = score.interval(scores, ptrs.reads)
  ptrs.first, ptrs.stop = t:int("first", first), t:int("stop", last + 1)
  t:when(ptrs.first, ptrs.stop, function()
    K:of("scores", function()
      if step.words then words.queries(K, step, ptrs) end
      scores_of(K, step, ptrs)
      K:each("head", K.plan.attend.share, function(h)
        weights_of(K, step, { p = ptrs.p:at(h * step.p_row), sums = ptrs.sums:at(h * K.plan.isa.lanes),
                              first = ptrs.first, stop = ptrs.stop, test = ptrs.test,
                              reads = of_head(K, ptrs.reads, h) })
      end)
    end)
    K:of("context", function()
      context.of_heads(K, step, ptrs)
      if #scores.hides > 0 and not step.words then context.without_hidden(K, step, ptrs) end
    end)
    K:each("head", ptrs.probs and K.plan.attend.share or 0, function(h)
      probs_of(K, { p = ptrs.p:at(h * step.p_row), sums = ptrs.sums:at(h * K.plan.isa.lanes), first = ptrs.first,
                    stop = ptrs.stop, probs = ptrs.probs:at(h * (K.plan.cfg.seq * K.plan.cfg.seq_kv)) })
    end)
  end, function() clear(K, ptrs.out, ptrs.probs) end)
end

return M
