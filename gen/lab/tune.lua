-- The search of `tune`: which schedules are tried, in which order, and which one wins.
--
-- A schedule is a set of changes to the plan's choices. A generation of schedules is measured in turn with the
-- default. The better half is measured with twice the samples, until few are left (successive halving: Jamieson and
-- Talwalkar, 2016). The next generation combines changes that helped, and adds the next ones of the model. The
-- module measures nothing itself: it asks `lab`, and decides by the figures.

local config = require "options.config"
local generate = require "kernel.generate"
local groups = require "schedule.groups"
local plan_of = require "plan.init"
local same = require "lab.same"

local M = {}

-- ---- the space ----

local function tile_rows(cfg, order) return plan_of.scheme(cfg).rows[order] end

-- The keys that are searched, and their values: a list, or a function of the config. `k_block` and `unroll` are not
-- here: no value takes 1 % less time than the plan's (base/measured_choices.lua).
local function rows_of(order)
  return function(cfg)
    local values = {}
    for rows = 1, tile_rows(cfg, order)[1] do values[rows] = rows end
    return values
  end
end
local function vectors_of(order)
  return function(cfg)
    local values = {}
    for vectors = 1, #tile_rows(cfg, order) do values[vectors] = vectors end
    return values
  end
end
local function head_blocks(cfg)
  local values = {}
  for heads = 1, math.min(cfg.h, 64) do
    if cfg.h % heads == 0 and heads % (cfg.h // cfg.h_kv) == 0 then values[#values + 1] = heads end
  end
  return values
end

local function key_blocks(cfg)
  local values, most = { 16 }, groups.most_keys(plan_of.scheme(cfg, "attend_dtype")) or 512
  while values[#values] < most do values[#values + 1] = 2 * values[#values] end
  return values
end

M.dimensions = {
  { "query_vectors", vectors_of "columns" }, { "key_rows", rows_of "rows" },
  { "context_rows", rows_of "columns" }, { "q_rows", rows_of "columns" },
  { "q_lanes", { "queries", "columns" } }, { "qkv", { "separate", "joint" } },
  { "kv_vectors", vectors_of "rows" }, { "kv_rows", rows_of "rows" },
  { "out_vectors", vectors_of "columns" }, { "out_rows", rows_of "columns" },
  { "head_block", head_blocks }, { "key_block", key_blocks }, { "fetch", { "none", "panels", "shares", "ahead" } },
  { "fold", { "auto", "off" } },
}

-- ---- candidates ----

-- The result of work(); false if the generator refuses the config.
local function unless_refused(work)
  local ok, found = pcall(work)
  if not ok and not (type(found) == "table" and found.rule) then error(found, 0) end
  return ok and found
end

-- Generates the files of a candidate, and the hash of its code; false if the generator refuses it.
local function generate_one(candidate, lab)
  return unless_refused(function()
    local words = table.move(candidate.arguments, 1, #candidate.arguments, 1, {})
    words[#words + 1] = "name=" .. lab.name(candidate.words)
    candidate.cfg = config.load(nil, words)
    local files, recorded = generate.kernel(candidate.cfg)
    candidate.files, candidate.flops = files, recorded.plan.flops
    candidate.bytes = recorded.plan.packed_bytes + recorded.plan.workspace_bytes
    candidate.code = lab.hash(same(candidate.cfg.name, files))
    return true
  end)
end

-- base: the words of the config to tune; lab: as below. Returns make(changes), which makes a candidate { words,
-- changes, cfg, cost }, or nil if the generator refuses the schedule; and the dimensions that base leaves open.
local function space(base, lab)
  local fixed = {}
  for _, word in ipairs(base) do fixed[word:match("^[^=]*")] = true end
  local open = {}
  local whole = config.load(nil, base)
  for _, dimension in ipairs(M.dimensions) do
    local key, values = dimension[1], dimension[2]
    if not fixed[key] then
      open[#open + 1] = { key = key, values = type(values) == "function" and values(whole) or values }
    end
  end
  local known = {}
  local function make(changes)
    local words = {}
    for _, dimension in ipairs(open) do
      local value = changes[dimension.key]
      if value ~= nil then words[#words + 1] = ("%s=%s"):format(dimension.key, value) end
    end
    local text = table.concat(words, " ")
    if known[text] == nil then
      lab.tick()
      local all = table.move(base, 1, #base, 1, {})
      table.move(words, 1, #words, #all + 1, all)
      known[text] = unless_refused(function()
        local cfg = config.load(nil, all)
        return { words = text, changes = changes, cost = plan_of.build(cfg).cost, arguments = all }
      end)
    end
    return known[text] or nil
  end
  return make, open
end

-- The changes of two candidates together; nil if they differ on a key.
local function joined(a, b)
  local all = {}
  for key, value in pairs(a) do all[key] = value end
  for key, value in pairs(b) do
    if all[key] ~= nil and all[key] ~= value then return nil end
    all[key] = value
  end
  return all
end

-- Single changes in the order of trial. By the model's cost, the first round has the cheapest change of each key. The
-- second round has the next one of each, and so on. In a round cheaper changes come first.
local function single_changes(make, open)
  local list = {}
  for place, dimension in ipairs(open) do
    local of_key = {}
    for _, value in ipairs(dimension.values) do
      local candidate = make { [dimension.key] = value }
      if candidate then of_key[#of_key + 1] = { candidate = candidate, place = place, value = #of_key } end
    end
    table.sort(of_key, function(a, b)
      if a.candidate.cost ~= b.candidate.cost then return a.candidate.cost < b.candidate.cost end
      return a.value < b.value
    end)
    for i, one in ipairs(of_key) do
      one.round = i
      list[#list + 1] = one
    end
  end
  table.sort(list, function(a, b)
    if a.round ~= b.round then return a.round < b.round end
    if a.candidate.cost ~= b.candidate.cost then return a.candidate.cost < b.candidate.cost end
    return a.place < b.place
  end)
  for i, one in ipairs(list) do list[i] = one.candidate end
  return list
end

-- ---- where candidates come from: for each way of searching, a function that gives the next ones ----

M.ways = {}

-- What a change may cost by the model, of what it changes. (Zen 5: of 26 changes of micro that cost more, none was
-- faster than the default by more than 0.1 %.)
local CHANCE = 1.01

-- By the model and by what has helped. First come joins of the best candidate with others that helped. Single changes
-- of the best follow, then those of the default, if they have a chance. Returns how many of the latter have none, where
-- it comes so far.
function M.ways.model(make, open)
  local singles, default = single_changes(make, open), make {}
  local function has_chance(candidate, start) return candidate.cost <= CHANCE * start.cost end
  return function(measured, offer)
    local good, without = {}, 0
    for _, one in ipairs(measured) do
      if one.ratio < 1 and next(one.changes) then good[#good + 1] = one end
    end
    local function wants_more(changes, start)
      local candidate = changes and make(changes)
      return not candidate or start and not has_chance(candidate, start) or offer(candidate)
    end
    for i = 1, math.min(#good, 4) do
      for j = i + 1, math.min(#good, 8) do
        if not wants_more(joined(good[i].changes, good[j].changes)) then return end
      end
    end
    for _, start in ipairs { good[1] or default, default } do
      for _, single in ipairs(singles) do
        if not wants_more(joined(start.changes, single.changes), start) then return end
      end
    end
    for _, single in ipairs(singles) do without = without + (has_chance(single, default) and 0 or 1) end
    return without
  end
end

-- At random, for comparison: each key is left to the plan with even odds.
function M.ways.random(make, open)
  local state = 1
  local function draw(count) -- 1..count: the high bits of a linear congruential generator (Knuth, MMIX)
    state = state * 6364136223846793005 + 1442695040888963407
    return (state >> 33) % count + 1
  end
  return function(_, offer)
    local wanted = true
    for _ = 1, 10000 do
      if not wanted then return end
      local changes = {}
      for _, dimension in ipairs(open) do
        if draw(2) == 1 then changes[dimension.key] = dimension.values[draw(#dimension.values)] end
      end
      wanted = offer(make(changes))
    end
  end
end

-- ---- the search ----

M.SAMPLES, M.MOST_SAMPLES = 3, 96 -- of a generation's first measurement at least, and of any
local MORE = 2 -- so many times in the next, with half of the candidates
local FINALISTS = 2
local PAIRS, WON, GAIN = 5, 4, 0.99 -- runs of a finalist and the default; to be won of them, and by how much

-- Whether some work was done in time: the lab ends what takes too long.
function M.in_time(work)
  local ok, e = pcall(work)
  if not ok and not (type(e) == "table" and e.out_of_time) then error(e, 0) end
  return ok
end

local function by_ratio(a, b)
  if a.ratio ~= b.ratio then return a.ratio < b.ratio end
  return a.words < b.words
end

-- The next candidates, at most `room` of them, whose code is that of no other one; and what the way says of the others.
local function next_generation(search, room, lab)
  local list = {}
  local others = search.more(search.measured, function(candidate)
    if candidate and not search.offered[candidate] and #list < room then
      search.offered[candidate] = true
      if generate_one(candidate, lab) and not search.seen[candidate.code] then
        search.seen[candidate.code] = true
        list[#list + 1] = candidate
      end
    end
    return #list < room
  end)
  return list, others
end

-- Measures all candidates, then the better half of them longer, and so on; returns the best ones.
local function best_of(list, samples, search, lab)
  lab.build(list)
  local left = list
  while true do
    for i, ratio in ipairs(lab.time(left, samples)) do left[i].ratio = ratio end
    if left == list then table.move(list, 1, #list, #search.measured + 1, search.measured) end
    table.sort(left, by_ratio)
    if #left <= FINALISTS then return left end
    left = table.move(left, 1, math.max(FINALISTS, #left // 2), 1, {})
    samples = math.min(samples * MORE, M.MOST_SAMPLES)
  end
end

-- The first of these that is faster than the default in most paired runs, and its ratios there; or nil.
local function paired(survivors, lab)
  for i = 1, math.min(FINALISTS, #survivors) do
    local one, ratios, won = survivors[i], {}, 0
    if one.ratio >= GAIN then return nil end
    for pair = 1, PAIRS do
      ratios[pair] = lab.pair(one, pair)
      if ratios[pair] < GAIN then won = won + 1 end
    end
    lab.say("%s: faster by more than %.0f %% in %d of %d paired runs", one.words, 100 - 100 * GAIN, won, PAIRS)
    if won >= WON then return one, ratios end
  end
end

-- base: the words of a config that the generator accepts. lab: { name(words) -> the name of a kernel;
-- hash(text); room(n) -> how many candidates the n-th generation may have, 0 at the end, and the samples of their first
-- measurement; build(candidates); time(candidates, samples) -> the ratio of each to the default; pair(candidate,
-- number) -> the same of a longer run; say(format, ...); tick(), which is called now and then }. A candidate is
-- { words, changes, arguments, cfg, files, flops, bytes, code }; one whose code is that of another one is left
-- out. Where the lab raises { out_of_time = true } the search ends with what it knows. Returns the default; the
-- winner or nil; its ratios in the paired runs; how many were tried; whether none is left that has a chance. With the
-- same answers of the lab the search is the same.
function M.search(base, way, lab)
  local make, open = space(base, lab)
  local default = make {}
  generate_one(default, lab)
  local search = { measured = {}, offered = { [default] = true }, seen = { [default.code] = true } }
  local survivors, winner, ratios, complete = {}, nil, nil, false
  lab.build { default }
  M.in_time(function()
    search.more = M.ways[way](make, open)
    for generation = 1, math.huge do
      local room, samples = lab.room(generation)
      local list, others = next_generation(search, room, lab)
      if #list == 0 then
        complete = room > 0
        if complete then
          lab.say("the search ends: %s", (others or 0) > 0
            and others .. " other changes have no chance by the cost model" or "nothing else is left")
        end
        break
      end
      local best = best_of(list, samples, search, lab)
      table.move(best, 1, #best, #survivors + 1, survivors)
      table.sort(survivors, by_ratio)
      table.sort(search.measured, by_ratio)
      lab.say("%d schedules; the best takes %.3f of the default: %s", #search.measured, survivors[1].ratio,
        survivors[1].words)
    end
  end)
  if not M.in_time(function() winner, ratios = paired(survivors, lab) end) then
    lab.say("the time is over before the paired runs end")
  end
  return default, winner, ratios or {}, #search.measured, complete
end

return M
