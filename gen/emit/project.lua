-- The products with weights: transposed inputs, queries, keys and values, and the output.

local expr = require "expr"
local gemm = require "emit.gemm"
local quadrants = require "emit.quadrants"
local masked = require "emit.masked"
local suffix = require "emit.code".suffix
local transpose = require "emit.transpose"

local M = {}

-- X[q][d] of one group, its rows `ld` floats apart -> XT[d][width], zeros in the lanes without a query.
function M.transpose(K, label, group, d, ld, x, xt)
  local t, isa = K.t, K.plan.isa
  local lanes = isa.lanes
  K:part(label .. "_" .. group.name,
    ("XT[%d][%d] from %d rows of X[..][%d]."):format(d, group.width, group.used, ld),
    { { "x", "in", x }, { "xt", "out", xt } }, function(p)
    local function square(column, columns)
      for c, v in ipairs(group.vecs) do
        local rows = {}
        for r = 0, lanes - 1 do
          local name = ("x_r%d_c%d"):format(r, c - 1)
          local at = p.x:at(((c - 1) * lanes + r) * ld + column)
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
    K:each("block", d // lanes, function(i) K.t:block(function() square(i * lanes, lanes) end) end)
    if d % lanes > 0 then
      K.t:block(function() square(d - d % lanes, d % lanes) end)
    end
  end)
end

-- One tile of a product, C = A B + bias, over a chunk of its K steps. tile: name and text of the function,
-- rows, vecs, mode, steps; a { p, row, step } and b { p, step } as gemm.tile has them, c { p, row, exact }
-- as gemm.store. Without a bias sums start at zero; with one, start is gemm's way to start from it.
local function chunk_tile(K, tile)
  local t, next_chunk, steps, bias = K.t, tile.mode == "next", tile.steps, tile.bias
  local params = { { "a", "in", tile.a.p }, { "b", "in", tile.b.p }, { "c", "out", tile.c.p } }
  if bias then table.insert(params, 3, { "bias", "in", bias }) end
  K:part(("%s_k%d%s"):format(tile.name, steps, suffix[tile.mode]),
    ("%s, %d K steps%s."):format(tile.text, steps, next_chunk and ", added to what is there" or ""), params, function(p)
    local unroll, chains = K:summing(tile.rows, #tile.vecs, steps)
    local inner = {
      rows = tile.rows, vecs = tile.vecs, steps = steps, unroll = unroll, chains = chains,
      a = { p = p.a, row = tile.a.row, step = tile.a.step }, b = { p = p.b, step = tile.b.step },
      init = (next_chunk or not bias) and gemm.from_zero(t) or tile.start(t, p.bias),
    }
    gemm.store(t, inner, gemm.tile(t, inner), p.c, tile.c.row, next_chunk, tile.c.exact)
  end)
end

-- One with vectors over columns, those of a panel of B.
local function column_tile(K, label, rows, block, mode, steps, a, panel, bias, c)
  chunk_tile(K, {
    name = ("%s_%dx%d"):format(label, rows, block.used),
    text = ("A tile of %d rows and %d columns"):format(rows, block.used),
    rows = rows, vecs = block.vecs, mode = mode, steps = steps,
    a = a, b = { p = panel, step = block.width }, bias = bias, start = gemm.from_columns, c = c,
  })
end

-- build(block, j, panel) for each panel of a product: the j-th of a block of equal ones; `panel` is
-- its place, in floats.
function M.each_panel(K, product, steps, build)
  local at = 0
  for _, block in ipairs(product.blocks) do
    local first = at
    K:each("panel", block.count, function(j) build(block, j, j * (block.width * steps) + first) end)
    at = at + block.count * block.width * steps
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
          b = { p = b:at(k0 * group.width), step = group.width },
          bias = bias and bias:at(row), start = gemm.from_row,
          c = { p = c:at(row * group.width), row = group.width },
        })
      end)
    end)
  end
end

-- K, V or Q (which = "k", "v", "q") of a block of heads; run-time `len` (or nil) bounds the keys; sums: of
-- the quadrants of x, where it is made of such.
function M.keys_values(K, which, x, packed, kv, len, sums)
  local plan, d = K.plan, K.plan.cfg.d_model
  local product, w = plan.projected[which], packed:at(plan.head["w" .. which])
  local bias = not plan.fold.without[which] and packed:at(plan.head["b" .. which]) or nil
  local label = ({ k = "keys", v = "values", q = "queries" })[which]
  local params = { { "x", "in", x }, { "w", "in", w }, { "out", "out", kv:at(plan.kv[which]) } }
  if bias then params[#params + 1] = { "bias", "in", bias } end
  if len then params[#params + 1] = { "len", "int", len } end
  if product.quadrants then
    params[#params + 1] = { "s", "in", sums }
    params[#params + 1] = { "m", "out", kv:at(plan.kv["m" .. which]) }
  end
  K:part("project_" .. label, ("%s of %d head%s."):format(label:gsub("^.", string.upper), plan.hb,
    plan.hb > 1 and "s" or ""), params, function(p)
    if product.quadrants then
      return quadrants.project(K, label, product, p, function(rows, block, mode, steps, a, panel, c)
        column_tile(K, label, rows, block, mode, steps, a, panel, nil, c)
      end, M.each_panel)
    end
    -- The panels are the inner loop: they are few, and X may be larger than the cache.
    for _, run in ipairs(product.runs[1]) do
      local count = run.count
      if p.len and not K.full then
        count = expr.min(count, expr.ceil_div(p.len - run.at, run.size))
      end
      K:each("tile", count, function(i)
        local row = i * run.size + run.at
        M.each_panel(K, product, d, function(block, j, panel)
          local column = j * block.width + block.at
          K:chunks(product.chunks, function(mode, k0, steps)
            column_tile(K, label, run.size, block, mode, steps,
              { p = p.x:at(row * d + k0), row = d, step = 1 }, p.w:at(panel + k0 * block.width),
              p.bias and p.bias:at(column), { p = p.out:at(row * product.ld + column), row = product.ld })
          end)
        end)
      end)
    end
    if which ~= "v" then return end
    if len and not K.full then
      masked.clear_values(K, p.out, p.len)
    elseif plan.kv_rows > plan.cfg.seq_kv then
      masked.clear_values(K, p.out, plan.cfg.seq_kv)
    end
  end)
end

-- A panel of Y, all rows of a block of groups, from the context of all heads. pieces: { group, o, y }
-- each, with the number of equal groups in group.pieces.
function M.output(K, pieces, block, panel, bias)
  local plan = K.plan
  local d, names, queries = plan.cfg.d_model, {}, 0
  local params = { { "panel", "in", panel }, { "bias", "in", bias } }
  for i, piece in ipairs(pieces) do
    names[i] = piece.count .. "x" .. piece.group.name
    queries = queries + piece.count * piece.group.used
    params[#params + 1] = { "o" .. i, "in", piece.o }
    params[#params + 1] = { "y" .. i, "out", piece.y }
  end
  K:part(("output_%s_%d"):format(table.concat(names, "_"), block.used),
    ("%d columns of Y for %d queries, from the context of all heads."):format(block.used, queries),
    params, function(p)
    for i, piece in ipairs(pieces) do
      local group = piece.group
      K:each("g", piece.count, function(g)
        local o, y = p["o" .. i]:at(g * group.o_floats), p["y" .. i]:at(g * (group.used * d))
        for _, run in ipairs(plan.out.runs[piece.kind]) do
          K:each("tile", run.count, function(j)
            local row = j * run.size + run.at
            K:chunks(plan.out.chunks, function(mode, k0, steps)
              column_tile(K, "output_" .. group.name, run.size, block, mode, steps,
                { p = o:at(row + k0 * group.width), row = 1, step = group.width },
                p.panel:at(k0 * block.width), p.bias, { p = y:at(row * d), row = d, exact = true })
            end)
          end)
        end
      end)
    end
  end)
end

return M
