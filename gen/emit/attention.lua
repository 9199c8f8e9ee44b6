-- The phases of multi-head attention as tape functions, and the order in which a run calls them.

local expr = require "expr"
local tape = require "tape"
local gemm = require "emit.gemm"
local softmax = require "emit.softmax"
local transpose = require "emit.transpose"

local M = {}

local ctype = { ["in"] = "const float *", out = "float *", int = "ptrdiff_t" }

-- Records `build` as a function of its own and calls it; straight in place at unroll level full,
-- unless `kind` says: "whole" is a function with straight code inside, "cold" one with loops.
-- params: { name, "in" | "out" | "int", value } each; build gets the values by name.
local function part(K, name, doc, params, build, kind)
  local t, values = K.t, {}
  if K.full and not kind then
    for _, p in ipairs(params) do values[p[1]] = p[3] end
    t:block(function()
      t:note(name)
      build(values)
    end)
    return
  end
  local list, args = {}, {}
  for i, p in ipairs(params) do
    list[i] = { kind = ctype[p[2]], name = p[1] }
    args[i] = p[3]
    values[p[1]] = p[2] == "int" and expr.var(p[1]) or tape.pointer(p[1])
  end
  local fn = t:define({ name = name, doc = doc, params = list, attr = "__attribute__((noinline))" },
    function()
      local full = K.full
      K.full = full and kind == "whole"
      build(values)
      K.full = full
    end)
  t:call(fn, args)
end

-- build(i) for i = 0 .. count-1: a loop, or straight when there is one round or at level full.
local function each(K, var, count, build)
  if expr.is_const(count) and (count <= 1 or K.full) then
    for i = 0, count - 1 do build(i) end
  elseif not expr.is_const(count) or count > 0 then
    K.t:loop(var, count, build)
  end
end

-- K steps per loop iteration of a tile: all of them at the levels k and full, and where the whole
-- sum is short enough that straight-line code pays.
local function unroll(K, steps, accumulators)
  local level = K.plan.cfg.unroll
  if level == "k" or K.full then return steps end
  if level == "auto" and steps <= 32 and steps * accumulators <= 400 then return steps end
  return K.plan.k_unroll
end

-- The chunks of a long sum: run(mode, k0, steps), mode "only", or "first" and then "next".
local function in_chunks(K, chunks, run)
  if chunks.count == 1 then return run("only", 0, chunks.last) end
  run("first", 0, chunks.size)
  each(K, "chunk", chunks.count - 2, function(i) run("next", (i + 1) * chunks.size, chunks.size) end)
  run("next", (chunks.count - 1) * chunks.size, chunks.last)
end

local suffix = { only = "", first = "", next = "_add" }

-- X[q][d_model] of one group -> XT[d_model][width], zeros in the lanes without a query.
local function transpose_group(K, group, x, xt)
  local t, cfg, isa = K.t, K.plan.cfg, K.plan.isa
  local lanes, d = isa.lanes, cfg.d_model
  part(K, "transpose_" .. group.name,
    ("XT[%d][%d] from %d rows of X[..][%d]."):format(d, group.width, group.used, d),
    { { "x", "in", x }, { "xt", "out", xt } }, function(p)
    local function square(column, columns)
      for c, v in ipairs(group.vecs) do
        local rows = {}
        for r = 0, lanes - 1 do
          local name = ("x_r%d_c%d"):format(r, c - 1)
          local at = p.x:at(((c - 1) * lanes + r) * d + column)
          if r >= v.used then
            rows[r] = t:op("zero", isa.full, name)
          elseif columns < lanes then
            rows[r] = t:op("load_n", isa.full, name, at, columns)
          else
            rows[r] = t:op("load", isa.full, name, at)
          end
        end
        local out = transpose.square(t, rows, ("t_c%d_"):format(c - 1))
        for j = 0, columns - 1 do
          t:op("store", isa.full, nil, p.xt:at((column + j) * group.width + (c - 1) * lanes), out[j])
        end
      end
    end
    each(K, "block", d // lanes, function(i) K.t:block(function() square(i * lanes, lanes) end) end)
    if d % lanes > 0 then
      K.t:block(function() square(d - d % lanes, d % lanes) end)
    end
  end)
end

-- Runs of tiles of a product with vectors over columns. Rows of A are `a_row` floats apart, its K
-- steps `a_step`; run-time `len` (or nil) bounds the rows.
local function column_product(K, label, product, chunks, a, panels, bias, out, len)
  local t = K.t
  in_chunks(K, chunks, function(mode, k0, steps)
    local panel_at = 0
    for _, block in ipairs(product.blocks) do
      each(K, "panel", block.count, function(j)
        local panel = panels:at(j * (block.width * chunks.total) + (panel_at + k0 * block.width))
        for _, run in ipairs(product.row_runs) do
          local count = run.count
          if len and not K.full then
            count = expr.min(count, expr.ceil_div(len - run.at, run.size))
          end
          each(K, "tile", count, function(i)
            local row = i * run.size + run.at
            local column = j * block.width + block.at
            local name = ("%s_%dx%d_k%d%s"):format(label, run.size, block.used, steps, suffix[mode])
            part(K, name, ("A tile of %d rows and %d columns, %d K steps%s."):format(run.size,
              block.used, steps, mode == "next" and ", added to what is there" or ""), {
              { "a", "in", a.p:at(row * a.row + k0 * a.step) },
              { "b", "in", panel },
              { "bias", "in", bias:at(column) },
              { "c", "out", out.p:at(row * out.row + column) },
            }, function(p)
              local tile = {
                rows = run.size, vecs = block.vecs, steps = steps,
                unroll = unroll(K, steps, run.size * #block.vecs),
                a = { p = p.a, row = a.row, step = a.step }, b = { p = p.b, step = block.width },
                init = mode == "next" and gemm.from_zero(t) or gemm.from_columns(t, p.bias),
              }
              gemm.store(t, tile, gemm.tile(t, tile), p.c, out.row, mode == "next", out.exact)
            end)
          end)
        end
      end)
      panel_at = panel_at + block.count * block.width * chunks.total
    end
  end)
end

-- Q^T[hb*dk][width] = Wq^T XT + bq for one group of queries.
local function project_queries(K, group, wq, bq, xt, q)
  local t, plan = K.t, K.plan
  in_chunks(K, plan.k_chunks, function(mode, k0, steps)
    for _, run in ipairs(group.q) do
      each(K, "tile", run.count, function(i)
        local row = i * run.size + run.at
        part(K, ("query_%dx%s_k%d%s"):format(run.size, group.name, steps, suffix[mode]),
          ("%d rows of Q^T for a group of queries, %d K steps."):format(run.size, steps), {
          { "a", "in", wq:at(row * plan.cfg.d_model + k0 * run.size) },
          { "b", "in", xt:at(k0 * group.width) },
          { "bias", "in", bq:at(row) },
          { "c", "out", q:at(row * group.width) },
        }, function(p)
          local tile = {
            rows = run.size, vecs = group.vecs, steps = steps,
            unroll = unroll(K, steps, run.size * #group.vecs),
            a = { p = p.a, row = 1, step = run.size }, b = { p = p.b, step = group.width },
            init = mode == "next" and gemm.from_zero(t) or gemm.from_row(t, p.bias),
          }
          gemm.store(t, tile, gemm.tile(t, tile), p.c, group.width, mode == "next")
        end)
      end)
    end
  end)
end

-- One tile of scores: `rows` keys by the queries of the group. key: index of its first key, or nil
-- where every lane sees every key of the tile.
local function score_tile(K, group, rows, kind, ptrs, k_at, p_at, key)
  local t, plan = K.t, K.plan
  local words = { first = "_first", next = "", again = "_again", maximum = "_maximum" }
  local params = {
    { "k", "in", ptrs.k:at(k_at) }, { "q", "in", ptrs.q },
    { "stats", "out", ptrs.stats },
  }
  if kind ~= "maximum" then params[#params + 1] = { "p", "out", ptrs.p:at(p_at) } end
  if key then params[#params + 1] = { "key", "int", key } end
  part(K, ("scores%s%s_%dx%s"):format(words[kind], key and "_masked" or "", rows, group.name),
    ({ first = "Scores of the first keys: their maximum, the weights and their sum.",
       next = "Weights exp2(score - maximum) of some keys, added to the sum.",
       again = "Weights of the first keys with a known maximum.",
       maximum = "Raises the maximum by the scores of some keys." })[kind], params, function(p)
    softmax.tile(t, group, {
      rows = rows, steps = plan.cfg.dk, unroll = unroll(K, plan.cfg.dk, rows * #group.vecs),
      a = { p = p.k, row = plan.k.ld, step = 1 }, b = { p = p.q, step = group.width },
    }, kind, { out = p.p, stats = p.stats }, key and p.key)
  end)
end

-- O^T[dv][width] from the weights of a block of keys. steps: literal number of keys, or `tiles`, a
-- run-time number of key tiles. add: to what is there. final: divide by the sum, test for finite.
-- filter: key of the first weight, to keep values of hidden keys out (they may be NaN).
local function context(K, group, ptrs, v_at, p_at, steps, tiles, add, final, filter)
  local t, plan = K.t, K.plan
  for _, run in ipairs(group.context) do
    each(K, "tile", run.count, function(i)
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
      part(K, name, ("%d rows of O^T%s%s."):format(run.size,
        add and ", added to what is there" or "", final and ", divided by the sum" or ""), params,
        function(p)
        local unrolled = tiles and group.keys.rows or unroll(K, steps, run.size * #group.vecs)
        local tile = {
          rows = run.size, vecs = group.vecs, steps = steps, blocks = p.tiles,
          unroll = unrolled,
          a = { p = p.v, row = 1, step = plan.v.ld }, b = { p = p.p, step = group.width },
          init = gemm.from_zero(t),
        }
        if p.key then
          tile.filter = function(c, w, k, value, name_of)
            local limit = t:op("load", w, "limit_" .. name_of, softmax.stat(group, p.stats, "limit", c))
            local index = t:op("index", w, "key_" .. name_of, p.key + k)
            local hidden = t:op("lt", w, "hide_" .. name_of, limit, index)
            return t:op("zero_if", w, "seen_" .. name_of, hidden, value)
          end
        end
        local acc = gemm.tile(t, tile)
        if not final then return gemm.store(t, tile, acc, p.o, group.width, add) end
        for c, v in ipairs(group.vecs) do
          local test_at = softmax.stat(group, p.stats, "test", c)
          local inverse = t:op("load", v.w, ("inverse_c%d"):format(c - 1),
            softmax.stat(group, p.stats, "inverse", c))
          local test = t:start("load", v.w, ("test_c%d"):format(c - 1), test_at)
          local zero = t:op("zero", v.w, ("zero_c%d"):format(c - 1))
          for r = 0, run.size - 1 do
            local name_of = ("r%d_c%d"):format(r, c - 1)
            local at = p.o:at(r * group.width + (c - 1) * group.lanes)
            local sum = acc[r][c]
            if add then
              sum = t:op("add", v.w, "sum_" .. name_of, t:op("load", v.w, "old_" .. name_of, at), sum)
            end
            local o = t:op("mul", v.w, "o_" .. name_of, sum, inverse)
            t:op("store", v.w, nil, at, o)
            t:update(test, "fma", o, zero, test) -- stays 0 while all is finite
          end
          t:op("store", v.w, nil, test_at, test)
        end
      end)
    end)
  end
end

local function zero_stat(K, group, stats, row)
  local t = K.t
  for c, v in ipairs(group.vecs) do
    local zero = t:op("zero", v.w, ("%s_zero_c%d"):format(row, c - 1))
    t:op("store", v.w, nil, softmax.stat(group, stats, row, c), zero)
  end
end

local function invert_sums(K, group, stats)
  local t = K.t
  t:block(function()
    for c, v in ipairs(group.vecs) do
      local one = t:op("set", v.w, ("one_c%d"):format(c - 1), 1.0)
      local sum = t:op("load", v.w, ("sum_c%d"):format(c - 1), softmax.stat(group, stats, "sum", c))
      local inverse = t:op("div", v.w, ("inverse_c%d"):format(c - 1), one, sum)
      t:op("store", v.w, nil, softmax.stat(group, stats, "inverse", c), inverse)
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
  local k_tile, p_tile = rows * plan.k.ld, rows * group.width
  local p_block = plan.cfg.probs and block_keys * group.width or 0
  local filter = safe and plan.masked
  local first = safe and "again" or "first"

  if not open then
    for b = 0, keys.blocks - 1 do
      -- First, middle and last block differ; the middle ones are a loop.
      local middle = b > 0 and b < keys.blocks - 1
      if not middle or b == 1 then
        each(K, "block", middle and keys.blocks - 2 or 1, function(j)
          local block = middle and j + 1 or b
          local last = b == keys.blocks - 1
          local block_rows = last and m - b * block_keys or block_keys
          local from = 0
          if b == 0 then
            score_tile(K, group, math.min(rows, block_rows), first, ptrs, 0, 0)
            from = 1
          end
          local full = block_rows // rows
          each(K, "tile", full - from, function(i)
            score_tile(K, group, rows, "next", ptrs,
              block * (block_keys * plan.k.ld) + (i + from) * k_tile,
              block * p_block + (i + from) * p_tile)
          end)
          if block_rows % rows > 0 and block_rows > rows then
            score_tile(K, group, block_rows % rows, "next", ptrs,
              block * (block_keys * plan.k.ld) + full * k_tile, block * p_block + full * p_tile)
          end
          if last then invert_sums(K, group, ptrs.stats) end
          context(K, group, ptrs, block * (block_keys * plan.v.ld), block * p_block, block_rows, nil,
            b > 0, last, nil)
        end)
      end
    end
    return
  end

  local one_block = keys.blocks == 1
  if not one_block then
    each(K, "row", plan.cfg.dv, function(r)
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
  each(K, "block", one_block and 1 or expr.ceil_div(tiles, keys.block_tiles), function(b)
    local start = t:int("start", expr.max(b * keys.block_tiles, 1))
    local finish = t:int("finish", expr.min(tiles, b * keys.block_tiles + keys.block_tiles))
    local bound = t:int("bound", expr.max(start, expr.min(open, finish)))
    local p_base = b * (p_block - keys.block_tiles * p_tile)
    if plan.cfg.probs then p_base = 0 end
    each(K, "tile", bound - start, function(i)
      local tile = i + start
      score_tile(K, group, rows, "next", ptrs, tile * k_tile, tile * p_tile + p_base)
    end)
    each(K, "tile", finish - bound, function(i)
      local tile = i + bound
      score_tile(K, group, rows, "next", ptrs, tile * k_tile, tile * p_tile + p_base, tile * rows)
    end)
    if one_block then invert_sums(K, group, ptrs.stats) end
    local used = finish - b * keys.block_tiles
    local steps = expr.is_const(used) and used * rows or nil
    context(K, group, ptrs, b * (block_keys * plan.v.ld), b * p_block, steps,
      not steps and used or nil, not one_block, one_block, filter and b * block_keys)
  end)
  if not one_block then
    invert_sums(K, group, ptrs.stats)
    context(K, group, ptrs, 0, 0, 0, nil, true, true, nil)
  end
end

-- Does a head again with the true maximum: where a sum overflowed, and where NaN or Inf were met.
-- Lanes whose sum is good keep their maximum, and so get the same bits as before.
local function head_again(K, group, ptrs, open, tiles)
  local params = {
    { "q", "in", ptrs.q }, { "k", "in", ptrs.k }, { "v", "in", ptrs.v }, { "p", "out", ptrs.p },
    { "stats", "out", ptrs.stats }, { "o", "out", ptrs.o },
  }
  if open then
    params[#params + 1] = { "open", "int", open }
    params[#params + 1] = { "tiles", "int", tiles }
  end
  part(K, "again_" .. group.name,
    "The same head with the true maximum: for sums that overflowed, and for NaN and Inf.", params,
    function(p)
    local t, keys, plan = K.t, group.keys, K.plan
    local function stat(row, c) return softmax.stat(group, p.stats, row, c) end
    t:block(function()
      for c, v in ipairs(group.vecs) do
        local none = t:op("set", v.w, ("none_c%d"):format(c - 1), math.huge)
        t:op("store", v.w, nil, stat("kept", c),
          t:op("load", v.w, ("kept_c%d"):format(c - 1), stat("negmax", c)))
        t:op("store", v.w, nil, stat("negmax", c), none)
      end
    end)
    local rows, k_tile = keys.rows, keys.rows * plan.k.ld
    local all_open = p.open or plan.cfg.seq_kv // rows
    each(K, "tile", all_open, function(i)
      score_tile(K, group, rows, "maximum", p, i * k_tile, 0)
    end)
    if p.open then
      each(K, "tile", p.tiles - p.open, function(i)
        local tile = i + p.open
        score_tile(K, group, rows, "maximum", p, tile * k_tile, 0, tile * rows)
      end)
    elseif keys.rest > 0 then
      score_tile(K, group, keys.rest, "maximum", p, all_open * k_tile, 0)
    end
    t:block(function()
      for c, v in ipairs(group.vecs) do
        local function load(row) return t:op("load", v.w, ("%s_c%d"):format(row, c - 1), stat(row, c)) end
        local sum = load "sum"
        local most = t:op("set", v.w, ("most_c%d"):format(c - 1), softmax.accepted)
        local good = t:op("lt", v.w, ("good_c%d"):format(c - 1), sum, most)
        t:op("store", v.w, nil, stat("negmax", c),
          t:op("sel", v.w, ("m_c%d"):format(c - 1), good, load "kept", load "negmax"))
      end
    end)
    head_pass(K, group, p, p.open, p.tiles, true)
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
      local sum = t:op("load", v.w, name "sum", softmax.stat(group, stats, "sum", c))
      local test = t:op("load", v.w, name "test", softmax.stat(group, stats, "test", c))
      both[c] = t:op("add", v.w, name "both", sum, test)
      below[c] = t:op("lt", v.w, name "below", both[c], t:op("set", v.w, name "most", softmax.accepted))
      accepted[c] = t:op("all", v.w, name "good", below[c])
    end
    t:unless(accepted, function()
      build(function()
        for c, v in ipairs(group.vecs) do
          local none = t:op("set", v.w, ("none_c%d"):format(c - 1), math.huge)
          t:op("store", v.w, nil, softmax.stat(group, stats, "sum", c),
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
local function check_head(K, group, ptrs, open, tiles)
  unless_good(K, group, ptrs.stats, 1, function(mark)
    if not K.plan.masked then mark() end
    head_again(K, group, ptrs, open, tiles)
    if not K.plan.masked then return end
    unless_good(K, group, ptrs.stats, 2, function(mark_again)
      mark_again()
      head_again(K, group, ptrs, open, tiles)
    end)
  end)
end

-- probs[query][key] of one head from the weights P[key][lane] and the sums.
local function write_probs(K, group, ptrs, tiles)
  local t, isa, m = K.t, K.plan.isa, K.plan.cfg.seq_kv
  local lanes = isa.lanes
  local params = {
    { "p", "out", ptrs.p }, { "stats", "in", ptrs.stats }, { "probs", "out", ptrs.probs },
  }
  if tiles then params[#params + 1] = { "tiles", "int", tiles } end
  part(K, "probs_" .. group.name, "Normalizes, transposes and stores the attention weights.", params,
    function(p)
    if p.tiles then
      -- Keys that no query of the group sees.
      each(K, "row", m - p.tiles * group.keys.rows, function(i)
        t:block(function()
          for c = 1, #group.vecs do
            t:op("store", isa.full, nil,
              p.p:at((p.tiles * group.keys.rows + i) * group.width + (c - 1) * lanes),
              t:op("zero", isa.full, "none_c" .. c - 1))
          end
        end)
      end)
    end
    local function square(key, count)
      for c, v in ipairs(group.vecs) do
        local inverse = t:op("load", isa.full, ("inverse_c%d"):format(c - 1),
          softmax.stat(group, p.stats, "inverse", c))
        local least = t:op("set", isa.full, ("least_c%d"):format(c - 1), 2.0 ^ -126)
        local rows = {}
        for r = 0, lanes - 1 do
          local name = ("r%d_c%d"):format(r, c - 1)
          if r < count then
            local weight = t:op("load", isa.full, "p_" .. name,
              p.p:at((key + r) * group.width + (c - 1) * lanes))
            local scaled = t:op("mul", isa.full, "scaled_" .. name, weight, inverse)
            local tiny = t:op("lt", isa.full, "tiny_" .. name, scaled, least)
            rows[r] = t:op("zero_if", isa.full, "w_" .. name, tiny, scaled)
          else
            rows[r] = t:op("zero", isa.full, "w_" .. name)
          end
        end
        local out = transpose.square(t, rows, ("t_c%d_"):format(c - 1))
        for j = 0, v.used - 1 do
          local at = p.probs:at(((c - 1) * lanes + j) * m + key)
          if count < lanes then
            t:op("store_n", isa.full, nil, at, out[j], count)
          else
            t:op("store", isa.full, nil, at, out[j])
          end
        end
      end
    end
    each(K, "block", m // lanes, function(i) t:block(function() square(i * lanes, lanes) end) end)
    if m % lanes > 0 then t:block(function() square(m - m % lanes, m % lanes) end) end
  end)
end

-- Queries, scores, softmax and context of one group for one block of heads.
local function attend_group(K, group, a)
  local t, plan, cfg = K.t, K.plan, K.plan.cfg
  local params = {
    { "xt", "in", a.xt }, { "packed", "in", a.packed }, { "kv", "in", a.kv },
    { "scratch", "out", a.scratch }, { "o", "out", a.o },
  }
  if cfg.probs then params[#params + 1] = { "probs", "out", a.probs } end
  if cfg.causal then params[#params + 1] = { "q0", "int", a.q0 } end
  if cfg.kv_len then params[#params + 1] = { "len", "int", a.len } end
  part(K, "attend_" .. group.name, ("Attention of %d queries, %d head%s."):format(
    group.used, plan.hb, plan.hb > 1 and "s" or ""), params, function(p)
    local q = p.scratch:at(plan.scratch.q)
    local stats = p.scratch:at(plan.scratch.stats)
    project_queries(K, group, p.packed:at(plan.head.wq), p.packed:at(plan.head.bq), p.xt, q)

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
          t:op("store", v.w, nil, softmax.stat(group, stats, "limit", c), limit)
        end
      end)
    end

    each(K, "head", plan.hb, function(i)
      local ptrs = {
        q = q:at(i * (cfg.dk * group.width)), p = p.scratch:at(plan.scratch.p), stats = stats,
        k = p.kv:at(plan.kv.k + i * cfg.dk), v = p.kv:at(plan.kv.v + i * cfg.dv),
        o = p.o:at(i * (cfg.dv * group.width)),
      }
      head_pass(K, group, ptrs, open, tiles, false)
      check_head(K, group, ptrs, open, tiles)
      if cfg.probs then
        ptrs.probs = p.probs:at(i * (cfg.seq * cfg.seq_kv))
        write_probs(K, group, ptrs, tiles)
      end
    end)
  end)
end

-- A batch entry without a key: y = bo, all weights zero.
local function no_keys_group(K, group, packed, y, probs)
  local t, cfg, isa = K.t, K.plan.cfg, K.plan.isa
  local function fill(to, count, value) -- count floats, value(at, w) a vector
    local cover = require("isa.init").cover(isa, count)
    local full = count // isa.lanes
    each(K, "c", full, function(i)
      t:block(function()
        t:op("store", isa.full, nil, to:at(i * isa.lanes), value(i * isa.lanes, isa.full))
      end)
    end)
    local v = cover[#cover]
    if count % isa.lanes > 0 then
      t:block(function()
        local x = value(v.at, v.w)
        if v.used < v.w.lanes then
          t:op("store_n", v.w, nil, to:at(v.at), x, v.used)
        else
          t:op("store", v.w, nil, to:at(v.at), x)
        end
      end)
    end
  end
  local params = { { "packed", "in", packed }, { "y", "out", y } }
  if cfg.probs then params[#params + 1] = { "probs", "out", probs } end
  part(K, "no_keys_" .. group.name, "Rows that see no key: y = bo, weights zero.", params, function(p)
    each(K, "row", group.used, function(r)
      fill(p.y:at(r * cfg.d_model), cfg.d_model, function(at, w)
        return t:op("load", w, "bias", p.packed:at(at + K.plan.packed.bo))
      end)
    end)
    if cfg.probs then
      each(K, "head", cfg.h, function(head)
        fill(p.probs:at(head * (cfg.seq * cfg.seq_kv)), group.used * cfg.seq_kv, function(_, w)
          return t:op("zero", w, "none")
        end)
      end)
    end
  end)
end

-- V rows from `from` on that a key tile may still touch: zeros, so that zero weights stay zeros.
local function clear_values(K, v, from)
  local t, plan, isa = K.t, K.plan, K.plan.isa
  local most = 0
  for _, group in ipairs(plan.groups) do most = math.max(most, group.keys.rows) end
  each(K, "row", expr.min(most, plan.kv_rows - from), function(i)
    t:block(function()
      local zero = t:op("zero", isa.full, "zero")
      for c = 0, plan.v.ld // isa.lanes - 1 do
        t:op("store", isa.full, nil, v:at((from + i) * plan.v.ld + c * isa.lanes), zero)
      end
    end)
  end)
end

local function project(K, which, x, packed, kv, len)
  local plan = K.plan
  local product, w, bias = plan[which], packed:at(plan.head["w" .. which]), packed:at(plan.head["b" .. which])
  local label = ({ k = "keys", v = "values" })[which]
  local params = { { "x", "in", x }, { "w", "in", w }, { "bias", "in", bias },
                   { "out", "out", kv:at(plan.kv[which]) } }
  if len then params[#params + 1] = { "len", "int", len } end
  part(K, "project_" .. label, ("%s of %d head%s."):format(label:gsub("^.", string.upper), plan.hb,
    plan.hb > 1 and "s" or ""), params, function(p)
    column_product(K, label, product, plan.k_chunks, { p = p.x, row = plan.cfg.d_model, step = 1 },
      p.w, p.bias, { p = p.out, row = product.ld }, p.len)
    if which == "k" then return end
    if len and not K.full then
      clear_values(K, p.out, p.len)
    elseif plan.kv_rows > plan.cfg.seq_kv then
      clear_values(K, p.out, plan.cfg.seq_kv)
    end
  end)
end

local function output_group(K, group, o, packed, y)
  local plan = K.plan
  part(K, "output_" .. group.name, ("Y of %d queries, from the context of all heads."):format(group.used), {
    { "o", "in", o }, { "packed", "in", packed }, { "y", "out", y },
  }, function(p)
    column_product(K, "output_" .. group.name, group.out, plan.out_chunks,
      { p = p.o, row = 1, step = group.width },
      p.packed:at(plan.packed.wo), p.packed:at(plan.packed.bo),
      { p = p.y, row = plan.cfg.d_model, exact = true })
  end)
end

-- Pointers of batch entry b: inputs and results, and its part of the workspace.
local function entry_pointers(K, b, slot)
  local plan, cfg = K.plan, K.plan.cfg
  local q_floats, kv_floats = cfg.seq * cfg.d_model, cfg.seq_kv * cfg.d_model
  local cross = cfg.attention == "cross"
  local e = {
    b = b,
    q = tape.pointer("args->q", b * q_floats),
    k = tape.pointer(cross and "args->k" or "args->q", b * kv_floats),
    v = tape.pointer(cross and "args->v" or "args->q", b * kv_floats),
    y = tape.pointer("args->y", b * q_floats),
    probs = cfg.probs and tape.pointer("args->probs", b * (cfg.h * cfg.seq * cfg.seq_kv)),
  }
  e.packed = tape.pointer("(const float *)args->packed")
  e.ws = tape.pointer("(float *)args->workspace", slot * plan.entry.total)
  return e
end

local function each_group(K, build)
  for _, group in ipairs(K.plan.groups) do
    each(K, "g", group.count, function(i) build(group, i) end)
  end
end

-- The group with run-time number g.
local function with_group(K, g, build)
  local groups = K.plan.groups
  local function from(i)
    local group = groups[i]
    if i == #groups then return build(group, g - group.first) end
    K.t:when(g, group.first + group.count,
      function() build(group, g - group.first) end, function() from(i + 1) end)
  end
  from(1)
end

local steps = {}

function steps.transpose(K, e, group, i)
  transpose_group(K, group, e.q:at(i * (group.used * K.plan.cfg.d_model) + group.q0 * K.plan.cfg.d_model),
    e.ws:at(K.plan.entry.xt + group.xt + i * group.xt_floats))
end

function steps.attend(K, e, head_block, kv_slot, scratch_slot, group, i)
  local plan, cfg = K.plan, K.plan.cfg
  local q0 = i * group.used + group.q0
  attend_group(K, group, {
    xt = e.ws:at(plan.entry.xt + group.xt + i * group.xt_floats),
    packed = e.packed:at(plan.packed.heads + head_block * plan.head.total),
    kv = e.ws:at(plan.entry.kv + kv_slot * plan.kv.total),
    scratch = e.ws:at(plan.entry.scratch + scratch_slot * plan.scratch.total),
    o = e.ws:at(plan.entry.o + group.o + i * group.o_floats + head_block * (plan.hb * cfg.dv * group.width)),
    probs = cfg.probs and e.probs:at(head_block * (plan.hb * cfg.seq * cfg.seq_kv) + q0 * cfg.seq_kv),
    q0 = q0, len = e.len,
  })
end

function steps.keys_values(K, e, head_block, kv_slot, which)
  local plan = K.plan
  project(K, which, e[which], e.packed:at(plan.packed.heads + head_block * plan.head.total),
    e.ws:at(plan.entry.kv + kv_slot * plan.kv.total), e.len)
end

function steps.output(K, e, group, i)
  local plan, cfg = K.plan, K.plan.cfg
  local y = e.y:at(i * (group.used * cfg.d_model) + group.q0 * cfg.d_model)
  output_group(K, group, e.ws:at(plan.entry.o + group.o + i * group.o_floats), e.packed, y)
end

function steps.no_keys(K, e, group, i)
  local cfg = K.plan.cfg
  local q0 = i * group.used + group.q0
  no_keys_group(K, group, e.packed, e.y:at(q0 * cfg.d_model),
    cfg.probs and e.probs:at(q0 * cfg.seq_kv))
end

local function read_len(K, e)
  if K.plan.cfg.kv_len then e.len = K.t:int_at("len", "args->kv_len", e.b) end
end

-- All of a batch entry in the order that keeps the caches warm: each head block's K and V are used
-- at once, in the same place for every block.
local function forward(K, e)
  local t = K.t
  t:note("transpose")
  each_group(K, function(group, i) steps.transpose(K, e, group, i) end)
  each(K, "hb", K.plan.head_blocks, function(hb)
    t:note("keys and values")
    steps.keys_values(K, e, hb, 0, "k")
    steps.keys_values(K, e, hb, 0, "v")
    t:note("attend")
    each_group(K, function(group, i) steps.attend(K, e, hb, 0, 0, group, i) end)
  end)
  t:note("output")
  each_group(K, function(group, i) steps.output(K, e, group, i) end)
end

local function run_entry(K, b, slot)
  local e = entry_pointers(K, b, slot)
  read_len(K, e)
  local function all()
    if not K.full then return forward(K, e) end
    local params = {}
    for _, p in ipairs { { "q", "in" }, { "k", "in" }, { "v", "in" }, { "y", "out" }, { "probs", "out" },
                         { "packed", "in" }, { "ws", "out" }, { "len", "int" } } do
      if e[p[1]] then params[#params + 1] = { p[1], p[2], e[p[1]] } end
    end
    part(K, "forward", "Everything for one batch entry, without a loop.", params, function(p)
      if K.plan.cfg.attention == "self" then p.k, p.v = p.q, p.q end
      forward(K, p)
    end, "whole")
  end
  if not e.len then return all() end
  K.t:when(e.len, 1, function()
    local full = K.full
    K.full = false -- rare; its loops stay loops
    each_group(K, function(group, i) steps.no_keys(K, e, group, i) end)
    K.full = full
  end, all)
end

local args_param = { kind = "const mhagen_args *", name = "args" }

local function define_task(K, name, per_entry, build)
  K.t:define({ name = "task_" .. name, keep = true, params = { args_param, { kind = "int", name = "index" } } }, build)
  return { name = name, per_entry = per_entry }
end

-- A task function, void task(args, index): index counts the tasks of all batch entries.
local function task(K, name, per_entry, build)
  local t, plan = K.t, K.plan
  return define_task(K, name, per_entry, function()
    local index = expr.var("index")
    if plan.cfg.batch == 1 then return build(entry_pointers(K, 0, 0), index) end
    local b = t:int("b", expr.div(index, per_entry))
    local e = entry_pointers(K, b, plan.resident > 1 and expr.mod(b, plan.resident) or 0)
    build(e, t:int("i", expr.mod(index, per_entry)))
  end)
end

-- Records everything; returns the phases { name, per_entry (tasks per batch entry) }.
function M.emit(t, plan)
  local cfg = plan.cfg
  local K = { t = t, plan = plan, full = cfg.unroll == "full" }
  for _, group in ipairs(plan.groups) do
    group.name = tostring(group.used)
    if group.used < group.width then group.name = group.used .. "of" .. group.width end
  end
  plan.k_chunks.total, plan.out_chunks.total = cfg.d_model, cfg.h * cfg.dv

  local slots = plan.resident > 1 -- where an entry's part of the workspace can be another than the first
  local entry_params = { args_param, { kind = "ptrdiff_t", name = "b" } }
  if K.full and slots then entry_params[3] = { kind = "ptrdiff_t", name = "slot" } end
  local entry = t:define({ name = "run_entry", params = entry_params,
                           doc = "Everything for one batch entry." }, function()
    run_entry(K, expr.var("b"), K.full and slots and expr.var("slot") or 0)
  end)
  local args = tape.pointer("args")
  t:define({ name = "run_all", keep = true, params = { args_param } }, function()
    each(K, "b", cfg.batch, function(b)
      t:call(entry, { args, b, K.full and slots and 0 or nil })
    end)
  end)
  if K.full then
    return { define_task(K, "entry", 1, function()
      local index = expr.var("index")
      t:call(entry, { args, index, slots and expr.mod(index, plan.resident) or nil })
    end) }
  end

  local phases = {}
  phases[1] = task(K, "transpose", plan.group_count, function(e, g)
    with_group(K, g, function(group, i) steps.transpose(K, e, group, i) end)
  end)
  phases[2] = task(K, "keys_values", plan.head_blocks * 2, function(e, i)
    read_len(K, e)
    local hb = t:int("hb", expr.div(i, 2))
    t:when(expr.mod(i, 2), 1,
      function() steps.keys_values(K, e, hb, hb, "k") end,
      function() steps.keys_values(K, e, hb, hb, "v") end)
  end)
  phases[3] = task(K, "attend", plan.head_blocks * plan.attend_tasks, function(e, i)
    read_len(K, e)
    local hb = t:int("hb", expr.div(i, plan.attend_tasks))
    local first = t:int("first", expr.mod(i, plan.attend_tasks) * plan.groups_per_task)
    local function all()
      each(K, "j", expr.min(plan.groups_per_task, plan.group_count - first), function(j)
        local g = t:int("g", j + first)
        with_group(K, g, function(group, at) steps.attend(K, e, hb, hb, i, group, at) end)
      end)
    end
    if e.len then t:when(0, e.len, all) else all() end
  end)
  phases[4] = task(K, "output", plan.group_count, function(e, g)
    read_len(K, e)
    with_group(K, g, function(group, i)
      if not e.len then return steps.output(K, e, group, i) end
      t:when(e.len, 1, function() steps.no_keys(K, e, group, i) end,
        function() steps.output(K, e, group, i) end)
    end)
  end)
  return phases
end

return M
