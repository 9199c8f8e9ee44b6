-- The heads that share keys and values, for one query: scores, softmax and context, where a plan has steps (step.lua).
--
-- All keys that the query sees, `first` to stop - 1, have a weight in memory, and the maximum is that of all of them
-- before the first weight is made. So nothing is done again, and no other key or value is read by a sum.

local epilogue = require "emit.epilogue"
local exp = require "emit.exp"
local expr = require "expr"
local gemm = require "emit.gemm"
local product_of = require "emit.product"
local score = require "score.init"
local softmax = require "emit.softmax"
local step_of = require "step"
local transpose = require "emit.transpose"
local widening = require "emit.widening"

local M = {}

-- In pairs, so that no chain is long.
local function joined(t, op, list, name)
  local w, apart = t.isa.full, 1
  while apart < #list do
    for i = 1, #list - apart, 2 * apart do
      list[i] = t:op(op, w, ("%s%d_%d"):format(name, 2 * apart, i - 1), list[i], list[i + apart])
    end
    apart = 2 * apart
  end
  return list[1]
end

-- What the rows of gen/score read for head number h of those that share keys.
local function of_head(K, p, h)
  return score.of_head(K.plan.scores, p, function(name) return p[name]:at(h) end)
end

-- ---- scores ----

-- A vector of scores behind what the rows of gen/score do to it; c: its number in the tile.
local function behind_rows(t, scores, sum, c, at)
  local w, value = t.isa.full, sum
  local place = setmetatable({
    cfg = scores.cfg, softcap = scores.cfg.softcap, origin = at.origin,
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
  return value
end

-- The scores of a tile of keys for one head, q[dk]: each is the sum of the lanes of a vector of products.
local function score_tile(K, p, at)
  local t, plan = K.t, K.plan
  local w, lanes, attend = t.isa.full, t.isa.lanes, plan.attend
  local acc = {}
  for r = 0, plan.step.keys - 1 do acc[r] = t:start("zero", w, "acc_r" .. r) end
  K:vectors("i", attend.depth, function(column, used)
    t:block(function()
      local q = t:read("load", w, "query", at.q:at(column), used)
      for r = 0, plan.step.keys - 1 do
        local row = at.k:at(r * at.row + column)
        t:update(acc[r], "fma", t:read("load", w, "key_r" .. r, row, used), q, acc[r])
      end
    end)
  end)
  for c = 0, plan.step.keys // lanes - 1 do
    t:block(function()
      local list = table.move(acc, c * lanes, (c + 1) * lanes - 1, 0, {})
      t:op("store", w, nil, at.to:at(at.key + c * lanes), behind_rows(t, plan.scores, transpose.sums(t, list), c, at))
    end)
  end
end

-- The parameters of what widens rows of a cache.
local function add_wide(params, ptrs, scales)
  if ptrs.wide then params[#params + 1] = { "wide", "out", ptrs.wide } end
  if scales then params[#params + 1] = { "scales", "in", scales } end
end

-- Scores of all heads. The last tile ends with the last key that is seen, or has others behind it, but none behind
-- those of the cache: it starts earlier where there are not enough.
local function scores_of(K, step, ptrs)
  local t, plan = K.t, K.plan
  local params = { { "q", "in", ptrs.q }, { "k", "in", ptrs.k }, { "p", "out", ptrs.p },
                   { "first", "int", ptrs.first }, { "stop", "int", ptrs.stop } }
  if plan.scores.places then params[#params + 1] = { "place", "int", ptrs.reads.place } end
  score.add_head_params(plan.scores, params, ptrs.reads)
  add_wide(params, ptrs, ptrs.k_scales)
  K:part("step_scores", "Scores of the keys that a query sees, of the heads that share these.", params, function(p)
    local function tile(key, k, row)
      K:each("head", plan.attend.share, function(h)
        t:block(function()
          local origin = #plan.scores.rises > 0
            and t:op("index", t.isa.full, "origin", plan.scores.places and p.place or p.stop - 1)
          score_tile(K, p, { key = key, k = k, row = row, q = p.q:at(h * ptrs.q_head), to = p.p:at(h * step.p_row),
                             origin = origin, reads = of_head(K, p, h) })
        end)
      end)
    end
    local last, wide, row = plan.cfg.seq_kv, step.wide, plan.attend.keys.row
    if not wide then
      return K:each("tile", expr.ceil_div(p.stop - p.first, step.keys), function(i)
        local key = t:int("key", expr.min(p.first + i * step.keys, last - step.keys))
        tile(key, p.k:at(key * row), row)
      end)
    end
    K:each("block", expr.ceil_div(p.stop - p.first, wide.keys), function(b)
      local key = t:int("block_key", expr.min(p.first + b * wide.keys, last - wide.keys))
      local rows = t:int("rows", expr.min(wide.keys, p.stop - key))
      widening.rows(K, "keys", plan.attend.keys, plan.attend.depth, { x = p.k:at(key * row), wide = p.wide,
        row = wide.key_row, rows = rows, last = p.stop - key - 1, ahead = wide.keys,
        scales = p.scales and p.scales:at(key) })
      K:each("tile", expr.ceil_div(rows, step.keys), function(i)
        tile(t:int("key", key + i * step.keys), p.wide:at(i * (step.keys * wide.key_row)), wide.key_row)
      end)
    end)
  end)
end

-- ---- softmax ----

-- build(i) for each vector of so many, in blocks; `from` is where it starts.
local function blocks_of(K, from, count, build)
  local size = step_of.VECTORS * K.plan.isa.lanes
  K:each("block", expr.ceil_div(count, size), function(b)
    K.t:block(function()
      local vectors = {}
      for i = 0, step_of.VECTORS - 1 do vectors[i + 1] = from:at(b * size + i * K.plan.isa.lanes) end
      build(vectors)
    end)
  end)
end

-- The weights of one head, and their sum: of vectors, then of lanes.
local function weights_of(K, step, ptrs)
  local t, scores, w = K.t, K.plan.scores, K.plan.isa.full
  local params = { { "p", "out", ptrs.p }, { "sums", "out", ptrs.sums }, { "first", "int", ptrs.first },
                   { "stop", "int", ptrs.stop } }
  score.add_head_params(scores, params, ptrs.reads)
  K:part("step_weights", "Weights of one query and their sum.", params, function(p)
    local none = t:op("set", w, "none", -math.huge)
    for i = 0, step_of.VECTORS - 1 do t:op("store", w, nil, p.p:at(p.stop + i * w.lanes), none) end
    local from, count = p.p:at(p.first), p.stop - p.first
    local most = t:start("set", w, "most", -math.huge)
    blocks_of(K, from, count, function(vectors)
      local list = {}
      for i, at in ipairs(vectors) do list[i] = t:op("load", w, "score" .. i - 1, at) end
      t:update(most, "max", joined(t, "max", list, "max"), most)
    end)
    local round = K.plan.attend_product.b.round
    local top = transpose.of_lanes(t, "max", most, "most")
    local m = softmax.with_extras(t, w, "most", { scores = scores, reads = p }, top)
    if round then m = softmax.whole(t, w, "top", m) end
    local sum = t:start("zero", w, "sum")
    blocks_of(K, from, count, function(vectors)
      local list = {}
      for i, at in ipairs(vectors) do
        local x = t:op("sub", w, "less" .. i - 1, t:op("load", w, "score" .. i - 1, at), m)
        list[i] = exp.exp2(t, (round and "exact" or "weight") .. i - 1, x)
        if round then list[i] = round(t, w, "weight" .. i - 1, list[i]) end
        t:op("store", w, nil, at, list[i])
      end
      t:update(sum, "add", sum, joined(t, "add", list, "sum"))
    end)
    local all = transpose.of_lanes(t, "add", sum, "all")
    for i, row in ipairs(scores.extras) do
      local of = "extra" .. i
      local x = t:op("sub", w, "x_" .. of, row.extra(t, w, of, p), m)
      all = t:op("add", w, "sum_" .. of, all, exp.exp2(t, "p_" .. of, x))
    end
    t:op("store", w, nil, p.sums, all)
  end)
end

-- ---- context ----

-- Some rows of O += P V, over a literal number of keys or a run-time `count` of them.
local function context_tile(K, step, tile)
  local t, block, run = K.t, tile.block, tile.run
  local literal = expr.is_const(tile.keys)
  local params = { { "p", "in", tile.p }, { "v", "in", tile.v }, { "o", "out", tile.o } }
  if not literal then params[4] = { "keys", "int", tile.keys } end
  K:part(("step_context_%dx%d%s"):format(run.size, block.used, literal and "_k" .. tile.keys or ""),
    ("%d row%s of the context of %d columns, added to what is there."):format(run.size, run.size > 1 and "s" or "",
      block.used), params, function(p)
    local unroll, chains = 1, 1
    if literal then unroll, chains = K:summing(K.plan.attend_product, run.size, #block.vecs, tile.keys) end
    local inner = {
      product = K.plan.attend_product, rows = run.size, vecs = block.vecs,
      steps = literal and tile.keys, blocks = p.keys,
      unroll = unroll, chains = chains, a = { p = p.p, row = step.p_row, step = 1 },
      b = { p = p.v, step = step.wide and step.wide.value_row or K.plan.attend.values.row }, init = gemm.from_zero(t),
    }
    local target = { p = p.o, row = step.product.ld }
    epilogue.run(inner, gemm.tile(t, inner), { epilogue.add(t, target), epilogue.store(t, target) })
  end)
end

-- The weights of keys from `from` on times their values, for all heads.
local function context_block(K, step, ptrs, from, keys)
  local wide, values = step.wide, K.plan.attend.values
  local v = wide and ptrs.wide or ptrs.v:at(from * values.row)
  if wide then
    widening.rows(K, "values", values, K.plan.attend.breadth, { x = ptrs.v:at(from * values.row), wide = v,
      row = wide.value_row, rows = keys, last = ptrs.stop - from - 1, ahead = step.block,
      scales = ptrs.scales and ptrs.scales:at(from) })
  end
  for _, run in ipairs(step.product.runs[1]) do
    K:each("tile", run.count, function(i)
      local row = i * run.size + run.at
      product_of.each_panel(K, step.product, function(block, j)
        local column = j * block.width + block.at
        context_tile(K, step, {
          run = run, block = block, keys = keys, p = ptrs.p:at(row * step.p_row + from),
          v = v:at(column), o = ptrs.o:at(row * step.product.ld + column),
        })
      end)
    end)
  end
end

-- build(row, at, used, w) for the vectors of the context of all heads, `at` their first column.
local function each_vector(K, build)
  local w = K.plan.isa.full
  K:each("head", K.plan.attend.share, function(h)
    K:vectors("i", K.plan.attend.breadth, function(at, used)
      K.t:block(function() build(h, at, used, w) end)
    end)
  end)
end

local function context_of(K, step, ptrs)
  local t = K.t
  local params = { { "v", "in", ptrs.v }, { "p", "in", ptrs.p }, { "sums", "in", ptrs.sums }, { "o", "out", ptrs.o },
                   { "out", "out", ptrs.out.p }, { "first", "int", ptrs.first }, { "stop", "int", ptrs.stop } }
  add_wide(params, ptrs, ptrs.v_scales)
  K:part("step_context", "The context of a query, of the heads that share values.", params, function(p)
    each_vector(K, function(h, at, _, w)
      t:op("store", w, nil, p.o:at(h * step.product.ld + at), t:op("zero", w, "zero"))
    end)
    local blocks = K.plan.cfg.seq_kv >= step.block and t:int("blocks", expr.div(p.stop - p.first, step.block)) or 0
    K:each("block", blocks, function(b) context_block(K, step, p, p.first + b * step.block, step.block) end)
    local from = t:int("from", p.first + blocks * step.block)
    t:when(from, p.stop, function() context_block(K, step, p, from, t:int("keys", p.stop - from)) end)
    each_vector(K, function(h, at, used, w)
      local sum = t:op("load", w, "sum", p.sums:at(h * w.lanes))
      local inverse = t:op("div", w, "inverse", t:op("set", w, "one", 1.0), sum)
      local value = t:op("load", w, "context", p.o:at(h * step.product.ld + at))
      t:write(w, p.out:at(h * ptrs.out.head + at), t:op("mul", w, "o_final", value, inverse), used)
    end)
  end)
end

-- The context of a row that sees no key.
local function clear(K, out)
  K:part("step_none", "The context of a query that sees no key.", { { "out", "out", out.p } }, function(p)
    each_vector(K, function(h, at, used, w)
      K.t:write(w, p.out:at(h * out.head + at), K.t:op("zero", w, "zero"), used)
    end)
  end)
end

-- ---- all of it ----

-- ptrs: q, q_head (numbers from head to head), k, v, those of the heads; p, sums and o, of the workspace; out { p,
-- head }, where the context goes; reads, what the rows of gen/score read, with the query and its place.
function M.heads(K, ptrs)
  local t, step, scores = K.t, K.plan.step, K.plan.scores
  local first, last = score.interval(scores, ptrs.reads)
  ptrs.first, ptrs.stop = t:int("first", first), t:int("stop", last + 1)
  t:when(ptrs.first, ptrs.stop, function()
    K:of("scores", function()
      scores_of(K, step, ptrs)
      K:each("head", K.plan.attend.share, function(h)
        weights_of(K, step, { p = ptrs.p:at(h * step.p_row), sums = ptrs.sums:at(h * K.plan.isa.lanes),
                              first = ptrs.first, stop = ptrs.stop, reads = of_head(K, ptrs.reads, h) })
      end)
    end)
    K:of("context", function() context_of(K, step, ptrs) end)
  end, function() clear(K, ptrs.out) end)
end

return M
