-- The members of a ladder (length buckets): kernels of different lengths that read one buffer of packed weights.
--
--   members(cfg)     the configs of the members, or nil
--   tree(cfg)        a config and all of its members
--
-- Packed weights depend on some schedule keys (docs/format.md). All members take these from the plan of the longest
-- one.

local config = require "options.config"
local plan_of = require "plan.init"

local M = {}

-- The vectors of a tile of the widest product among these stages, if there is one.
local function vectors(plan, names)
  local most
  for _, name in ipairs(names) do
    local product = plan.stage[name] and plan.stage[name].product
    if product and product.panel_runs then most = math.max(most or 1, #product.panel_runs[1].vecs) end
  end
  return most
end

-- The configs of the kernels that a config is made of, or nil.
function M.members(cfg)
  local members, list = config.members(cfg), {}
  if not config.is_ladder(cfg) then return members end
  local longest = config.changed(members[#members], { fold = "off" })
  if plan_of.build(longest).stage.queries then longest = config.changed(longest, { q_lanes = "columns" }) end
  local plan = plan_of.build(longest)
  for i, member in ipairs(members) do
    list[i] = config.changed(member, {
      fold = "off", q_lanes = longest.q_lanes, head_block = plan.hb,
      kv_vectors = vectors(plan, { "keys", "values", "queries" }), out_vectors = vectors(plan, { "output" }),
    })
  end
  return list
end

-- A config and all that it is made of.
function M.tree(cfg)
  local all = { cfg }
  for _, member in ipairs(M.members(cfg) or {}) do
    local own = M.tree(member)
    table.move(own, 1, #own, #all + 1, all)
  end
  return all
end

return M
