-- Attention of one group of queries: scores, softmax and context, head by head.

local epilogue = require "emit.epilogue"
local expr = require "expr"
local gemm = require "emit.gemm"
local probs = require "emit.probs"
local product_of = require "emit.product"
local softmax = require "emit.softmax"
local stat = require "emit.stats".at
local transpose = require "emit.transpose"
local balanced = require "tiles".balanced

-- One tile of scores: `rows` keys by the queries of the group. key: index of its first key, or nil
-- where every lane sees every key of the tile.
local function score_tile(K, group, rows, kind, ptrs, k_at, p_at, key)
  local t, plan, depth = K.t, K.plan, K.plan.fold.depth
  local words = { first = "_first", next = "", again = "_again", maximum = "_maximum" }
  local params = {
    { "k", "in", ptrs.k:at(k_at) }, { "q", "in", ptrs.q },
    { "stats", "out", ptrs.stats },
  }
  if kind ~= "maximum" then params[#params + 1] = { "p", "out", ptrs.p:at(p_at) } end
  if key then params[#params + 1] = { "key", "int", key } end
  K:part(("scores%s%s_%dx%s"):format(words[kind], key and "_masked" or "", rows, group.name),
    ({ first = "Scores of the first keys: their maximum, the weights and their sum.",
       next = "Weights exp2(score - maximum) of some keys, added to the sum.",
       again = "Weights of the first keys with a known maximum.",
       maximum = "Raises the maximum by the scores of some keys." })[kind], params, function(p)
    local unroll, chains = K:summing(rows, #group.vecs, depth)
    softmax.tile(t, group, {
      product = plan.product, rows = rows, steps = depth, test = plan.fold.test_scores, keyless = plan.fold.keyless,
      unroll = unroll, chains = chains,
      a = { p = p.k, row = plan.keys.row, step = 1 }, b = { p = p.q, step = group.width },
    }, kind, { out = p.p, stats = p.stats }, key and p.key)
  end)
end

-- The largest divisor of n that suits a block of K steps.
local function divisor(n)
  for d = 8, 1, -1 do
    if n % d == 0 then return d end
  end
end

-- O^T[dv][width] from the weights of a block of keys. steps: literal number of keys, or `tiles`, a
-- run-time number of key tiles. add: to what is there. final: divide by the sum, test for finite.
-- filter: key of the first weight, to keep values of hidden keys out (they may be NaN).
local function context(K, group, ptrs, v_at, p_at, steps, tiles, add, final, filter)
  local t, plan = K.t, K.plan
  -- The filter needs registers, and time is no matter there: small tiles.
  for _, run in ipairs(filter and balanced(plan.fold.breadth, 2) or group.context) do
    K:each("tile", run.count, function(i)
      local row = i * run.size + run.at
      local params = {
        { "v", "in", ptrs.v:at(v_at + row) }, { "p", "in", ptrs.p:at(p_at) },
        { "stats", "out", ptrs.stats }, { "o", "out", ptrs.o:at(row * group.width) },
      }
      if tiles then params[#params + 1] = { "tiles", "int", tiles } end
      if filter then params[#params + 1] = { "key", "int", filter } end
      local name = ("context_%dx%s%s%s%s%s"):format(run.size, group.name,
        tiles and "" or "_k" .. steps, add and "_add" or "", final and "_final" or "",
        filter and "_masked" or "")
      K:part(name, ("%d rows of O^T%s%s."):format(run.size,
        add and ", added to what is there" or "", final and ", divided by the sum" or ""), params,
        function(p)
        local unroll, blocks
        if tiles then -- the K loop runs over tiles of keys, in whole blocks
          unroll = filter and 1 or divisor(group.keys.rows)
          blocks = p.tiles * (group.keys.rows // unroll)
        end
        local tile = {
          product = plan.product, rows = run.size, vecs = group.vecs, steps = steps, blocks = blocks,
          unroll = unroll or K:unroll(steps, run.size * #group.vecs),
          a = { p = p.v, row = 1, step = plan.values.row }, b = { p = p.p, step = group.width },
          init = gemm.from_zero(t),
        }
        if p.key then
          tile.filter = function(c, w, k, value, name_of)
            local limit = t:op("load", w, "limit_" .. name_of, stat(group, p.stats, "limit", c))
            local index = t:op("index", w, "key_" .. name_of, p.key + k)
            local hidden = t:op("lt", w, "hide_" .. name_of, limit, index)
            return t:op("zero_if", w, "seen_" .. name_of, hidden, value)
          end
        end
        local acc = gemm.tile(t, tile)
        local function row(name)
          return function(c) return stat(group, p.stats, name, c) end
        end
        local function inverse(c, v) return t:op("load", v.w, ("inverse_c%d"):format(c - 1), row "inverse"(c)) end
        local target, steps = { p = p.o, row = group.width }, {}
        if add then steps[#steps + 1] = epilogue.add(t, target) end
        if final then steps[#steps + 1] = epilogue.scale(t, "o", inverse) end
        steps[#steps + 1] = epilogue.store(t, target)
        if final then steps[#steps + 1] = epilogue.finite(t, row "test") end
        epilogue.run(tile, acc, steps)
      end)
    end)
  end
end

local function zero_stat(K, group, stats, row)
  local t = K.t
  for c, v in ipairs(group.vecs) do
    local zero = t:op("zero", v.w, ("%s_zero_c%d"):format(row, c - 1))
    t:op("store", v.w, nil, stat(group, stats, row, c), zero)
  end
end

local function invert_sums(K, group, stats)
  local t = K.t
  t:block(function()
    for c, v in ipairs(group.vecs) do
      local one = t:op("set", v.w, ("one_c%d"):format(c - 1), 1.0)
      local sum = t:op("load", v.w, ("sum_c%d"):format(c - 1), stat(group, stats, "sum", c))
      local inverse = t:op("div", v.w, ("inverse_c%d"):format(c - 1), one, sum)
      if K.plan.fold.keyless then -- the sum of a row that sees a key is 1 at least
        local half = t:op("set", v.w, ("half_c%d"):format(c - 1), 0.5)
        local none = t:op("lt", v.w, ("none_c%d"):format(c - 1), sum, half)
        inverse = t:op("zero_if", v.w, ("scale_c%d"):format(c - 1), none, inverse)
      end
      t:op("store", v.w, nil, stat(group, stats, "inverse", c), inverse)
    end
    zero_stat(K, group, stats, "test")
  end)
end

-- Scores, softmax and context of one head for one group. safe: the maxima are in the statistics
-- already, and values of hidden keys are kept out of the products.
-- `open` tiles are seen by all lanes, `tiles` are seen by some; both nil without a mask.
local function head_pass(K, group, ptrs, open, tiles, safe)
  local t, plan = K.t, K.plan
  local keys, m = group.keys, plan.cfg.seq_kv
  local rows, block_keys = keys.rows, keys.block_tiles * keys.rows
  local k_tile, p_tile = rows * plan.keys.row, rows * group.width
  local p_block = plan.cfg.probs and block_keys * group.width or 0
  local filter = safe and plan.masked
  local first = safe and "again" or "first"

  if not open then
    for b = 0, keys.blocks - 1 do
      -- First, middle and last block differ; the middle ones are a loop.
      local middle = b > 0 and b < keys.blocks - 1
      if not middle or b == 1 then
        K:each("block", middle and keys.blocks - 2 or 1, function(j)
          local block = middle and j + 1 or b
          local last = b == keys.blocks - 1
          local block_rows = last and m - b * block_keys or block_keys
          local from = 0
          if b == 0 then
            score_tile(K, group, math.min(rows, block_rows), first, ptrs, 0, 0)
            from = 1
          end
          local full = block_rows // rows
          K:each("tile", full - from, function(i)
            score_tile(K, group, rows, "next", ptrs,
              block * (block_keys * plan.keys.row) + (i + from) * k_tile,
              block * p_block + (i + from) * p_tile)
          end)
          if block_rows % rows > 0 and full >= from then
            score_tile(K, group, block_rows % rows, "next", ptrs,
              block * (block_keys * plan.keys.row) + full * k_tile, block * p_block + full * p_tile)
          end
          if last then invert_sums(K, group, ptrs.stats) end
          context(K, group, ptrs, block * (block_keys * plan.values.row), block * p_block, block_rows, nil,
            b > 0, last, nil)
        end)
      end
    end
    return
  end

  local one_block = keys.blocks == 1
  if not one_block then
    K:each("row", plan.fold.breadth, function(r)
      for c, v in ipairs(group.vecs) do
        t:block(function()
          t:op("store", v.w, nil, ptrs.o:at(r * group.width + (c - 1) * group.lanes),
            t:op("zero", v.w, "zero_c" .. c - 1))
        end)
      end
    end)
  end
  t:when(0, open, function() score_tile(K, group, rows, first, ptrs, 0, 0) end,
    function() score_tile(K, group, rows, first, ptrs, 0, 0, 0) end)
  K:each("block", one_block and 1 or expr.ceil_div(tiles, keys.block_tiles), function(b)
    local start = t:int("start", expr.max(b * keys.block_tiles, 1))
    local finish = t:int("finish", expr.min(tiles, b * keys.block_tiles + keys.block_tiles))
    local opened = t:int("opened", expr.min(open, finish))
    local bound = t:int("bound", expr.max(start, opened))
    local p_base = b * (p_block - keys.block_tiles * p_tile)
    if plan.cfg.probs then p_base = 0 end
    K:each("tile", bound - start, function(i)
      local tile = i + start
      score_tile(K, group, rows, "next", ptrs, tile * k_tile, tile * p_tile + p_base)
    end)
    K:each("tile", finish - bound, function(i)
      local tile = i + bound
      score_tile(K, group, rows, "next", ptrs, tile * k_tile, tile * p_tile + p_base, tile * rows)
    end)
    if one_block then invert_sums(K, group, ptrs.stats) end
    local used = finish - b * keys.block_tiles
    local steps = expr.is_const(used) and used * rows or nil
    context(K, group, ptrs, b * (block_keys * plan.values.row), b * p_block, steps,
      not steps and used or nil, not one_block, one_block, filter and b * block_keys)
  end)
  if not one_block then
    invert_sums(K, group, ptrs.stats)
    context(K, group, ptrs, 0, 0, 0, nil, true, true, nil)
  end
end

-- Does a head again with the true maximum: where a sum overflowed, and where NaN or Inf were met.
-- Lanes whose sum is good keep their maximum, and so get the same bits as before. `tiles` is nil
-- without a mask; with one, all tiles go the masked way, which is one copy of the code less.
local function head_again(K, group, ptrs, tiles)
  local params = {
    { "q", "in", ptrs.q }, { "k", "in", ptrs.k }, { "v", "in", ptrs.v }, { "p", "out", ptrs.p },
    { "stats", "out", ptrs.stats }, { "o", "out", ptrs.o },
  }
  if tiles then params[#params + 1] = { "tiles", "int", tiles } end
  K:part("again_" .. group.name,
    "The same head with the true maximum: for sums that overflowed, and for NaN and Inf.", params,
    function(p)
    local t, keys, plan = K.t, group.keys, K.plan
    local function own(row, c) return stat(group, p.stats, row, c) end
    t:block(function()
      for c, v in ipairs(group.vecs) do
        local none = t:op("set", v.w, ("none_c%d"):format(c - 1), math.huge)
        t:op("store", v.w, nil, own("kept", c),
          t:op("load", v.w, ("kept_c%d"):format(c - 1), own("negmax", c)))
        t:op("store", v.w, nil, own("negmax", c), none)
      end
    end)
    local rows, k_tile = keys.rows, keys.rows * plan.keys.row
    local full = plan.cfg.seq_kv // rows
    K:each("tile", p.tiles or full, function(i)
      score_tile(K, group, rows, "maximum", p, i * k_tile, 0, p.tiles and i * rows)
    end)
    if not p.tiles and keys.rest > 0 then
      score_tile(K, group, keys.rest, "maximum", p, full * k_tile, 0)
    end
    t:block(function()
      for c, v in ipairs(group.vecs) do
        local function load(row) return t:op("load", v.w, ("%s_c%d"):format(row, c - 1), own(row, c)) end
        local most = t:op("set", v.w, ("most_c%d"):format(c - 1), softmax.accepted)
        local good = t:op("lt", v.w, ("good_c%d"):format(c - 1), load "sum", most)
        t:op("store", v.w, nil, own("negmax", c),
          t:op("sel", v.w, ("m_c%d"):format(c - 1), good, load "kept", load "negmax"))
      end
    end)
    head_pass(K, group, p, p.tiles and 0, p.tiles, true)
  end, "cold")
end

-- After an attempt: runs `build` unless all sums are below the limit and all results finite.
-- build gets a function that marks the bad lanes by an infinite sum.
local function unless_good(K, group, stats, attempt, build)
  local t = K.t
  t:block(function()
    local both, below, accepted = {}, {}, {}
    for c, v in ipairs(group.vecs) do
      local function name(word) return ("%s%d_c%d"):format(word, attempt, c - 1) end
      local sum = t:op("load", v.w, name "sum", stat(group, stats, "sum", c))
      local test = t:op("load", v.w, name "test", stat(group, stats, "test", c))
      both[c] = t:op("add", v.w, name "both", sum, test)
      below[c] = t:op("lt", v.w, name "below", both[c], t:op("set", v.w, name "most", softmax.accepted))
      accepted[c] = t:op("all", v.w, name "good", below[c])
    end
    t:unless(accepted, function()
      build(function()
        for c, v in ipairs(group.vecs) do
          local none = t:op("set", v.w, ("none_c%d"):format(c - 1), math.huge)
          t:op("store", v.w, nil, stat(group, stats, "sum", c),
            t:op("sel", v.w, ("mark_c%d"):format(c - 1), below[c], both[c], none))
        end
      end)
    end)
  end)
end

-- Checks a head, and does it again where it must. Behind a mask, NaN may have come from values that
-- the lane does not see: a second attempt keeps these out, and each sum that was good its maximum.
-- If a lane is not finite then either, products of a kept maximum may have overflowed: the third
-- attempt has true maxima there.
local function check_head(K, group, ptrs, tiles)
  unless_good(K, group, ptrs.stats, 1, function(mark)
    if not K.plan.masked then mark() end
    head_again(K, group, ptrs, tiles)
    if not K.plan.masked then return end
    unless_good(K, group, ptrs.stats, 2, function(mark_again)
      mark_again()
      head_again(K, group, ptrs, tiles)
    end)
  end)
end

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
  if cfg.causal then params[#params + 1] = { "q0", "int", a.q0 } end
  if cfg.kv_len then params[#params + 1] = { "len", "int", a.len } end
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

    local open, tiles
    if plan.masked then
      -- Lane i of the group sees the keys 0 .. limit[i].
      local seen = cfg.seq_kv
      if cfg.kv_len then seen = p.len end
      local rows = group.keys.rows
      open, tiles = expr.div(seen, rows), expr.ceil_div(seen, rows)
      if K.full and cfg.kv_len then open, tiles = 0, group.keys.tiles end
      if cfg.causal then
        open = expr.min(open, expr.div(p.q0 + 1, rows))
        tiles = expr.min(tiles, expr.ceil_div(p.q0 + group.used, rows))
      end
      open, tiles = t:int("open", open), t:int("tiles", tiles)
      t:block(function()
        for c, v in ipairs(group.vecs) do
          local limit = t:op("index", v.w, ("last_c%d"):format(c - 1), seen - 1)
          if cfg.causal then
            local lane = t:op("iota", v.w, ("lane_c%d"):format(c - 1))
            local first = t:op("index", v.w, ("first_c%d"):format(c - 1), p.q0 + (c - 1) * group.lanes)
            local own = t:op("add", v.w, ("own_c%d"):format(c - 1), lane, first)
            limit = t:op("min", v.w, ("limit_c%d"):format(c - 1), own, limit)
          end
          t:op("store", v.w, nil, stat(group, stats, "limit", c), limit)
        end
      end)
    end

    K:each("head", plan.hb, function(i)
      local ptrs = {
        q = q and q:at(i * (plan.fold.query * group.width)), p = p.scratch:at(plan.scratch.p), stats = stats,
        k = p.keys:at(i * plan.keys.head), v = p.values:at(i * plan.values.head),
        o = p.o:at(i * (plan.fold.out * group.width)),
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
      head_pass(K, group, ptrs, open, tiles, false)
      check_head(K, group, ptrs, tiles)
      if plan.vc then apply("value_context", plan.vc, "wv", ptrs.o, nil, o) end
      if cfg.probs then
        ptrs.probs = p.probs:at(i * (cfg.seq * cfg.seq_kv))
        probs.write(K, group, ptrs, tiles)
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
    q0 = q0, len = place.len,
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
