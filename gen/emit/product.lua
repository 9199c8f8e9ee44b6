-- Products with weights: tiles over chunks of K steps, panels of columns, rows for a group of queries.

local coarse = require "emit.coarse"
local epilogue = require "emit.epilogue"
local expr = require "expr"
local fetch = require "emit.fetch"
local gemm = require "emit.gemm"
local suffix = require "emit.code".suffix
local tiles = require "tiles"

local M = {}

-- Where a tile goes, for an epilogue.
local function target_of(K, tile, c)
  return { p = c, row = tile.c.row, exact = tile.c.exact, pairs = tile.c.pairs, round = tile.c.round, rows = tile.rows,
           product = tile.c.pairs and K.plan.attend_product }
end

-- Operand B of a chunk of K steps from k0 on, in a panel of a block: { p, step, product }, the last being what
-- multiplies it, and for quants also their scales. next: a panel that is fetched meanwhile, if there is one.
function M.operand(product, block, panel, k0, next)
  local own, width = product.multiply, block.width
  local quant, in_step = own.quant, tiles.in_step(own)
  if not quant then
    return { p = panel:at(k0 * width), step = width, product = own, next = next and next:at(k0 * width) }
  end
  local row = tiles.ceil_div(product.steps, in_step) + (quant.group and expr.div(k0, quant.group) or 0)
  return { p = panel:at(expr.share(k0, in_step) * width), step = width, product = own,
           scales = panel:at(row * width):as(own.scales) }
end

-- Operand A of a tile, in the function that has it as p.a.
local function operand_a(tile, p)
  local a = tile.a
  return { p = p.a, row = a.row, step = a.step, passing = a.passing }
end

-- Operand B likewise. A K step fetches what the same step of the next panel reads.
local function operand_b(K, tile, p)
  local b = { p = p.b, step = tile.b.step }
  if p.next then
    b.beside = { { p = p.next, step = b.step } }
    function b.fetch(k) fetch(K.t, tile.b.product.b.bytes, b.step, p.next:at(k * b.step)) end
  end
  return b
end

-- K steps of a loop, and chains of sums: see code.lua. Those of a word of B, or that are taken at once, stay together.
local function summing(K, product, rows, vectors, steps)
  local deep = tiles.deep(product)
  local unroll, chains = K:summing(product, tiles.round_up(rows, deep), vectors, steps // deep)
  return tiles.round_up(unroll * deep, tiles.in_step(product)), chains
end

-- One tile of a product, C = A B + bias, over a chunk of its K steps. tile: name and text of the function, rows, vecs,
-- mode, steps; a { p, row, step, passing } and b { p, step } as gemm.tile has them, b also with its product;
-- c { p, row, exact, pairs } as an epilogue's target. Without a bias sums start at zero; with one, start is gemm's way
-- to start from it.
local function chunk_tile(K, tile)
  if K.plan.product.coarse then return coarse.tile(K, tile, target_of) end
  local t, next_chunk, steps, product = K.t, tile.mode == "next", tile.steps, tile.b.product
  local bias = not next_chunk and tile.bias
  local params = { { "a", "in", tile.a.p }, { "b", "in", tile.b.p }, { "c", "out", tile.c.p } }
  if bias then table.insert(params, 3, { "bias", "in", bias }) end
  if tile.b.scales then table.insert(params, 3, { "scales", "in", tile.b.scales }) end
  if tile.b.next then table.insert(params, 3, { "next", "in", tile.b.next }) end
  K:part(("%s_k%d%s"):format(tile.name, steps, suffix[tile.mode]),
    ("%s, %d K steps%s."):format(tile.text, steps, next_chunk and ", added to what is there" or ""), params, function(p)
    local unroll, chains = summing(K, product, tile.rows, #tile.vecs, steps)
    local late = p.scales or product.deep -- the bias; the sums of blocks are in no order of columns
    local inner = {
      product = product, rows = tile.rows, vecs = tile.vecs, steps = steps, unroll = unroll, chains = chains,
      a = operand_a(tile, p), b = operand_b(K, tile, p),
      init = bias and not late and tile.start(t, p.bias) or nil,
    }
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
  local params = { { "a", "in", tile.a.p }, { "b", "in", tile.b.p }, { "row_scales", "in", tile.a.scales },
                   { "scales", "in", tile.b.scales }, { "c", "out", tile.c.p } }
  if tile.bias then table.insert(params, 5, { "bias", "in", tile.bias }) end
  K:part(tile.name .. "_k" .. steps, ("%s, %d K steps."):format(tile.text, steps), params, function(p)
    local unroll, chains = summing(K, product, tile.rows, #tile.vecs, steps)
    local inner = {
      product = product, rows = tile.rows, vecs = tile.vecs, steps = steps, unroll = unroll, chains = chains,
      a = operand_a(tile, p), b = { p = p.b, step = tile.b.step },
      init = product.unsigned and gemm.from_columns(t, p.scales:at(tile.b.step), product) or nil,
    }
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

-- One with vectors over columns, those of a panel, b being the operand of its chunk.
function M.column_tile(K, label, rows, block, mode, steps, a, b, bias, c)
  local record = K.plan.product.integers and words_tile or chunk_tile
  record(K, {
    name = ("%s_%dx%d"):format(label, rows, block.used),
    text = ("A tile of %d rows and %d columns"):format(rows, block.used),
    rows = rows, vecs = block.vecs, mode = mode, steps = steps,
    a = a, b = b, bias = bias, start = gemm.from_columns, c = c,
  })
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
