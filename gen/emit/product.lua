-- Products with weights: tiles over chunks of K steps, panels of columns, rows for a group of queries.

local choices = require "choices"
local coarse = require "emit.coarse"
local epilogue = require "emit.epilogue"
local expr = require "expr"
local fetch = require "emit.fetch"
local gemm = require "emit.gemm"
local suffix = require "emit.code".suffix
local tiled = require "emit.tiled"
local tiles = require "tiles"

local M = {}

-- Where a tile goes, for an epilogue.
local function target_of(K, tile, c)
  return { p = c, row = tile.c.row, exact = tile.c.exact, pairs = tile.c.pairs, round = tile.c.round, rows = tile.rows,
           product = tile.c.pairs and K.plan.attend_product }
end

-- Operand B of a chunk of K steps from k0 on, in a panel of a block: { p, step, product }, the last being what
-- multiplies it, and for quants also their scales. next: { p, numbers }, what is fetched meanwhile of another panel, if
-- there is one: so many numbers for each K step, from p on for the first one of the panel.
function M.operand(product, block, panel, k0, next)
  local own, width = product.multiply, block.width
  local quant, in_step = own.quant, tiles.in_step(own)
  local at = expr.share(k0, quant and in_step or 1) * width
  local b = { p = panel:at(at), step = width, product = own }
  if next then b.next, b.fetched = next.p:at(at), next.numbers end
  if quant then
    local row = tiles.ceil_div(product.steps, in_step) + (quant.group and expr.div(k0, quant.group) or 0)
    b.scales = panel:at(row * width):as(own.scales)
  end
  return b
end

-- Operand A of a tile, in the function that has it as p.a.
local function operand_a(tile, p)
  local a = tile.a
  return { p = p.a, row = a.row, step = a.step, passing = a.passing }
end

-- Operand B likewise. A K step fetches what the same step of the next panel reads, or a share of it.
local function operand_b(K, tile, p)
  local b, product = { p = p.b, step = tile.b.step }, tile.b.product
  if p.next then
    local bytes, op = product.tiled and 4 or product.b.bytes, product.tiled and "prefetch_far"
    b.beside = { { p = p.next, step = b.step } }
    function b.fetch(k) fetch(K.t, bytes, tile.b.fetched, p.next:at(k * b.step), op) end
  end
  return b
end

-- K steps of a loop, and chains of sums: see code.lua. Those of a word of B, or that are taken at once, stay together.
local function summing(K, product, rows, vectors, steps)
  local deep = tiles.deep(product)
  local unroll, chains = K:summing(product, tiles.round_up(rows, deep), vectors, steps // deep)
  return tiles.round_up(unroll * deep, tiles.in_step(product)), chains
end

-- What gemm.tile takes of a tile, in the function that has its parameters as p.
local function inner_of(K, tile, p)
  local product = tile.b.product
  local unroll, chains = summing(K, product, tile.rows, #tile.vecs, tile.steps)
  return { product = product, rows = tile.rows, vecs = tile.vecs, steps = tile.steps, unroll = unroll, chains = chains,
           a = operand_a(tile, p), b = operand_b(K, tile, p), sums = p.sums,
           continues = tile.mode == "more" or tile.mode == "last" }
end

-- Operands of a tile as parameters.
local function operand_params(tile)
  local params = { { "a", "in", tile.a.p }, { "b", "in", tile.b.p } }
  if tile.sums then params[3] = { "sums", "out", tile.sums } end
  if tile.b.next then params[#params + 1] = { "next", "in", tile.b.next } end
  return params
end

-- A chunk of the K steps of a tile whose sums are kept for the next one.
local function kept_tile(K, tile)
  K:part(("%s_k%d%s"):format(tile.name, tile.steps, suffix[tile.mode]),
    ("%s, %d K steps%s."):format(tile.text, tile.steps, tile.mode == "more" and ", added to what is there" or ""),
    operand_params(tile), function(p) tiled.products(K.t, inner_of(K, tile, p), p.sums) end)
end

-- One tile of a product, C = A B + bias, over a chunk of its K steps. tile: name and text of the function, rows, vecs,
-- mode, steps; a { p, row, step, passing } and b { p, step } as gemm.tile has them, b also with its product;
-- c { p, row, exact, pairs } as an epilogue's target; sums, where those of the chunks before are. Without a bias sums
-- start at zero; with one, start is gemm's way to start from it.
local function chunk_tile(K, tile)
  if K.plan.product.coarse then return coarse.tile(K, tile, target_of) end
  local t, next_chunk, steps, product = K.t, tile.mode == "next", tile.steps, tile.b.product
  local bias = not next_chunk and tile.bias
  local params = operand_params(tile)
  if tile.b.scales then params[#params + 1] = { "scales", "in", tile.b.scales } end
  if bias then params[#params + 1] = { "bias", "in", bias } end
  params[#params + 1] = { "c", "out", tile.c.p }
  K:part(("%s_k%d%s"):format(tile.name, steps, suffix[tile.mode]),
    ("%s, %d K steps%s."):format(tile.text, steps, next_chunk and ", added to what is there" or ""), params, function(p)
    local late = p.scales or product.deep -- the bias; the sums of blocks are in no order of columns
    local inner = inner_of(K, tile, p)
    inner.init = bias and not late and tile.start(t, p.bias) or nil
    local target = target_of(K, tile, p.c)
    local store = epilogue.store_as(t, target)
    local added = next_chunk and target or bias and { p = p.bias, row = 0 }
    local add = p.scales and epilogue.scaled(t, p.scales, added)
      or (next_chunk or late and added) and epilogue.add(t, added)
    epilogue.run(inner, gemm.tile(t, inner), add and { add, store } or { store })
  end)
end

-- The same of words of bytes: all K steps, whose sums are integers. b.scales are those of
-- the columns, behind which what sums begin with may be, a.scales those of the rows.
local function words_tile(K, tile)
  local t, product, steps = K.t, tile.b.product, tile.steps
  local params = operand_params(tile)
  params[#params + 1] = { "row_scales", "in", tile.a.scales }
  params[#params + 1] = { "scales", "in", tile.b.scales }
  if tile.bias then params[#params + 1] = { "bias", "in", tile.bias } end
  params[#params + 1] = { "c", "out", tile.c.p }
  K:part(tile.name .. "_k" .. steps .. suffix[tile.mode], ("%s, %d K steps."):format(tile.text, steps), params,
    function(p)
    local inner = inner_of(K, tile, p)
    inner.init = product.unsigned and gemm.from_columns(t, p.scales:at(tile.b.step), product) or nil
    local sums = gemm.tile(t, inner)
    local columns = {}
    for c, v in ipairs(tile.vecs) do
      local at = (c - 1) * t.isa.lanes
      columns[c] = { scale = t:op("load", v.w, "scale_c" .. c - 1, p.scales:at(at)),
                     bias = p.bias and t:op("load", v.w, "bias_c" .. c - 1, p.bias:at(at)) }
    end
    local target = target_of(K, tile, p.c)
    epilogue.run(inner, sums, { epilogue.from_words(t, p.row_scales, columns), epilogue.store_as(t, target) })
  end)
end

-- One with vectors over columns, those of a panel, b being the operand of its chunk; sums: as chunk_tile has them.
function M.column_tile(K, label, rows, block, mode, steps, a, b, bias, c, sums)
  local record = (mode == "start" or mode == "more") and kept_tile
    or K.plan.product.integers and words_tile or chunk_tile
  record(K, {
    name = ("%s_%dx%d"):format(label, rows, block.used),
    text = ("A tile of %d rows and %d columns"):format(rows, block.used),
    rows = rows, vecs = block.vecs, mode = mode, steps = steps,
    a = a, b = b, bias = bias, start = gemm.from_columns, c = c, sums = sums,
  })
end

-- build(i, mode, k0, steps, sums) for `count` row tiles of a panel, each of `rows` rows, and the chunks of their K
-- steps. sums: a buffer of as many tiles, where chunks are of a panel.
function M.each_tile(K, product, block, rows, count, build)
  local chunks = product.chunks
  if not tiles.keeps_sums(product) then
    return K:each("tile", count, function(i)
      K:chunks(chunks, function(mode, k0, steps) build(i, mode, k0, steps) end)
    end)
  end
  choices.add(K.t.why, "near_chunks")
  local size = tiled.size(K.plan.isa, rows, block.vecs)
  local function few(first, some)
    K.t:block(function()
      local sums = K.t:buffer("sums", tiles.TOGETHER * size)
      local function chunk(mode, k0, steps)
        K:each("tile", some, function(i) build(first + i, mode, k0, steps, sums:at(i * size)) end)
      end
      chunk("start", 0, chunks.size)
      K:each("chunk", chunks.count - 2, function(i) chunk("more", (i + 1) * chunks.size, chunks.size) end)
      chunk("last", (chunks.count - 1) * chunks.size, chunks.last)
    end)
  end
  if expr.is_const(count) and count <= tiles.TOGETHER then return few(0, count) end
  K:each("few", expr.ceil_div(count, tiles.TOGETHER), function(i)
    few(i * tiles.TOGETHER, expr.min(tiles.TOGETHER, count - i * tiles.TOGETHER))
  end)
end

-- build(block, j, panel) for each panel of a product: the j-th of a block of equal ones; `panel` is
-- its place, in numbers.
function M.each_panel(K, product, build)
  local at = 0
  for _, block in ipairs(product.blocks) do
    local first = at
    K:each("panel", block.count, function(j) build(block, j, j * (block.width * product.depth) + first) end)
    at = at + block.count * block.width * product.depth
  end
end

-- C[rows][width] = A B + bias for one group of queries: weights A, packed in tiles as high as those of
-- the product, times B[steps][width].
function M.rows(K, label, product, group, weights, b, bias, c)
  for _, run in ipairs(product.runs) do
    K:each("tile", run.count, function(i)
      local row = i * run.size + run.at
      K:chunks(product.chunks, function(mode, k0, steps)
        chunk_tile(K, {
          name = ("%s_%dx%s"):format(label, run.size, group.name),
          text = ("%d rows for a group of queries"):format(run.size),
          rows = run.size, vecs = group.vecs, mode = mode, steps = steps,
          a = { p = weights:at(row * product.steps + k0 * run.size), row = 1, step = run.size },
          b = { p = b:at(k0 * group.width), step = group.width, product = K.plan.applying.product },
          bias = bias and bias:at(row), start = gemm.from_row,
          c = { p = c:at(row * group.width), row = group.width },
        })
      end)
    end)
  end
end

return M
