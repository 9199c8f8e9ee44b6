-- What is projected of a block of heads with lanes over columns: K[key][hb*dk] = X Wk + bk, V likewise, and Q.

local expr = require "expr"
local product_of = require "emit.product"
local quadrants = require "emit.quadrants"

-- V rows from `from` on that a key tile may still touch: zeros, so that zero weights stay zeros.
local function clear_values(K, v, from)
  local t, plan, isa = K.t, K.plan, K.plan.isa
  local most, ld = 0, plan.values.row
  for _, group in ipairs(plan.groups) do most = math.max(most, group.keys.rows) end
  K:each("row", expr.min(most, plan.kv_rows - from), function(i)
    t:block(function()
      local zero = t:op("zero", isa.full, "zero")
      for c = 0, ld // isa.lanes - 1 do
        t:op("store", isa.full, nil, v:at((from + i) * ld + c * isa.lanes), zero)
      end
    end)
  end)
end

-- K, V or Q (which = "k", "v", "q") of a block of heads; run-time `len` (or nil) bounds the keys; sums: of
-- the quadrants of x, where it is made of such.
local function project(K, which, x, packed, kv, len, sums)
  local plan, d = K.plan, K.plan.cfg.d_model
  local product, w = plan.projected[which], packed:at(plan.head["w" .. which])
  local bias = not plan.fold.without[which] and packed:at(plan.head["b" .. which]) or nil
  local label = ({ k = "keys", v = "values", q = "queries" })[which]
  K.role = label
  local params = { { "x", "in", x }, { "w", "in", w }, { "out", "out", kv:at(plan.kv[which]) } }
  if bias then params[#params + 1] = { "bias", "in", bias } end
  if len then params[#params + 1] = { "len", "int", len } end
  if product.quadrants then
    params[#params + 1] = { "s", "in", sums }
    params[#params + 1] = { "m", "out", kv:at(plan.kv["m" .. which]) }
  end
  K:part("project_" .. label, ("Projects %s of %d head%s."):format(label, plan.hb, plan.hb > 1 and "s" or ""), params,
    function(p)
    if product.quadrants then
      return quadrants.project(K, label, product, p, function(rows, block, mode, steps, a, panel, c)
        product_of.column_tile(K, label, rows, block, mode, steps, a, panel, nil, c)
      end, product_of.each_panel)
    end
    -- The panels are the inner loop: they are few, and X may be larger than the cache.
    for _, run in ipairs(product.runs[1]) do
      local count = run.count
      if p.len and not K.full then
        count = expr.min(count, expr.ceil_div(p.len - run.at, run.size))
      end
      K:each("tile", count, function(i)
        local row = i * run.size + run.at
        product_of.each_panel(K, product, d, function(block, j, panel)
          local column = j * block.width + block.at
          K:chunks(product.chunks, function(mode, k0, steps)
            product_of.column_tile(K, label, run.size, block, mode, steps,
              { p = p.x:at(row * d + k0), row = d, step = 1 }, p.w:at(panel + k0 * block.width),
              p.bias and p.bias:at(column), { p = p.out:at(row * product.ld + column), row = product.ld })
          end)
        end)
      end)
    end
    if which ~= "v" then return end
    if len and not K.full then
      clear_values(K, p.out, p.len)
    elseif plan.kv_rows > plan.cfg.seq_kv then
      clear_values(K, p.out, plan.cfg.seq_kv)
    end
  end)
  K.role = nil
end

local function emit(K, place, item)
  local plan, which = K.plan, item.which
  local input = plan.projected[which].input
  project(K, which, place[which], place.packed:at(plan.packed.heads + place.hb * plan.head.total),
    place.ws:at(plan.entry.kv + place.heads_slot * plan.kv.total), which ~= "q" and place.len or nil,
    input and place.ws:at(plan.entry["sums_" .. input]))
end

return function(plan)
  local cfg, list = plan.cfg, {}
  for _, row in ipairs {
    { "k", cfg.seq_kv, cfg.dk }, { "v", cfg.seq_kv, cfg.dv }, { "q", cfg.seq, plan.fold.query },
  } do
    local which, rows, width = table.unpack(row)
    if plan.projected[which] then
      list[#list + 1] = {
        phase = "keys_values", title = "keys and values", per = "heads", emit = emit,
        axes = { { var = "which", items = { { which = which, first = 0, count = 1 } }, total = 1 } },
        cycles = 2.0 * cfg.d_model * cfg.h * rows * width / plan.per_cycle,
      }
    end
  end
  return list
end
