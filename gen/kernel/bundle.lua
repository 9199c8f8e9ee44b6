-- A config -> its files, and the recorded kernels.
--
-- A config of one kernel has the two files of kernel/generate.lua. A bundle is a multi-versioned kernel, and a ladder
-- one with length buckets. Both have the files of each member, and two more whose functions choose a member by the CPU
-- (bundle), or by the lengths of a run (ladder).

local budget = require "plan.budget"
local config = require "options.config"
local generate = require "kernel.generate"
local known_answer = require "kernel.known_answer"
local ladder = require "kernel.ladder"
local template = require "base.template"

-- A plan for all members:
--   sizes         of buffers and stack: the largest
--   fingerprint, tables_fingerprint   which all have
--   shortest      the config with the fewest rows, which has room for most before them
local function plan_for(all)
  local last = all[#all]
  local plan = { fingerprint = last.fingerprint, tables_fingerprint = last.tables_fingerprint, stack = 0,
                 shortest = all[1].plan.cfg }
  for _, size in ipairs { "packed_bytes", "tables_bytes", "workspace_bytes", "cache_bytes", "error" } do
    plan[size] = 0
    for _, recorded in ipairs(all) do plan[size] = math.max(plan[size], recorded.plan[size]) end
  end
  for _, recorded in ipairs(all) do
    plan.stack = math.max(plan.stack, budget.stack(recorded.plan))
    if recorded.answer_bytes then plan.answer_bytes = math.max(plan.answer_bytes or 0, recorded.answer_bytes) end
    if recorded.fingerprint ~= last.fingerprint or recorded.tables_fingerprint ~= last.tables_fingerprint then
      plan.fingerprint = nil
    end
  end
  return setmetatable(plan, { __index = last.plan })
end

local function refuse_other_weights(cfg)
  local key = config.told(cfg, "seq"):find(",") and "seq" or "seq_kv"
  error({ key = key, value = config.told(cfg, key), rule = "needs kernels that pack the same, which the plan does not "
    .. "make here; take single lengths" }, 0)
end

-- How members are chosen: the template of the choice, the order of the list, and what mhagen_kernel has besides.
local by_cpu = { choice = "choice_cpu.c.in", place = function() return 1 end, fields = "", what = "of which the last "
  .. "one that CPU and operating system have is taken" }
local by_length = { choice = "choice_length.c.in", place = function(list) return #list + 1 end,
                    fields = "ladder_fields.c.in", what = "for lengths of which the least that is enough is taken" }

-- What a bundle says where flags of the compiler are for newer CPUs than its first member. It is no error: all CPUs of
-- a user may be newer.
local function note_of(cfg, base)
  if not base.beyond then return "" end
  return template.file("beyond.c.in", { name = cfg.name, base = base.name, beyond = base.beyond }) .. "\n"
end

local function choosing_files(cfg, members, all)
  local plan, how = plan_for(all), config.is_ladder(cfg) and by_length or by_cpu
  if how == by_length and not plan.fingerprint then refuse_other_weights(cfg) end
  local includes, list = {}, {}
  for i, member in ipairs(members) do
    includes[i] = template.file("include.c.in", { name = member.name })
    table.insert(list, how.place(list), ("  &%s_kernel,"):format(member.name))
  end
  local names = { name = cfg.name, last = members[#members].name }
  local fill = plan.filling[1] and template.file("bundle_fill.c.in", { name = cfg.name,
                                                                       needs = generate.needs(plan, "fill") }) or ""
  local declared, defined = "", ""
  if plan.answer_bytes then
    declared, defined = known_answer.choosing(cfg, members, how == by_length, plan.answer_bytes)
  end
  local pack_tables = plan.tables_bytes > 0 and template.file("choose_tables.c.in", {
    name = cfg.name, NAME = cfg.name:upper() }) or ""
  local header, facts = generate.outside(cfg, plan, plan.stack, declared)
  return { header, generate.file(cfg, "bundle.c.in", ".c", {
    includes = table.concat(includes), members = table.concat(list, "\n"), needs = generate.needs(plan, "args"),
    choice = template.file(how.choice, how == by_length and { last = names.last } or { name = cfg.name }),
    beyond = how == by_cpu and note_of(cfg, all[1].plan.isa) or "",
    what = how.what, fill_function = fill, facts = facts, known_answer = defined, pack_tables = pack_tables,
    fields = how == by_length and template.file(how.fields, { fingerprint = plan.fingerprint,
      tables_fingerprint = generate.tables_fingerprint(plan) }) or "" }) }
end

-- answer: as generate.kernel takes it.
local function files_of(cfg, answer)
  local members, all, files = ladder.members(cfg), {}, {}
  if not members then
    local own, recorded = generate.kernel(cfg, answer)
    return own, { recorded }
  end
  for _, member in ipairs(members) do
    local own, recorded = files_of(member, answer)
    table.move(own, 1, #own, #files + 1, files)
    table.move(recorded, 1, #recorded, #all + 1, all)
  end
  local own = choosing_files(cfg, members, all)
  table.move(files, 1, #files, #own + 1, own)
  return own, all
end

return files_of
