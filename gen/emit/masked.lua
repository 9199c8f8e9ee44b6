-- What masks need beside the main path.

local expr = require "expr"
local isas = require "isa.init"

local M = {}

-- A batch entry without a key: y = bo, all weights zero.
function M.no_keys(K, group, packed, y, probs)
  local t, cfg, isa = K.t, K.plan.cfg, K.plan.isa
  local function fill(to, count, value) -- count floats, value(at, w) a vector
    local cover = isas.cover(isa, count)
    local full = count // isa.lanes
    K:each("c", full, function(i)
      t:block(function()
        t:op("store", isa.full, nil, to:at(i * isa.lanes), value(i * isa.lanes, isa.full))
      end)
    end)
    local v = cover[#cover]
    if count % isa.lanes > 0 then
      t:block(function()
        local x = value(v.at, v.w)
        if v.used < v.w.lanes then
          t:op("store_n", v.w, nil, to:at(v.at), x, v.used)
        else
          t:op("store", v.w, nil, to:at(v.at), x)
        end
      end)
    end
  end
  local params = { { "packed", "in", packed }, { "y", "out", y } }
  if cfg.probs then params[#params + 1] = { "probs", "out", probs } end
  K:part("no_keys_" .. group.name, "Rows that see no key: y = bo, weights zero.", params, function(p)
    K:each("row", group.used, function(r)
      fill(p.y:at(r * cfg.d_model), cfg.d_model, function(at, w)
        return t:op("load", w, "bias", p.packed:at(at + (K.plan.packed.bo_alone or K.plan.packed.bo)))
      end)
    end)
    if cfg.probs then
      K:each("head", cfg.h, function(head)
        fill(p.probs:at(head * (cfg.seq * cfg.seq_kv)), group.used * cfg.seq_kv, function(_, w)
          return t:op("zero", w, "none")
        end)
      end)
    end
  end)
end

-- V rows from `from` on that a key tile may still touch: zeros, so that zero weights stay zeros.
function M.clear_values(K, v, from)
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

return M
