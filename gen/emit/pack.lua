-- Packing of the weights into panels: what the kernels read from front to back.
--
-- A panel holds some columns of a matrix, K step by K step: panel[k][column]. Panels of Wq are as
-- wide as a tile of Q^T is high; those of Wk, Wv and Wo are whole vectors, zeros behind the end.
-- log2(e)/sqrt(dk) goes into Wq and bq, so that the weights are exp2 of the plain scores.

local expr = require "expr"
local tape = require "tape"

local M = {}

local panel_fn = { name = "mhagen_pack_panel" }

function M.emit(t, plan)
  local cfg = plan.cfg
  local layout = expr.var("weights->layout")
  local scale = 1.4426950408889634 / math.sqrt(cfg.dk)

  local function each(var, count, build)
    if count == 1 then build(0) else t:loop(var, count, build) end
  end
  local function panel(matrix, steps, columns, column, used, width, factor, to)
    t:call(panel_fn, { tape.pointer("weights->" .. matrix), layout, steps, columns, column, used, width,
                       factor, to })
  end
  local function panels(matrix, steps, columns, column, product, to)
    local at = 0
    for _, block in ipairs(product.blocks) do
      each("panel", block.count, function(j)
        panel(matrix, steps, columns, column + j * block.width + block.at, block.used, block.width, 1.0,
          to:at(j * (block.width * steps) + at))
      end)
      at = at + block.count * block.width * steps
    end
  end

  t:define({
    name = "pack_all", keep = true, doc = "Every weight into its place in `packed`.",
    params = { { kind = "const mhagen_weights *", name = "weights" }, { kind = "float *", name = "packed" } },
  }, function()
    local packed = tape.pointer("packed")
    local hb, d = plan.hb, cfg.d_model
    each("hb", plan.head_blocks, function(i)
      local head = packed:at(i * plan.head.total + plan.packed.heads)
      local k_column, v_column = i * (hb * cfg.dk), i * (hb * cfg.dv)
      for _, run in ipairs(plan.q) do
        each("tile", run.count, function(j)
          local row = j * run.size + run.at
          panel("wq", d, cfg.h * cfg.dk, k_column + row, run.size, run.size, scale,
            head:at(plan.head.wq + row * d))
        end)
      end
      local function bias(name, columns, column, used, width, factor)
        panel(name, 1, columns, column, used, width, factor, head:at(plan.head[name]))
      end
      bias("bq", cfg.h * cfg.dk, k_column, hb * cfg.dk, hb * cfg.dk, scale)
      panels("wk", d, cfg.h * cfg.dk, k_column, plan.k, head:at(plan.head.wk))
      bias("bk", cfg.h * cfg.dk, k_column, hb * cfg.dk, plan.k.ld, 1.0)
      panels("wv", d, cfg.h * cfg.dv, v_column, plan.v, head:at(plan.head.wv))
      bias("bv", cfg.h * cfg.dv, v_column, hb * cfg.dv, plan.v.ld, 1.0)
    end)
    local out = plan.out
    panels("wo", cfg.h * cfg.dv, d, 0, out, packed:at(plan.packed.wo))
    panel("bo", 1, d, 0, d, out.ld, 1.0, packed:at(plan.packed.bo))
  end)
end

return M
