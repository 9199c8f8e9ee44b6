-- Packing of the weights into panels: what the kernels read from front to back.
--
-- A panel holds some columns of a matrix, K step by K step: panel[k][column]. Panels of the weights of
-- Q^T are as wide as a tile of it is high; those of Wk, Wv and Wo are whole vectors, zeros behind the
-- end. log2(e)/sqrt(dk) goes into Wq and bq, so that the weights are exp2 of the plain scores.

local expr = require "expr"
local strassen = require "strassen"
local tape = require "tape"

local M = {}

-- Functions of the runtime; mhagen.h says what their arguments are.
local panel_fn = { name = "mhagen_pack_panel" }
local quadrants_fn = { name = "mhagen_pack_quadrants" }
local product_fn = { name = "mhagen_pack_product" }
local bias_fn = { name = "mhagen_pack_output_bias" }

function M.emit(t, plan)
  local cfg, f, hb, d = plan.cfg, plan.fold, plan.hb, plan.cfg.d_model
  local k_columns, v_columns = cfg.h * cfg.dk, cfg.h * cfg.dv
  local layout = expr.var("weights->layout")
  local flipped = 1 - layout -- that of the transposed matrix
  local scale = 1.4426950408889634 / math.sqrt(cfg.dk)
  local function weights(name) return tape.pointer("weights->" .. name) end

  local function each(var, count, build)
    if count == 1 then build(0) else t:loop(var, count, build) end
  end
  -- Steps row .. row + steps of a matrix with `rows` rows.
  local function panel(matrix, order, rows, columns, row, column, steps, used, width, factor, to)
    t:call(panel_fn, { weights(matrix), order, rows, columns, row, column, steps, used, width, factor, to })
  end
  -- The panels of a product with vectors over columns.
  local function panels(product, steps, to, build)
    local at = 0
    for _, block in ipairs(product.blocks) do
      each("panel", block.count, function(j)
        build(j * block.width + block.at, block, to:at(j * (block.width * steps) + at))
      end)
      at = at + block.count * block.width * steps
    end
  end
  -- The panels of a product by rows, as high as its tiles.
  local function tiles(product, to, build)
    for _, run in ipairs(product.runs) do
      each("tile", run.count, function(j)
        local row = j * run.size + run.at
        build(row, run.size, to:at(row * product.steps))
      end)
    end
  end

  -- What is projected with lanes over columns (which = "q", "k", "v"), and its bias where it has one.
  local function projected(which, columns, first, used, factor, to)
    local product, bias = plan.projected[which], plan.head["b" .. which]
    local at = to:at(plan.head["w" .. which])
    for i = 1, product.quadrants or 0 do
      panels(product, product.steps, at:at((i - 1) * product.floats), function(column, block, place)
        local s11, s12, s21, s22 = table.unpack(strassen.products[i].signs)
        t:call(quadrants_fn, { weights("w" .. which), layout, d, columns, product.steps, product.ld // 2, s11, s12,
                               s21, s22, first + column, block.used, block.width, factor, place })
      end)
    end
    if not product.quadrants then
      panels(product, d, at, function(column, block, place)
        panel("w" .. which, layout, d, columns, 0, first + column, d, block.used, block.width, factor, place)
      end)
    end
    if bias then
      panel("b" .. which, layout, 1, columns, 0, first, 1, used, product.ld, factor, to:at(bias))
    end
  end

  local function queries(to, first)
    local width = hb * cfg.dk
    if plan.projected.q then return projected("q", k_columns, first, width, scale, to) end
    tiles(plan.q, to:at(plan.head.wq), function(row, size, at)
      panel("wq", layout, d, k_columns, 0, first + row, d, size, size, scale, at)
    end)
    panel("bq", layout, 1, k_columns, 0, first, 1, width, width, scale, to:at(plan.head.bq))
  end

  -- Wq or bq times Wk^T of a head.
  local function merged_queries(to, first)
    local function product(matrix, steps, head, column, used, width, at)
      t:call(product_fn, { weights(matrix), layout, weights("wk"), flipped, steps, k_columns, d,
                           head * cfg.dk + first, cfg.dk, column, used, width, scale, at })
    end
    if plan.projected.q then
      panels(plan.projected.q, d, to:at(plan.head.wq), function(column, block, at)
        product("wq", d, 0, column, block.used, block.width, at)
      end)
      return product("bq", 1, 0, 0, d, plan.projected.q.ld, to:at(plan.head.bq))
    end
    each("head", hb, function(i)
      tiles(plan.kq, to:at(i * (plan.kq.rows * d) + plan.head.wk), function(row, size, at)
        product("wq", d, i, row, size, size, at)
      end)
      product("bq", 1, i, 0, d, d, to:at(i * d + plan.head.bq))
    end)
  end

  local function keys(to, first)
    if plan.projected.k then return projected("k", k_columns, first, hb * cfg.dk, 1.0, to) end
    each("head", hb, function(i)
      tiles(plan.kq, to:at(i * (plan.kq.rows * plan.kq.steps) + plan.head.wk), function(row, size, at)
        panel("wk", flipped, k_columns, d, i * cfg.dk + first, row, cfg.dk, size, size, 1.0, at)
      end)
    end)
  end

  local function values(to, first)
    if plan.projected.v then return projected("v", v_columns, first, hb * cfg.dv, 1.0, to) end
    if not plan.vc then return end
    each("head", hb, function(i)
      tiles(plan.vc, to:at(i * (plan.vc.rows * plan.vc.steps) + plan.head.wv), function(row, size, at)
        panel("wv", layout, d, v_columns, 0, i * cfg.dv + first + row, d, size, size, 1.0, at)
      end)
    end)
  end

  local function output(to)
    panels(plan.out, plan.out.steps, to:at(plan.packed.wo), function(column, block, at)
      if f.vo ~= "merge" then
        return panel("wo", layout, v_columns, d, 0, column, v_columns, block.used, block.width, 1.0, at)
      end
      each("head", cfg.h, function(i)
        t:call(product_fn, { weights("wv"), layout, weights("wo"), layout, d, v_columns, d, i * cfg.dv,
                             cfg.dv, column, block.used, block.width, 1.0, at:at(i * (d * block.width)) })
      end)
    end)
    if f.without.v then return t:call(bias_fn, { tape.pointer("weights"), v_columns, d, to:at(plan.packed.bo) }) end
    panel("bo", layout, 1, d, 0, 0, 1, d, plan.out.ld, 1.0, to:at(plan.packed.bo))
  end

  t:define({
    name = "pack_all", keep = true, doc = "Every weight into its place in `packed`.",
    params = { { kind = "const mhagen_weights *", name = "weights" }, { kind = "float *", name = "packed" } },
  }, function()
    local packed = tape.pointer("packed")
    each("hb", plan.head_blocks, function(i)
      local head = packed:at(i * plan.head.total + plan.packed.heads)
      local first = i * (hb * cfg.dk)
      if f.qk == "merge" then
        merged_queries(head, first)
      else
        queries(head, first)
        keys(head, first)
      end
      values(head, i * (hb * cfg.dv))
    end)
    output(packed)
  end)
end

return M
