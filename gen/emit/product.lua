-- Products with weights: tiles over chunks of K steps and panels of columns, or over rows for a group of queries.

local choices = require "base.choices"
local ending = require "emit.ending"
local epilogue = require "emit.epilogue"
local expr = require "base.expr"
local fetch = require "emit.fetch"
local gemm = require "emit.gemm"
local layouts = require "graph.layout"
local suffix = require "emit.code".suffix
local tiles = require "schedule.tiles"
local ways = require "way.init"

local M = {}

-- Operand B for the K steps from k0 on, in a panel of a block: { p, k_stride, scheme }; scheme is how the ISA
-- multiplies. Integers also have scales, which lie after the words of their group. next: what to prefetch meanwhile, if
-- anything (fetch.part); this includes the scales of a later group, next_scales.
function M.operand(product, panels, panel, k0, next)
  local own, width = product.scheme, panels.width
  local quant, in_step = own.quant, tiles.in_step(own)
  local group, words = tiles.group_steps(own), tiles.ceil_div(product.steps, in_step)
  local before = group and expr.div(k0, group) or 0 -- the number of groups before k0, each with a row of scales
  local row = expr.share(k0, quant and in_step or 1) + before
  local b = { p = panel:at(row * width), k_stride = width, scheme = own }
  if next then b.next, b.fetched = next.p:at(row * next.numbers), next end
  if own.scales then
    local scales = (group and expr.min((before + 1) * (group // in_step), words) or words) + before
    b.scales = panel:at(scales * width):as(own.scales)
    if next and group then b.next_scales = next.p:at(scales * next.numbers):as(own.scales) end
  end
  return b
end

-- The scales of rows of A for the K steps from k0 on, or nil. Also the initial values of sums, if weights have no sign
-- (emit/quantize.lua). count: rows in all.
function M.of_rows(scheme, scales, count, k0)
  local group = tiles.row_group_steps(scheme)
  if not (scales and group) then return scales end
  local own = scales:at(count * scheme.scales_of_group * expr.div(k0, group))
  return own, scheme.less and own:at(count) or nil
end

-- Operand A of a tile, in the function whose parameter is p.a.
local function operand_a(tile, p)
  local a = tile.a
  return { p = p.a, row = a.row, k_stride = a.k_stride, streamed = a.streamed }
end

-- Operand B likewise. Each K step prefetches as much as it reads; with `spread`, each block of steps prefetches a
-- share.
local function operand_b(K, tile, p)
  local b, scheme, fetched = { p = p.b, k_stride = tile.b.k_stride }, tile.b.scheme, tile.b.fetched
  if not p.next then return b end
  local numbers, tile_words = p.share or fetched.numbers, ways.of(scheme).tile_words(scheme)
  b.moving = { { p = p.next, k_stride = numbers } }
  local function hints(steps, k)
    local count = p.share and 1 or steps * numbers
    for _, hint in ipairs(fetched.hints) do
      fetch(K.t, scheme.b.bytes, count, p.next:at(k * numbers + hint.at), hint.op)
    end
  end
  if fetched.spread and not tile_words then
    function b.fetch_block(steps) hints(steps, 0) end
  else
    function b.fetch(k) hints(tile_words or 1, k) end
  end
  return b
end

-- K steps of a loop iteration and chains of sums (code.lua). Steps of one word of B, and steps that an instruction
-- takes at once, stay together.
local function summing(K, scheme, rows, vectors, steps)
  local interleave = ways.interleave(scheme)
  local unroll, chains = K:summing(scheme, tiles.round_up(rows, interleave), vectors, steps // interleave)
  return tiles.round_up(unroll * interleave, tiles.in_step(scheme)), chains
end

-- The argument of gemm.tile for a tile, in the function whose parameters are p.
local function inner_of(K, tile, p)
  local scheme = tile.b.scheme
  local unroll, chains = summing(K, scheme, tile.rows, #tile.vecs, tile.steps)
  return { scheme = scheme, rows = tile.rows, vecs = tile.vecs, steps = tile.steps, unroll = unroll, chains = chains,
           a = operand_a(tile, p), b = operand_b(K, tile, p), continues = tile.mode == "more" }
end

-- The operands of a tile as parameters of its function.
local function operand_params(tile)
  return { { "a", "in", tile.a.p }, { "b", "in", tile.b.p }, { "sums", "out", tile.sums },
           { "next", "in", tile.b.next }, { "share", "int", tile.b.fetched and tile.b.fetched.share } }
end

local function name_of(tile, word) return ("%s_k%d%s"):format(tile.name, tile.steps, word or suffix[tile.mode]) end

-- What a product kernel that records a whole function by itself may call.
local code = { sums = gemm.tile, run = epilogue.run, ending = ending }

-- One tile of a product, C = A B + bias, over a chunk of its K steps. Without a bias sums start at zero.
--
-- `tile` has these fields:
--   name, text       of the function, and the comment above it
--   rows, vecs       rows and vectors of the tile
--   steps            K steps of the chunk; mode and last: as Code:chunks passes them
--   a                { p, row, k_stride, streamed, scales, sums }
--   b                as M.operand returns it
--   bias, start      the bias, and the function of gemm.lua that starts accumulators from it
--   c                { p, row, ends }: where results go; ends: how they are stored (`stored` in graph/layout.lua)
--   times, add       optional, { name, p, row }: rows of another tensor to multiply by, and to add
--   activate         optional, the name of the activation function
local function whole_tile(K, tile)
  local alone = ways.of(tile.b.scheme).alone
  if alone then return alone(K, tile, code) end
  local added = tile.mode == "next" and ", added to what is there" or ""
  local name, text = ending.more(tile, K.plan.isa)
  K:part(name_of(tile) .. name, ("%s, %d K steps%s%s."):format(tile.text, tile.steps, added, text),
    ending.add_params(operand_params(tile), tile, ending.of_rows(tile)), function(p)
    local inner, ends = inner_of(K, tile, p), ending.of(K, tile, p, 0, tile.rows)
    inner.init = ends.init
    local sums = gemm.tile(K.t, inner)
    epilogue.run(inner, sums, ends.steps())
  end)
end

-- The description of a tile with vectors over columns, those of a panel. tile: label, mode, steps, a, b, bias and c.
local function of_columns(rows, panels, tile)
  return { name = ("%s_%dx%d"):format(tile.label, rows, panels.used),
           text = ("A tile of %d rows and %d columns"):format(rows, panels.used), rows = rows, vecs = panels.vecs,
           mode = tile.mode, last = tile.last, steps = tile.steps, a = tile.a, b = tile.b, bias = tile.bias,
           start = gemm.from_columns, c = tile.c, activate = tile.activate, times = tile.times,
           add = tile.add }
end

-- The epilogue of some rows of a tile whose sums are in a buffer.
local function end_rows(K, tile, p, sums, base, rows)
  local ends = ending.of(K, tile, p, base, rows)
  local some = { scheme = tile.b.scheme, rows = rows, vecs = tile.vecs, init = ends.init }
  local from = sums:at(base * (#tile.vecs * K.plan.isa.tile))
  epilogue.run(some, ways.of(some.scheme).buffered.sums(K.t, some, from), ends.steps())
end

-- The products of a tile, whose sums stay in a buffer. before: the tile whose epilogue runs meanwhile, as
-- ending.of_rows returns it; its field `from` is the place of that tile's sums, relative to those of this one.
local function products_tile(K, tile, before)
  local more, params = tile.mode == "more", operand_params(tile)
  if before then ending.add_params(params, tile, before) end
  K:part(name_of(tile, before and (more and "_more" or "") .. "_interleaved"), ("%s, %d K steps%s%s."):format(tile.text,
    tile.steps, more and ", added to what is there" or "", before and ", interleaved with the end of the tile before"
      or ""),
    params, function(p)
    local among = before and { rows = tile.rows, record = function(base, rows)
      end_rows(K, tile, p, p.sums:at(before.from), base, rows)
    end }
    ways.of(tile.b.scheme).buffered.products(K.t, inner_of(K, tile, p), p.sums, among)
  end)
end

local SOME = 8 -- rows of an iteration; each panel has such an epilogue only once, so short code matters more

local function end_tile(K, tile)
  local params = ending.add_params({ { "sums", "in", tile.sums } }, tile, ending.of_rows(tile))
  K:part(tile.name .. "_end", ("The epilogue of a tile of %d rows."):format(tile.rows), params, function(p)
    local rounds, rest = tile.rows // SOME, tile.rows % SOME
    local function rows(base, count) K.t:scope(function() end_rows(K, tile, p, p.sums, base, count) end) end
    K:each("round", rounds, function(i) rows(i * SOME, SOME) end)
    if rest > 0 then rows(rounds * SOME, rest) end
  end)
end

-- A few row tiles of a panel. The products of each tile are interleaved with the epilogue of the tile before. If there
-- are several chunks, all but the last leave the sums of these tiles in a buffer. tile(i, mode, k0, steps, is_last):
-- the description of a tile, as of_columns returns it.
local function few_tiles(K, product, panels, rows, count, tile)
  local chunks, isa = product.chunks, K.plan.isa
  local kept, size = tiles.keeps_sums(product), ways.of(product.scheme).buffered.size(isa, rows, panels.vecs)
  local function all()
    local sums = K.t:buffer("sums", (kept and tiles.TOGETHER or 1) * size)
    local function placed(i, ...)
      local one = tile(i, ...)
      one.sums = kept and sums:at(i * size) or sums
      return one
    end
    local function chunk(mode, k0, steps)
      K:each("tile", count, function(i) products_tile(K, placed(i, mode, k0, steps)) end)
    end
    if kept then
      chunk("start", 0, chunks.size)
      K:each("chunk", chunks.count - 2, function(i) chunk("more", (i + 1) * chunks.size, chunks.size) end)
    end
    local mode, k0 = kept and "more" or "start", (chunks.count - 1) * chunks.size
    local function last(of, i) return of(i, mode, k0, chunks.last, true) end
    products_tile(K, last(placed, 0))
    K:each("tile", count - 1, function(i)
      local before = ending.of_rows(last(tile, i))
      before.from = kept and -size or 0
      products_tile(K, last(placed, i + 1), before)
    end)
    end_tile(K, last(placed, count - 1))
  end
  if expr.is_const(count) then return K.t:scope(all) end
  K.t:when(0, count, all)
end

-- C for `count` row tiles of a panel, each of `rows` rows. The fields of `of` are the same for all tiles:
--   label       of the functions
--   bias, w     the bias, and the weights of the panel
--   a           the tensor A; row and k_stride: its distances; all: how many rows of it have scales
--   ends        how C is stored
--   alone       there are no other tiles of so many rows
--   activate    optional: the name of the activation function
--   tile(i)     the fields of tile number i:
--     x, scales   its rows of A, and their scales
--     next        what it prefetches
--     c, row      where it goes, and the distance of rows there
--     times, add  optional: what its rows are multiplied by, and what is added to them
function M.each_tile(K, product, panels, rows, count, of)
  local streamed = layouts.streamed(K.plan.cpu, of.a, panels.width * product.depth)
  local function tile(i, mode, k0, steps, is_last)
    local own = of.tile(i)
    local scales, sums = M.of_rows(product.scheme, own.scales, of.all, k0)
    return of_columns(rows, panels, {
      label = of.label, mode = mode, last = is_last, steps = steps, bias = of.bias,
      activate = of.activate, times = own.times, add = own.add, c = { p = own.c, row = own.row, ends = of.ends },
      a = { p = own.x:at(k0 * of.k_stride), row = of.row, k_stride = of.k_stride, streamed = streamed,
            scales = scales, sums = sums },
      b = M.operand(product, panels, of.w, k0, own.next) })
  end
  local one = of.alone and expr.is_const(count) and count < 2 and product.chunks.count == 1
  if not ways.of(product.scheme).buffered or K.full or one then
    return K:each("tile", count, function(i)
      K:chunks(product.chunks, function(...) whole_tile(K, tile(i, ...)) end)
    end)
  end
  choices.add(K.t.why, "interleaved_ends")
  if tiles.keeps_sums(product) then choices.add(K.t.why, "near_chunks") end
  local most, _, at_most = tiles.keeps_sums(product) and tiles.TOGETHER, expr.range(count)
  if not most or at_most and at_most <= most then
    return few_tiles(K, product, panels, rows, count, tile)
  end
  K:each("few", expr.ceil_div(count, most), function(n)
    local first = n * most
    local some = K.t:int("some", expr.min(most, count - first), { 1, most })
    few_tiles(K, product, panels, rows, some, function(i, ...) return tile(first + i, ...) end)
  end)
end

-- Records build(panels, j, panel) for each panel of a product: the j-th of a run of equal ones. `panel` is its offset.
function M.each_panel(K, product, build)
  for _, panels in ipairs(product.panel_runs) do
    K:each("panel", panels.count, function(j) build(panels, j, tiles.panel_at(product, panels, j)) end)
  end
end

-- C[rows][width] = A B + bias for one group of queries; of = { label, weights, b, bias, c }. The weights are A, packed
-- in tiles as high as those of the product, and b is B[steps][width].
function M.rows(K, product, group, of)
  for _, run in ipairs(product.runs) do
    K:each("tile", run.count, function(i)
      local row = i * run.size + run.at
      K:chunks(product.chunks, function(mode, k0, steps, is_last)
        whole_tile(K, {
          name = ("%s_%dx%s"):format(of.label, run.size, group.name),
          text = ("A tile of %d rows and the queries of a group"):format(run.size),
          rows = run.size, vecs = group.vecs, mode = mode, last = is_last, steps = steps,
          a = { p = of.weights:at(row * product.steps + k0 * run.size), row = 1, k_stride = run.size },
          b = { p = of.b:at(k0 * group.width), k_stride = group.width, scheme = K.plan.applying.scheme },
          bias = of.bias and of.bias:at(row), start = gemm.from_row,
          c = { p = of.c:at(row * group.width), row = group.width, ends = {} },
        })
      end)
    end)
  end
end

return M
