-- A model's rope tables outside its packed weights: which layers have some, and the files of these.
--
--   place(layers, given)           gives the user's rope_tables or rope_at to layers with rope
--   choose(layers, given, reconfigured, always)   takes tables out where they are half of what is packed, or always;
--                                                 reconfigured(layer): a new config
--   of(entry, sets)                the packers of a kernel's tables, or nil; kernels with the same tables have the same
--   lines(entry)                   what the summary says of them
--
-- entry: { cfg, packers } of a kernel. A set of packers is { { cfg, packing, kind, name }, .. , owner, known }.

local config = require "options.config"
local model_text = require "model.text"
local pack = require "plan.pack"
local plan_of = require "plan.init"
local wording = require "base.wording"

local M = {}

-- Whether a layer has rope, by the keys of the model and those that are given.
local function has_rope(layer, given)
  if given.rope then return given.rope ~= "none" end
  for _, word in ipairs(layer.keys) do
    if word:find "^rope=" then return true end
  end
  return false
end

function M.place(layers, given)
  local without = {}
  for _, layer in ipairs((given.rope_tables or given.rope_at) and layers or {}) do
    if not has_rope(layer, given) then without[#without + 1] = layer end
  end
  if #without == #layers then return end -- which is refused then
  for _, layer in ipairs(without) do
    layer.own = layer.own or {}
    layer.own.rope_tables, layer.own.rope_at = true, true
  end
end

-- Whether half of what a kernel packs, or more, is tables.
local function is_half(cfg)
  local last, tables, all = cfg, 0, 0
  while config.members(last) do
    local members = config.members(last)
    last = members[#members]
  end
  for _, part in ipairs(pack.parts(plan_of.build(last))) do
    all = all + part.bytes
    if part.text == pack.TABLES then tables = part.bytes end
  end
  return 2 * tables >= all
end

function M.choose(layers, given, reconfigured, always)
  local with, known = {}, {}
  for _, layer in ipairs(layers) do
    if has_rope(layer, given) then with[#with + 1] = layer end
  end
  if given.rope_tables or given.rope_at == "run" or #with < 2 and not always then return end
  for _, layer in ipairs(with) do
    local command = config.canonical(layer.cfg)
    if known[command] == nil then known[command] = always or is_half(layer.cfg) end
    if known[command] then
      table.insert(layer.keys, "rope_tables=apart")
      layer.cfg = reconfigured(layer)
    end
  end
end

function M.of(entry, sets)
  local key = {}
  for i, packer in ipairs(entry.packers) do key[i] = packer.tables and packer.tables.fingerprint end
  if not key[1] then return nil end
  key = table.concat(key, " ")
  if not sets[key] then
    local set = { owner = entry, known = { places = 0 } }
    for i, packer in ipairs(entry.packers) do
      set[i] = { cfg = packer.cfg, packing = packer.tables, kind = model_text.TABLES,
                 name = packer.cfg.name .. ".tables" }
    end
    sets[key] = set
  end
  for i, packer in ipairs(entry.packers) do packer.of_tables = sets[key][i] end
  return sets[key]
end

function M.lines(entry)
  local set, lines = entry.tables or { owner = entry }, {}
  if set.owner ~= entry then return { "      with the tables of rope of " .. set.owner.cfg.name } end
  for i, packer in ipairs(set) do
    lines[i] = ("      %s bytes of %s%s, packed %s"):format(wording.number(packer.packing.bytes), packer.kind.what,
      set[2] and " for " .. packer.cfg.isa or "", packer.layers > 1 and ("%d times"):format(packer.layers) or "once")
  end
  return lines
end

return M
