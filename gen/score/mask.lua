-- mask: an array hides keys, or adds numbers to scores, for all queries or for each batch entry, head and query.
--
-- A key is hidden by a 0 (bool) or by -inf (add). emit/mask.lua makes biases of either in base 2: [key][lanes of a
-- group] where the array has queries and these are lanes, else [key].

local types = require "machine.types"

local M = {}

-- From one place of an axis to the next, and how many elements there are; 0 of an axis that is not there.
function M.steps(cfg)
  local steps, count = {}, 1
  for _, axis in ipairs { { "k", cfg.seq_kv }, { "q", cfg.seq }, { "h", cfg.h }, { "b", cfg.batch } } do
    local there = cfg.mask_dims:find(axis[1], 1, true)
    steps[axis[1]] = there and count or 0
    if there then count = count * axis[2] end
  end
  steps.count = count
  return steps
end

-- The bias at a place.
local function bias(t, w, name, at)
  if at.first then return t:op("load", w, name, at.mask:at(at.first)) end
  if M.steps(at.cfg).q == 0 then return t:op("dup", w, name, at.mask:at(at.key)) end
  return t:op("load", w, name, at.mask:at(at.key * at.width + at.lane))
end

local function hides(t, w, name, at)
  return t:op("lt", w, name, bias(t, w, "bias_" .. name, at), t:op("set", w, "lowest_" .. name, types.LOWEST))
end

-- type: of the array's elements, floats if that is nil.
local function row(kind, type, own_bias)
  return {
    kind = kind, on = function(cfg) return cfg.mask == kind end, bias = own_bias, hides = hides,
    reads = { {
      name = "mask", kind = "in", from = "args->mask", void = true, type = type,
      floats = function(cfg) return M.steps(cfg).b end,
      block = function(cfg, head, query)
        local steps = M.steps(cfg)
        return head * steps.h + query * steps.q
      end,
    } },
  }
end

M.bool, M.add = row("bool", types.byte), row("add", nil, bias)

return M
