-- Projections by seven products of quadrants; see strassen.lua.

local strassen = require "strassen"

local M = {}

-- C of some rows from the seven products of its quadrants, m[7][rows][block.width].
local function join(K, label, product, rows, block, m, bias, out)
  local t, lanes = K.t, K.plan.isa.lanes
  local half, below = product.ld // 2, product.rows // 2 * product.ld
  local params = { { "m", "in", m }, { "out", "out", out } }
  if bias then params[#params + 1] = { "bias", "in", bias } end
  K:part(("%s_joined_%dx%d"):format(label, rows, block.used),
    ("%d rows and %d columns of each quadrant from the seven products."):format(rows, block.used), params, function(p)
    K:each("row", rows, function(r)
      for c, v in ipairs(block.vecs) do
        t:block(function()
          local from = r * block.width + (c - 1) * lanes
          local ms = {}
          for i = 1, #strassen.products do
            ms[i] = t:op("load", v.w, "m" .. i, p.m:at(from + (i - 1) * (rows * block.width)))
          end
          local u2 = t:op("add", v.w, "u2", ms[1], ms[6])
          local u3 = t:op("add", v.w, "u3", u2, ms[7])
          local u4 = t:op("add", v.w, "u4", u2, ms[5])
          local function store(which, value, column, row)
            if p.bias then
              local bias_of = t:op("load", v.w, "bias" .. which, p.bias:at(column + (c - 1) * lanes))
              value = t:op("add", v.w, "biased" .. which, value, bias_of)
            end
            t:op("store", v.w, nil, p.out:at(r * product.ld + (c - 1) * lanes + column + row), value)
          end
          store("11", t:op("add", v.w, "c11", ms[1], ms[2]), 0, 0)
          store("12", t:op("add", v.w, "c12", u4, ms[3]), half, 0)
          store("21", t:op("sub", v.w, "c21", u3, ms[4]), 0, below)
          store("22", t:op("add", v.w, "c22", u3, ms[5]), half, below)
        end)
      end
    end)
  end)
end

-- The product by quadrants, block of rows by block of rows. p: x, s (its sums), w, m (for the seven
-- products), out, and bias or nil. tile(rows, block, mode, steps, a, panel, c) records a tile, each_panel
-- goes over the panels of a product.
function M.project(K, label, product, p, tile, each_panel)
  local d = K.plan.cfg.d_model
  local function quadrant(of, which) return of:at(which[1] * (product.rows // 2 * d) + which[2] * product.steps) end
  for kind, rows in ipairs(product.row_blocks) do
    K:each("part", rows.count, function(part)
      local first = part * rows.size + rows.at
      each_panel(K, product, product.steps, function(block, j, panel)
        local m_floats = rows.size * block.width
        for i, one in ipairs(strassen.products) do
          local a = quadrant(one.sums and p.s or p.x, one.at)
          K:part(("%s_quadrant_%dx%d"):format(label, rows.size, block.used),
            ("%d rows and %d columns of a product of quadrants."):format(rows.size, block.used),
            { { "a", "in", a:at(first * d) }, { "b", "in", p.w:at(panel + (i - 1) * product.floats) },
              { "c", "out", p.m:at((i - 1) * m_floats) } }, function(q)
            for _, run in ipairs(product.runs[kind]) do
              K:each("tile", run.count, function(n)
                local row = n * run.size + run.at
                K:chunks(product.chunks, function(mode, k0, steps)
                  tile(run.size, block, mode, steps, { p = q.a:at(row * d + k0), row = d, step = 1 },
                    q.b:at(k0 * block.width), { p = q.c:at(row * block.width), row = block.width })
                end)
              end)
            end
          end)
        end
        local column = j * block.width + block.at
        join(K, label, product, rows.size, block, p.m, p.bias and p.bias:at(column),
          p.out:at(first * product.ld + column))
      end)
    end)
  end
end

return M
