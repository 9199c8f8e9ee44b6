-- The grammar of default names:
--
--   mha_<dtype>_h<h>[_g<h_kv>][_d<d_model>]_k<dk>[_v<dv>]_s<seq>[_t<seq_kv>]
--          [_kw<k_width>][_vw<v_width>][_yw<y_width>][_b<batch>][_wl<window_left>][_wr<window_right>]
--          [_rd<rope_dims>][_cross][_causal][_len][_probs][_<causal_align>][_alibi][_start][_rows]
--          [_mask_<mask>][_<mask_dims>][_cap<softcap>][_sink][_scores_<scores>][_qk<qk_norm>][_span<norm_span>]
--          [_eps<norm_eps>][_rope_<rope>][_th<rope_theta>][_at_<rope_at>][_append|_fixed][_p<project>][_<layout>]
--          [_cache_<cache_layout>][_sc<scale>][_attend_<attend_dtype>][_sums_<sum_dtype>]
--          [_weights_<weight_dtype>][_gr<group>][_io_<io_dtype>][_cached_<cache_dtype>]
--          [_wv_<value_weight_dtype>][_res][_norm_<norm>][_<norm_kind>][_leps<layer_eps>][_u<unroll>]_<isa>
--
-- A name of more than MOST characters keeps fewer parts, and has a hash of the whole name before the ISA instead. After
-- the number type, the parts come in the order of the option rows: sizes, other options, the ISA. A part in brackets is
-- there if its key differs from its default. Schedule keys are not part of a name, so configs that differ only in speed
-- share one; set the key `name` to use both.

local fingerprint = require "base.fingerprint"
local kinds = require "options.kinds"
local options = require "options.init"
local types = require "machine.types"

local M = {}

local PREFIX, LEAD = "mha_", "dtype" -- and the key after the prefix

-- Whether a name shows the value of a row.
function M.tells(row) return row.name ~= nil or row.key == LEAD end

-- The parts of a name, in order.
local function words_of(cfg)
  local words = {}
  for _, row in ipairs(options.told.name) do
    if options.on(row, cfg) then
      words[#words + 1] = row.name .. kinds[row.kind].in_name(row, cfg[row.key])
    end
  end
  return words
end

-- The whole name, which parse takes.
function M.full(cfg) return PREFIX .. cfg[LEAD] .. table.concat(words_of(cfg)) end

local MOST = 40 -- characters of a name, so that lines with it stay readable; and of the hash, in base 36
local HASH = 6

local function hash(text)
  local number, digits = tonumber(fingerprint(text)) & math.maxinteger, {}
  for i = 1, HASH do
    local digit = number % 36
    digits[i], number = string.char(digit < 10 and 48 + digit or 87 + digit), number // 36
  end
  return "_" .. table.concat(digits)
end

function M.build(cfg)
  local full, words = M.full(cfg), words_of(cfg)
  if #full <= MOST then return full end
  local last = table.remove(words) -- the ISA
  if #last > MOST // 3 then last = "" end
  local name, rest = PREFIX .. cfg[LEAD], hash(full) .. last
  for _, word in ipairs(words) do
    if #name + #word + #rest > MOST then break end
    name = name .. word
  end
  return name .. rest
end

-- The part of a name between prefix and ISA.
function M.shape(cfg)
  local words = words_of(cfg)
  return table.concat(words, "", 1, #words - 1):sub(2)
end

-- The keys for which a whole name stands, or nil for a text that `full` does not make.
function M.parse(name)
  local lead, rest = name:match("^" .. PREFIX .. "(%w+)(.*)$")
  if not types.by_name[lead] then return nil end
  local cfg = { [LEAD] = lead }
  for _, row in ipairs(options.told.name) do
    local value, after
    if rest:sub(1, #row.name) == row.name then
      value, after = kinds[row.kind].parse(row, rest:sub(#row.name + 1))
    end
    if value ~= nil then cfg[row.key], rest = value, after end
  end
  for _, row in ipairs(options.list) do
    if M.tells(row) and cfg[row.key] == nil then cfg[row.key] = options.default(row, cfg) end
    if row.required and cfg[row.key] == nil then return nil end
  end
  if rest ~= "" or options.conflict(cfg) then return nil end
  return M.full(cfg) == name and cfg or nil
end

return M
