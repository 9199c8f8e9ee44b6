-- Integer products in decode steps, for heads that share the rows of an int8 cache. Queries and attention weights
-- become 16-bit integers with a scale, one for each query and head, or for each block of keys and head. Sums are exact.
--
--   queries(K, step, ptrs)                 quantizes the queries of all heads
--   panel(K, step, at)                     transposes a tile of keys into a panel of words
--   scores(K, step, at, params, behind)    scores of a tile; behind(p, r, c, sum) is the epilogue of vector c of head r
--   context(K, step, ptrs, from, rest)     adds a block of keys; rest: which keys of it count, if not all
--   in_order(K, step, o)                   puts the columns of the context into their order
--   weight_of_row(t, w, i, weight, scale)  a vector of weights times the scales of their rows
--   fetch_ahead(t, tile, next, each)       each step of a tile prefetches `each` numbers, from `next` on

local fetch = require "emit.fetch"
local gemm = require "emit.gemm"
local mask = require "emit.mask"
local step_of = require "schedule.decode"
local tiles = require "schedule.tiles"
local transpose = require "emit.transpose"
local types = require "machine.types"

local M = {}

local BYTES = 4 -- bytes of a word; so a vector of words holds the bytes of so many vectors of columns

local LEAST = 2.0 ^ -100 -- the least value taken as the largest number that shares a scale

local LEAST_WEIGHT = 2.0 ^ -94 -- smaller weights count as zero, because their products with a scale may be subnormal

-- The scale for numbers up to `most` in each lane, and the factor that quantizes them. The scale of NaN or Inf is NaN.
local function scales(t, w, most)
  local steps = t:op("set", w, "steps", step_of.STEPS)
  local size = t:op("max", w, "size", t:op("set", w, "least", LEAST), most)
  local none = t:op("sub", w, "none", most, most) -- 0 if `most` is finite, else NaN
  return t:op("add", w, "factor", t:op("div", w, "step", size, steps), none), t:op("div", w, "inverse", steps, size)
end

function M.queries(K, step, ptrs)
  local t, w, lanes, depth = K.t, K.plan.isa.full, K.plan.isa.lanes, K.plan.attend.depth
  K:part("step_queries", "Quantizes the queries.",
    { { "q", "in", ptrs.q }, { "words", "out", ptrs.words.q }, { "scales", "out", ptrs.words.q_scales } }, function(p)
    K:each("head", K.plan.attend.share, function(h)
      t:scope(function()
        local most = t:start("zero", w, "most")
        K:vectors("i", depth, function(at)
          t:scope(function()
            t:update(most, "larger_size", t:op("load", w, "number", p.q:at(h * ptrs.q_head + at)), most)
          end)
        end)
        local scale, inverse = scales(t, w, transpose.of_lanes(t, "larger_size", most, "largest"))
        t:write(w, p.scales:at(h), scale, 1)
        K:each("i", depth // (2 * lanes), function(i)
          t:scope(function()
            local two = {}
            for n = 0, 1 do
              local number = t:op("load", w, "number" .. n, p.q:at(h * ptrs.q_head + i * (2 * lanes) + n * lanes))
              two[n + 1] = t:op("mul", w, "scaled" .. n, number, inverse)
            end
            t:op("store_words", w, nil, p.words:at(h * (depth // 2) + i * lanes),
              t:op("short_words", w, "integers", two[1], two[2]))
          end)
        end)
      end)
    end)
  end)
end

-- Transposes the keys of one tile, at.k, into at.panel.
function M.panel(K, step, at)
  local t, w, lanes, keys = K.t, K.plan.isa.full, K.plan.isa.lanes, K.plan.attend.keys
  local columns, width = BYTES * lanes, step.keys -- columns of K whose bytes fill a vector; words in a row of the panel
  local parts = K.plan.attend.depth // columns
  local params = { { "k", "in", at.k }, { "panel", "out", at.panel } }
  K:part("step_panel", ("%d rows of keys as columns of words."):format(width), params, function(p)
    K:each("c", width // lanes, function(c)
      K:each("part", parts, function(part)
        t:scope(function()
          local rows = {}
          for r = 0, lanes - 1 do
            local bytes = t:op("load_byte_words", w, "bytes_r" .. r,
              p.k:at(c * (lanes * keys.row) + part * columns + r * keys.row))
            rows[r] = t:op("as_f", w, "row_r" .. r, bytes)
          end
          local words = transpose.square(t, rows, "t")
          for j = 0, lanes - 1 do
            t:op("store", w, nil, p.panel:at(part * (lanes * width) + c * lanes + j * width), words[j])
          end
        end)
      end)
    end)
  end)
end

-- Prefetches in the order of memory.
function M.fetch_ahead(t, tile, next, each)
  local b, bytes = tile.b, next.type.bytes
  b.moving = b.moving or {}
  table.insert(b.moving, { p = next, k_stride = each * tiles.in_step(tile.scheme) })
  function b.fetch_block(steps) fetch(t, bytes, steps * each, next, "prefetch") end
end

-- The sums of a tile of heads by four vectors, over so many steps. operands: a, b = { p, k_stride, .. } and `next`,
-- rows of which each step prefetches `ahead` bytes.
local function sums_of(K, step, run, steps, operands)
  local vecs = {}
  for c = 1, BYTES do vecs[c] = { w = K.plan.isa.full, used = K.plan.isa.lanes } end
  local scheme = step.words.scheme
  local tile = { scheme = scheme, rows = run.size, vecs = vecs, steps = steps,
                 unroll = tiles.round_up(K:unroll(steps), tiles.in_step(scheme)),
                 a = { p = operands.a, row = steps, k_stride = 1 }, b = operands.b, init = gemm.from_zero(K.t, scheme) }
  if operands.next then M.fetch_ahead(K.t, tile, operands.next, operands.ahead) end
  return gemm.tile(K.t, tile)
end

-- Records build(run, head, number) for each tile of the heads that share keys and values; head: its first one.
local function each_tile(K, step, build)
  local first = 0
  for _, run in ipairs(step.words.runs[1]) do
    K:each("group", run.count, function(i) build(run, i * run.size + run.at, first + i) end)
    first = first + run.count
  end
end

-- at: words, k_scales (those of the tile), to (where its first score goes), next (rows to prefetch). params(list, head)
-- adds what `behind` reads to a list of parameters.
function M.scores(K, step, at, params, behind)
  local t, w, lanes, depth = K.t, K.plan.isa.full, K.plan.isa.lanes, K.plan.attend.depth
  local each = 2 * step.keys // tiles.count(step.words) -- numbers of later keys that each step of a tile prefetches
  each_tile(K, step, function(run, head, number)
    local list = { { "q", "in", at.words.q:at(head * (depth // 2)) }, { "panel", "in", at.words.panel },
                   { "factors", "in", at.words.q_scales:at(head) }, { "scales", "in", at.k_scales },
                   { "to", "out", at.to:at(head * step.p_row) } }
    if at.next then list[#list + 1] = { "next", "in", at.next:at(number * (each * depth // 2)) } end
    K:part(("step_scores_%dx%d"):format(run.size, step.keys),
      ("Scores of %d heads and %d keys."):format(run.size, step.keys), params(list, head), function(p)
      local sums = sums_of(K, step, run, depth // 2, {
        a = p.q, b = { p = p.panel, k_stride = step.keys }, next = p.next, ahead = each })
      for c = 0, BYTES - 1 do
        t:scope(function()
          local scale = t:op("load", w, "scale_c" .. c, p.scales:at(c * lanes))
          for r = 0, run.size - 1 do
            t:scope(function()
              local of = ("_r%d_c%d"):format(r, c)
              local factor = t:op("mul", w, "factor" .. of, scale, t:op("dup", w, "of_head" .. of, p.factors:at(r)))
              local sum = t:op("mul", w, "score" .. of, t:op("to_f", w, "sum" .. of, sums[r][c + 1]), factor)
              t:op("store", w, nil, p.to:at(r * step.p_row + c * lanes), behind(p, r, c, sum))
            end)
          end
        end)
      end
    end)
  end)
end

-- ---- context ----

-- Vector i of weights, with small ones as zeros, times the scales of their rows.
function M.weight_of_row(t, w, i, weight, scale)
  local small = t:op("lt", w, "small" .. i, weight, t:op("set", w, "least" .. i, LEAST_WEIGHT))
  return t:op("mul", w, "scaled" .. i, t:op("zero_if", w, "kept" .. i, small, weight), scale)
end

-- A vector of weights of head h times the scales of V. It is zero for keys that do not count, and for those that a mask
-- hides, since their scales may be NaN.
local function scaled_weight(K, step, p, h, i)
  local t, w, lanes = K.t, K.plan.isa.full, K.plan.isa.lanes
  local weight = t:op("load", w, "weight" .. i, p.p:at(h * step.p_row + i * lanes))
  local value = M.weight_of_row(t, w, i, weight, t:op("load", w, "scale" .. i, p.scales:at(i * lanes)))
  if p.biases then
    local row = mask.by_head(K.plan) and h * mask.row_count(K.plan) or 0
    local bias = t:op("load", w, "bias" .. i, p.biases:at(row + i * lanes))
    local hidden = t:op("lt", w, "hidden" .. i, bias, t:op("set", w, "lowest" .. i, types.LOWEST))
    value = t:op("zero_if", w, "seen" .. i, hidden, value)
  end
  if not p.from then return value end
  local key = t:op("add", w, "key" .. i, t:op("iota", w, "lane" .. i), t:op("index", w, "first" .. i, p.at + i * lanes))
  local before = t:op("lt", w, "before" .. i, key, t:op("index", w, "from" .. i, p.from))
  local behind = t:op("lt", w, "behind" .. i, t:op("index", w, "last" .. i, p.stop - 1), key)
  return t:op("zero_if", w, "later" .. i, before, t:op("zero_if", w, "counts" .. i, behind, value))
end

-- Quantizes the weights of a block of keys, from `at` on, times the scales of V.
local function weights(K, step, ptrs, at, rest)
  local t, w, lanes = K.t, K.plan.isa.full, K.plan.isa.lanes
  local params = { { "p", "in", ptrs.p:at(at) }, { "scales", "in", ptrs.scales:at(at) },
                   { "words", "out", ptrs.p_words }, { "factors", "out", ptrs.p_scales },
                   { "from", "int", rest and rest.from }, { "stop", "int", rest and rest.stop },
                   { "at", "int", rest and at }, { "biases", "in", ptrs.biases and ptrs.biases:at(at) } }
  K:part("step_integers" .. (rest and "_rest" or ""), "Quantizes the weights, times the scales of the values.",
    params, function(p)
    K:each("head", K.plan.attend.share, function(h)
      t:scope(function()
        local list, most = {}, t:start("zero", w, "most")
        for i = 0, step.block // lanes - 1 do
          list[i] = scaled_weight(K, step, p, h, i)
          t:update(most, "larger_size", list[i], most)
        end
        local scale, inverse = scales(t, w, transpose.of_lanes(t, "larger_size", most, "largest"))
        t:write(w, p.factors:at(h), scale, 1)
        for i = 0, #list // 2 do
          local one = t:op("mul", w, "one" .. i, list[2 * i], inverse)
          local other = t:op("mul", w, "other" .. i, list[2 * i + 1], inverse)
          t:op("store_words", w, nil, p.words:at(h * (step.block // 2) + i * lanes),
            t:op("short_words", w, "integers" .. i, one, other))
        end
      end)
    end)
  end)
end

-- Operand B of the context: words of four rows of V each. Vector c of a panel takes a quarter of the bytes of these
-- rows.
local function values_of(K, p)
  local t, row, rows = K.t, K.plan.attend.values.row, {}
  local b = { p = p.v, k_stride = BYTES * row }
  function b.words(v, name, word, c)
    local n, half = (c - 1) // 2, (c - 1) % 2
    if c == 1 then
      rows = {}
      for r = 0, BYTES - 1 do
        rows[r] = t:op("load_byte_words", v.w, ("v_r%d%s"):format(r, name), p.v:at(word * (BYTES * row) + r * row))
      end
    end
    if half == 0 then
      rows.low = t:op("zip_bytes", v.w, "low" .. name, rows[0], rows[1], n)
      rows.high = t:op("zip_bytes", v.w, "high" .. name, rows[2], rows[3], n)
    end
    return t:op("zip_shorts", v.w, "words" .. name, rows.low, rows.high, half)
  end
  return b
end

local function context_tile(K, step, run, at)
  local t, w, lanes, breadth = K.t, K.plan.isa.full, K.plan.isa.lanes, K.plan.attend.breadth
  local params = { { "a", "in", at.a }, { "v", "in", at.v }, { "factors", "in", at.factors }, { "o", "out", at.o },
                   { "next", "in", at.next } }
  K:part(("step_context_words_%dx%d%s"):format(run.size, BYTES * lanes, at.next and "" or "_rest"),
    ("%d rows of the context of %d columns, added to what is there."):format(run.size, BYTES * lanes), params,
    function(p)
      local sums = sums_of(K, step, run, step.block // 2, {
        a = p.a, b = values_of(K, p), next = p.next, ahead = p.next and 2 * step.ahead.numbers })
      for r = 0, run.size - 1 do
        t:scope(function()
          local factor = t:op("dup", w, "factor_r" .. r, p.factors:at(r))
          for c = 0, BYTES - 1 do
            local of, place = ("_r%d_c%d"):format(r, c), p.o:at(r * breadth + c * lanes)
            local sum = t:op("to_f", w, "sum" .. of, sums[r][c + 1])
            t:op("store", w, nil, place, t:op("fma", w, "all" .. of, sum, factor, t:op("load", w, "old" .. of, place)))
          end
        end)
      end
    end)
end

-- ptrs: p, v, scales, o, p_words, p_scales, and biases if there is a mask. from: the first key; next: the key from
-- which on V is prefetched.
function M.context(K, step, ptrs, from, next, rest)
  local values, breadth = K.plan.attend.values, K.plan.attend.breadth
  local columns = BYTES * K.plan.isa.lanes
  local parts = breadth // columns
  weights(K, step, ptrs, from, rest)
  each_tile(K, step, function(run, head, number)
    K:each("part", parts, function(j)
      local part = (number * parts + j) * ((step.ahead and step.ahead.numbers or 0) * step.block)
      context_tile(K, step, run, {
        a = ptrs.p_words:at(head * (step.block // 2)), factors = ptrs.p_scales:at(head),
        v = ptrs.v:at(from * values.row + j * columns), o = ptrs.o:at(head * breadth + j * columns),
        next = next and ptrs.v:at(next * values.row + part) })
    end)
  end)
end

-- The operands' bytes leave the columns of a panel interleaved in blocks of four lanes. This puts them into their
-- order.
function M.in_order(K, step, o)
  local t, w, lanes, breadth = K.t, K.plan.isa.full, K.plan.isa.lanes, K.plan.attend.breadth
  local quarters = lanes // BYTES
  K:each("panel", K.plan.attend.share * breadth // (BYTES * lanes), function(i)
    t:scope(function()
      local out = {}
      for group = 0, BYTES // quarters - 1 do
        local list = {}
        for n = 0, quarters - 1 do
          local c = group * quarters + n
          list[n] = t:op("load", w, "sums_c" .. c, o:at(i * (BYTES * lanes) + c * lanes))
        end
        local ordered = transpose.blocks(t, list, ("t_g%d_"):format(group), BYTES)
        for n = 0, quarters - 1 do out[n * (BYTES // quarters) + group] = ordered[n] end
      end
      for c = 0, BYTES - 1 do t:op("store", w, nil, o:at(i * (BYTES * lanes) + c * lanes), out[c]) end
    end)
  end)
end

return M
