-- The grammar of default names:
--
--   mha_<dtype>_h<h>_d<d_model>_k<dk>[_v<dv>]_s<seq>[_t<seq_kv>][_b<batch>]
--          [_cross][_causal][_len][_probs][_strassen][_u<unroll>]_<isa>
--
-- A part in brackets is there when its key differs from its default. The schedule keys are not part
-- of a name: configs that differ in speed alone share one; set the key `name` to have both.

local M = {}

local PREFIX = "mha"

-- In the order of a name: key, how it is written (the value in parentheses), default, or the key
-- with the same value by default. Where the default is false, the word stands for true.
local parts = {
  { "dtype", "_(%w+)" },
  { "h", "_h(%d+)" },
  { "d_model", "_d(%d+)" },
  { "dk", "_k(%d+)" },
  { "dv", "_v(%d+)", same_as = "dk" },
  { "seq", "_s(%d+)" },
  { "seq_kv", "_t(%d+)", same_as = "seq" },
  { "batch", "_b(%d+)", 1 },
  { "attention", "_(cross)", "self" },
  { "causal", "_(causal)", false },
  { "kv_len", "_(len)", false },
  { "probs", "_(probs)", false },
  { "strassen", "_(strassen)", false },
  { "unroll", "_u(%l+)", "auto" },
  { "isa", "_(%w+)" },
}

local function default_of(part, cfg)
  if part.same_as then return cfg[part.same_as] end
  return part[3]
end

function M.build(cfg)
  local words = { PREFIX }
  for _, part in ipairs(parts) do
    local key, pattern = part[1], part[2]
    if cfg[key] ~= default_of(part, cfg) then
      local value = cfg[key] == true and pattern:match("%((.*)%)") or tostring(cfg[key])
      words[#words + 1] = pattern:gsub("%b()", value)
    end
  end
  return table.concat(words)
end

-- What a name says between prefix and ISA.
function M.shape(cfg) return M.build(cfg):match("^%a+_%w+_(.*)_%w+$") end

-- The keys that a name stands for, or nil for a text that build does not make.
function M.parse(name)
  local cfg, rest = {}, name:sub(#PREFIX + 1)
  for _, part in ipairs(parts) do
    local key, pattern = part[1], part[2]
    local text, after = rest:match("^" .. pattern .. "(.*)$")
    if text then
      rest = after
      if part[3] == false then
        cfg[key] = true
      else
        cfg[key] = pattern:find("%d", 1, true) and tonumber(text) or text
      end
    else
      cfg[key] = default_of(part, cfg)
    end
    if cfg[key] == nil then return nil end
  end
  if cfg.attention == "self" and cfg.seq_kv ~= cfg.seq then return nil end
  return rest == "" and M.build(cfg) == name and cfg or nil
end

return M
