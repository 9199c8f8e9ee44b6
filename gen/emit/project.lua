-- The products with weights: transposed inputs, queries, keys and values, and the output.

local expr = require "expr"
local gemm = require "emit.gemm"
local masked = require "emit.masked"
local suffix = require "emit.code".suffix
local transpose = require "emit.transpose"

local M = {}

-- X[q][d_model] of one group -> XT[d_model][width], zeros in the lanes without a query.
function M.transpose(K, group, x, xt)
  local t, cfg, isa = K.t, K.plan.cfg, K.plan.isa
  local lanes, d = isa.lanes, cfg.d_model
  K:part("transpose_" .. group.name,
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
    K:each("block", d // lanes, function(i) K.t:block(function() square(i * lanes, lanes) end) end)
    if d % lanes > 0 then
      K.t:block(function() square(d - d % lanes, d % lanes) end)
    end
  end)
end

-- Runs of tiles of a product with vectors over columns. Rows of A are `a_row` floats apart, its K
-- steps `a_step`; run-time `len` (or nil) bounds the rows.
local function column_product(K, label, product, chunks, a, panels, bias, out, len)
  local t = K.t
  K:chunks(chunks, function(mode, k0, steps)
    local panel_at = 0
    for _, block in ipairs(product.blocks) do
      K:each("panel", block.count, function(j)
        local panel = panels:at(j * (block.width * chunks.total) + (panel_at + k0 * block.width))
        for _, run in ipairs(product.row_runs) do
          local count = run.count
          if len and not K.full then
            count = expr.min(count, expr.ceil_div(len - run.at, run.size))
          end
          K:each("tile", count, function(i)
            local row = i * run.size + run.at
            local column = j * block.width + block.at
            local name = ("%s_%dx%d_k%d%s"):format(label, run.size, block.used, steps, suffix[mode])
            K:part(name, ("A tile of %d rows and %d columns, %d K steps%s."):format(run.size,
              block.used, steps, mode == "next" and ", added to what is there" or ""), {
              { "a", "in", a.p:at(row * a.row + k0 * a.step) },
              { "b", "in", panel },
              { "bias", "in", bias:at(column) },
              { "c", "out", out.p:at(row * out.row + column) },
            }, function(p)
              local tile = {
                rows = run.size, vecs = block.vecs, steps = steps,
                unroll = K:unroll(steps, run.size * #block.vecs),
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
function M.queries(K, group, wq, bq, xt, q)
  local t, plan = K.t, K.plan
  K:chunks(plan.k_chunks, function(mode, k0, steps)
    for _, run in ipairs(group.q) do
      K:each("tile", run.count, function(i)
        local row = i * run.size + run.at
        K:part(("query_%dx%s_k%d%s"):format(run.size, group.name, steps, suffix[mode]),
          ("%d rows of Q^T for a group of queries, %d K steps."):format(run.size, steps), {
          { "a", "in", wq:at(row * plan.cfg.d_model + k0 * run.size) },
          { "b", "in", xt:at(k0 * group.width) },
          { "bias", "in", bq:at(row) },
          { "c", "out", q:at(row * group.width) },
        }, function(p)
          local tile = {
            rows = run.size, vecs = group.vecs, steps = steps,
            unroll = K:unroll(steps, run.size * #group.vecs),
            a = { p = p.a, row = 1, step = run.size }, b = { p = p.b, step = group.width },
            init = mode == "next" and gemm.from_zero(t) or gemm.from_row(t, p.bias),
          }
          gemm.store(t, tile, gemm.tile(t, tile), p.c, group.width, mode == "next")
        end)
      end)
    end
  end)
end

-- K or V (which = "k", "v") of a block of heads; run-time `len` (or nil) bounds the keys.
function M.keys_values(K, which, x, packed, kv, len)
  local plan = K.plan
  local product, w, bias = plan[which], packed:at(plan.head["w" .. which]), packed:at(plan.head["b" .. which])
  local label = ({ k = "keys", v = "values" })[which]
  local params = { { "x", "in", x }, { "w", "in", w }, { "bias", "in", bias },
                   { "out", "out", kv:at(plan.kv[which]) } }
  if len then params[#params + 1] = { "len", "int", len } end
  K:part("project_" .. label, ("%s of %d head%s."):format(label:gsub("^.", string.upper), plan.hb,
    plan.hb > 1 and "s" or ""), params, function(p)
    column_product(K, label, product, plan.k_chunks, { p = p.x, row = plan.cfg.d_model, step = 1 },
      p.w, p.bias, { p = p.out, row = product.ld }, p.len)
    if which == "k" then return end
    if len and not K.full then
      masked.clear_values(K, p.out, p.len)
    elseif plan.kv_rows > plan.cfg.seq_kv then
      masked.clear_values(K, p.out, plan.cfg.seq_kv)
    end
  end)
end

-- Y of a group from the context of all heads.
function M.output(K, group, o, packed, y)
  local plan = K.plan
  K:part("output_" .. group.name, ("Y of %d queries, from the context of all heads."):format(group.used), {
    { "o", "in", o }, { "packed", "in", packed }, { "y", "out", y },
  }, function(p)
    column_product(K, "output_" .. group.name, group.out, plan.out_chunks,
      { p = p.o, row = 1, step = group.width },
      p.packed:at(plan.packed.wo), p.packed:at(plan.packed.bo),
      { p = p.y, row = plan.cfg.d_model, exact = true })
  end)
end

return M
