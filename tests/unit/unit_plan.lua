-- Tests of the plan: a schedule key that is given has an effect, or it is refused.

local config = require "options.config"
local isas = require "isa.init"
local plan_of = require "plan.init"
local record = require "plan.record"
local tiles = require "schedule.tiles"

-- Values of which at least one must make another plan than the plan's own choice.
local values = {
  key_rows = { 1, 2 }, context_rows = { 1, 2 }, q_lanes = { "queries", "columns" },
  qkv = { "separate", "joint" },
  q_rows = { 1, 2 }, kv_rows = { 1, 2 }, kv_vectors = { 1, 2 }, out_rows = { 1, 2 }, out_vectors = { 1, 2 },
  key_block = { 1, 64 }, k_block = { 16, 256 }, head_block = { 1, 2 },
}
-- What is projected is of all kinds: K and V or neither or one, weights that are merged; lanes of either kind.
local shapes = {
  "h=2 d_model=18 dk=5 seq=13 fold=off", "h=2 d_model=18 dk=5 seq=13 causal=true probs=true q_lanes=columns",
  "h=2 d_model=9 dk=10 seq=13 q_lanes=queries", "h=2 d_model=9 dk=10 seq=13 q_lanes=columns",
  "h=2 d_model=18 dk=20 dv=3 seq=13 q_lanes=columns", "h=2 d_model=9 dk=5 dv=10 seq=13 q_lanes=columns",
  "h=2 d_model=18 dk=17 seq=9 seq_kv=66 attention=cross q_lanes=columns",
  "h=2 dk=5 seq=13 project=none", "h=2 d_model=9 dk=5 seq=13 project=o causal=true",
  "h=2 d_model=40 dk=17 seq=13 weight_dtype=int8", "h=2 d_model=40 dk=17 seq=13 project=qo weight_dtype=int4",
  "h=2 d_model=18 dk=20 seq=13 project=kv", "h=2 dk=5 seq=13 project=none layout=bhsd causal=true",
}

local function split(text)
  local words = {}
  for word in text:gmatch("%S+") do words[#words + 1] = word end
  return words
end

-- What a plan says but for its config and its reasons, as a text; or nil and why the config is refused.
local function plan_text(words)
  local ok, plan = pcall(function() return plan_of.build(config.load(nil, split(words))) end)
  if not ok then
    if type(plan) ~= "table" then error(plan, 0) end
    return nil, plan
  end
  local out, count, numbers = {}, 0, { [plan.cfg] = 0, [plan.isa] = 0, [plan.why] = 0 }
  local function say(value)
    if type(value) ~= "table" then
      out[#out + 1] = type(value) == "function" and "function" or tostring(value)
    elseif numbers[value] then -- said already
      out[#out + 1] = "table " .. numbers[value]
    else
      count = count + 1
      numbers[value] = count
      for key, inner in pairs(value) do
        out[#out + 1] = tostring(key)
        say(inner)
      end
    end
  end
  say(plan)
  return table.concat(out, " ")
end

return function(check)
  local refusals = 0
  for _, shape in ipairs(shapes) do
    for key, both in pairs(values) do
      local base = shape .. " isa=neon query_vectors=1"
      local given = base:find(key .. "=", 1, true)
      local texts, refused, kinds = { not given and plan_text(base) or nil }, nil, 1
      for _, value in ipairs(given and {} or both) do
        local text, why = plan_text(("%s %s=%s"):format(base, key, value))
        if text then texts[#texts + 1] = text else refused = why end
        if text and text ~= texts[1] then kinds = 2 end
        if kinds > 1 then break end
      end
      if refused then
        refusals = refusals + 1
        check(refused.key == key and (refused.rule:find "^has no effect with" or refused.rule:find "^must be "),
              ("%s %s: %s"):format(shape, key, refused.rule))
      end
      check(given or kinds > 1 or refused, ("%s: %s has no effect"):format(shape, key))
    end
  end
  check(refusals >= 4, "no key was refused")

  -- Blocks of vectors cover all numbers in their order, the narrowest vector last; neighbours of one kind are one run.
  local avx512 = isas.list.avx512
  for n = 1, 200 do
    for most = 1, 6 do
      for together = 1, 2 do
        local at, blocks, runs = 0, 0, tiles.vector_runs(avx512, n, most, false, together)
        for i, run in ipairs(runs) do
          local last = run.vecs[#run.vecs]
          check(run.at == at and run.vecs[1].at == at, "a block does not begin where the one before ends")
          check(#run.vecs <= tiles.round_up(most, together) and run.width >= run.used, "a block is too wide")
          check(last.w == isas.vector(avx512, last.used, 0).w, "the last vector is not the narrowest")
          local before = runs[i - 1]
          check(not before or #before.vecs ~= #run.vecs or before.used ~= run.used, "two runs of one kind")
          at, blocks = at + run.count * run.used, blocks + run.count
        end
        check(at == n and blocks == tiles.ceil_div(tiles.ceil_div(n, 16 * together), tiles.ceil_div(most, together)),
          ("%d numbers in blocks of %d: %d in %d"):format(n, most, at, blocks))
      end
    end
  end

  -- The last queries have full vectors as the others, but where half of one saves more than 1 %.
  for words, full in pairs { ["h=6 d_model=384 dk=64 seq=197"] = true, ["h=1 d_model=64 dk=64 seq=197"] = false,
                             ["h=2 d_model=640 dk=8 seq=197"] = true } do
    local plan = plan_of.build(config.load(nil, split(words .. " isa=avx512")))
    local last = plan.groups[#plan.groups].vecs
    check(#plan.groups > 1 and (last[#last].w == plan.isa.full) == full, words .. ": vectors of the last queries")
  end

  -- Keys leave the plan the ways in which they have an effect.
  local function lanes(words) return plan_of.build(config.load(nil, split(words))).q_lanes end
  for _, case in ipairs {
    { "h=12 d_model=384 dk=32 seq=128 isa=avx512", "columns" },
    { "h=12 d_model=384 dk=32 seq=128 isa=avx512 q_rows=4", "queries" },
    { "h=3 d_model=192 dk=64 seq=8 isa=avx512", "columns" },
    { "h=3 d_model=192 dk=64 seq=8 isa=avx2", "queries" },
    { "h=2 d_model=24 dk=32 seq=5 isa=avx512", "columns" },
    { "h=2 d_model=24 dk=32 seq=5 isa=avx512 head_block=2", "queries" },
    { "h=2 d_model=24 dk=32 seq=16 isa=avx512", "queries" },
    { "h=2 d_model=24 dk=32 seq=16 isa=avx512 kv_rows=2", "columns" },
    { "h=2 d_model=24 dk=32 seq=16 isa=avx512 weight_dtype=int8", "columns" },
  } do
    local got = lanes(case[1])
    check(got == case[2], ("%s: lanes are %s"):format(case[1], got))
  end

  -- One product of Q, K and V where that fills idle lanes; its reason says so.
  for _, case in ipairs {
    { "h=1 d_model=656 dk=4 seq=16", true }, { "h=4 d_model=205 dk=5 seq=23 causal=true", true },
    { "h=3 d_model=139 dk=11 seq=1", true }, { "h=4 d_model=32 dk=8 seq=16", false },
    { "h=12 d_model=384 dk=32 seq=128", false }, { "h=1 d_model=656 dk=4 seq=16 kv_len=true", false },
    { "h=1 d_model=656 dk=4 seq=16 attention=cross", false }, { "h=1 d_model=656 dk=4 seq=16 cache=append", false },
    { "h=1 d_model=656 dk=4 seq=16 dtype=bf16", false },
    { "h=1 d_model=656 dk=4 seq=16 rope=half", true }, -- of Q and V
  } do
    local plan = plan_of.build(config.load(nil, split(case[1] .. " isa=avx512")))
    local told = false
    for _, row in ipairs(plan.why) do told = told or row.choice:find "^one product of all" ~= nil end
    check((plan.stage.values.nest == "columns") == case[2] and told == case[2], case[1] .. ": not the products wanted")
  end

  -- Tiles are by the facts of a core: what half a vector takes, how many rows a set of the cache holds, what comes from
  -- behind the second-level cache.
  for _, case in ipairs {
    { "h=12 d_model=144 dk=8 seq=16", "zen4", 2, 16, 16 }, { "h=12 d_model=144 dk=8 seq=16", "zen5", 6, 4, 48 },
    { "h=16 d_model=1040 dk=64 seq=16 qkv=separate", "sapphirerapids", 1, 16, 16 },
    { "h=16 d_model=1024 dk=64 seq=16 qkv=separate", "sapphirerapids", 1, 8, 32 },
    { "h=8 d_model=768 dk=64 seq=24 qkv=separate", "sapphirerapids", 1, 24, 16 },
    { "h=8 d_model=512 dk=64 seq=24 qkv=separate", "sapphirerapids", 1, 12, 16 },
    { "h=10 d_model=704 dk=20 seq=16 qkv=separate", "generic", 10, 4, 80 },
    { "h=4 d_model=400 dk=64 seq=12 qkv=separate", "generic", 1, 4, 64 },
    { "h=4 d_model=400 dk=64 seq=12 qkv=separate", "zen5", 2, 6, 48 },
  } do
    local plan = plan_of.build(config.load(nil, split(case[1] .. " isa=avx512 cpu=" .. case[2])))
    local product = plan.stage.values.product
    local found = { plan.hb, product.runs[1][1].size, product.panel_runs[1].used }
    check(table.concat(found, " ") == table.concat(case, " ", 3),
      ("%s of %s: %s"):format(case[1], case[2], table.concat(found, " ")))
  end

  -- Products are of pairs where nothing stands against them; else a reason says what.
  local paired_base = "h=4 d_model=20 dk=6 seq=9 isa=avx512_bf16 "
  for _, case in ipairs {
    { "dtype=bf16", 2, 2 }, { "dtype=bf16 attend_dtype=f32", 2, 1 }, { "attend_dtype=bf16", 1, 2 }, { "", 1, 1 },
    { "dtype=f16", 1, 1 }, { "dtype=bf16 causal=true scores=masked", 2, 1, "scores that are a result" },
    { "dtype=bf16 probs=true kv_len=true mask=bool q_len=true h_kv=2", 2, 2 },
    { "dtype=bf16 dv=3", 2, 2 }, { "dtype=bf16 dk=5 dv=6", 2, 2 }, { "dtype=bf16 dk=1 dv=1", 2, 2 },
    { "dtype=bf16 dk=50 seq=2", 2, 2 }, { "dtype=bf16 dk=56 seq=2", 1, 1 }, { "dtype=bf16 dk=56 seq=2 fold=off", 2, 2 },
    { "dtype=bf16 key_rows=3", 2, 1, "have to be even" }, { "dtype=bf16 context_rows=3", 1, 2, "have to be even" },
    { "dtype=bf16 rope=half qk_norm=rms norm_span=all", 2, 2 }, { "dtype=bf16 seq_kv=12 cache=append", 2, 2 },
    { "dtype=bf16 seq=4 seq_kv=12 cache=append", 1, 1, "ew queries" },
    { "dtype=bf16 attention=cross cache=fixed", 1, 2, "filled from rows" },
    { "dtype=bf16 attention=cross project=qvo", 2, 2 }, { "dtype=bf16 attention=cross project=none dv=3", 1, 2 },
    { "dtype=int8", 4, 2 }, { "dtype=int8 attend_dtype=f32", 4, 1 }, { "dtype=int8 dv=3", 4, 2 },
    { "dtype=int8 attention=cross project=kv", 4, 2 }, { "dtype=int8 seq_kv=12 cache=append", 4, 2 },
    { "dtype=int8 attention=cross project=qvo", 4, 2 }, { "dtype=int8 rope=half", 4, 2 },
    { "dtype=bf16 weight_dtype=bf16", 2, 2 }, { "dtype=bf16 weight_dtype=f16", 1, 2, "16 bits of another type" },
    { "dtype=f16 weight_dtype=f16 isa=avx512_fp16", 1, 1, "sums of half precision" },
    { "dtype=f16 sum_dtype=f16 weight_dtype=f16 attend_dtype=f32 isa=neon_fp16", 2, 1 },
    { "dtype=bf16 weight_dtype=int8", 2, 2 }, { "dtype=bf16 weight_dtype=int4", 2, 2 },
    { "dtype=bf16 weight_dtype=int8 seq=7", 1, 2, "small integers" },
    { "dtype=bf16 weight_dtype=int4 seq=7", 1, 1, "groups" },
    { "dtype=bf16 weight_dtype=int8 group=32 seq=7", 1, 1, "groups" },
    { "dtype=int8 weight_dtype=int8 group=32", 4, 1 }, { "dtype=int8 weight_dtype=int8 group=32 isa=neon_i8mm", 4, 1 },
    { "dtype=bf16 weight_dtype=int8 dv=7", 1, 2, "integers" },
    { "dtype=bf16 weight_dtype=int8 isa=neon_i8mm", 1, 2, "small integers" },
    { "dtype=f16 isa=avx512_fp16", 1, 1, "sums of half precision" },
    { "dtype=f16 attend_dtype=f32 isa=neon_fp16", 1, 1, "sum_dtype = f16 takes them" },
    { "dtype=f16 sum_dtype=f16 attend_dtype=f32 isa=neon_fp16", 2, 1 },
    { "dtype=f16 sum_dtype=f16 attend_dtype=f32 isa=avx512_bf16", 1, 1 },
    { "dtype=f16 sum_dtype=f16 dv=31 attend_dtype=bf16 isa=neon_fp16", 1, 1, "behind an odd dv" },
    { "dtype=f16 sum_dtype=f16 d_model=3 attend_dtype=f32 project=qkv isa=avx512_fp16", 2, 1 },
    { "dtype=bf16 isa=avx512_fp16", 1, 1 }, { "dtype=int8 isa=avx2", 2, 1 },
    { "attend_dtype=f16 isa=neon_fp16", 1, 1, "sums of half precision" }, { "dtype=int8 isa=avx512_fp16", 4, 1 },
    { "dtype=bf16 cpu=sapphirerapids", 1, 1, "no faster than float32" },
    { "dtype=bf16 cpu=sapphirerapids dk=2 isa=amx", 2, 1, "no faster than float32" },
    { "dtype=int8 cpu=sapphirerapids", 4, 1, "no faster than float32" },
  } do
    local base = paired_base:gsub("([%w_]+)=%S+ ", function(key) return case[1]:find(" " .. key .. "=") and "" end)
    local words = base .. case[1]
    local plan = plan_of.build(config.load(nil, split(words)))
    local why = ""
    for _, row in ipairs(plan.why) do
      if row.choice:find "^no pairs" then why = row.reason end
    end
    check(plan.scheme.group == case[2] and plan.attend.scheme.group == case[3], words .. ": other products")
    check(case[4] and why:find(case[4], 1, true) or not case[4] and why == "", words .. ": " .. why)
  end

  -- Projections are by mmla where the ISA has such, and nothing stands against them.
  for _, case in ipairs {
    { "dtype=bf16", 2, 10 }, { "dtype=int8", 2, 6 }, { "attend_dtype=bf16", 1, 20 }, { "dtype=f16", 1, 20 },
    { "dtype=bf16 dv=6", 1, 10, "multiple of four" }, { "dtype=bf16 dv=6 project=qkv", 2, 10 },
    { "dtype=int8 dv=3", 2, 6 }, { "dtype=bf16 q_lanes=queries", 1, 10, "other lanes" },
    { "dtype=bf16 kv_rows=3", 1, 10, "have to be even" }, { "dtype=int8 out_rows=5", 1, 5, "have to be even" },
    { "dtype=int8 q_lanes=columns kv_rows=6", 2, 6 }, { "dtype=bf16 project=none", 1 }, { "dtype=int8 seq=1", 2, 6 },
  } do
    local words = "h=4 dk=8 isa=neon_i8mm " .. (case[1]:find "none" and "" or "d_model=20 ")
      .. (case[1]:find "seq" and "" or "seq=9 ") .. case[1]
    local plan = plan_of.build(config.load(nil, split(words)))
    local why = ""
    for _, row in ipairs(plan.why) do
      if row.choice:find "^no products by mmla" then why = row.reason end
    end
    local product = plan.stage.values and plan.stage.values.product
    check((plan.scheme.interleave or 1) == case[2] and (not product or product.steps == case[3]),
      ("%s: %d K steps"):format(words, product and product.steps or 0))
    check(case[4] and why:find(case[4], 1, true) or not case[4] and why == "", words .. ": " .. why)
  end

  -- Tiles where operands lie as these take them, rows of K filled with zeros where they have to; else pairs by vectors.
  for _, case in ipairs {
    { "dtype=bf16", true, true }, { "dtype=bf16 attend_dtype=f32", true, false }, { "attend_dtype=bf16", false, true },
    { "dtype=int8", true, true }, { "dtype=f16", false, false }, { "", false, false },
    { "dtype=bf16 dk=2", true, false, "less than an eighth" }, { "dtype=bf16 dk=4", true, true, nil, 16 },
    { "dtype=bf16 dk=14", true, true, nil, 16 }, { "dtype=bf16 dk=16", true, true, nil, 16 },
    { "dtype=bf16 seq=7", true, false, "half of a tile's rows" }, { "dtype=bf16 seq=8", true, true },
    { "dtype=bf16 dk=34", true, true, nil, 32 }, { "dtype=bf16 dk=33", true, true, nil, 32 },
    { "dtype=bf16 dk=31", true, true, nil, 16 }, { "dtype=bf16 dk=3", true, true, nil, 16 },
    { "dtype=bf16 dk=1", true, false, "less than an eighth", 1 },
    { "dtype=bf16 key_rows=16", true, false, "no multiple of two tiles" }, { "dtype=bf16 key_rows=32", true, true },
    { "dtype=bf16 q_lanes=queries", true, true }, { "dtype=bf16 weight_dtype=int8", true, true },
    { "dtype=bf16 weight_dtype=int8 seq=7", false, false, "half of a tile's rows" },
  } do
    local words = case[1] .. (case[1]:find "dk=" and "" or " dk=64") .. (case[1]:find "seq=" and "" or " seq=70") ..
      " h=2 d_model=40 isa=amx"
    local plan = plan_of.build(config.load(nil, split(words)))
    local why = ""
    for _, row in ipairs(plan.why) do
      if row.choice:find "^no tiles" then why = row.reason end
    end
    check(not plan.scheme.tiled == not case[2] and not plan.attend.scheme.tiled == not case[3],
      words .. ": other products")
    check(case[4] and why:find(case[4], 1, true) or not case[4] and why == "", words .. ": " .. why)
    check(not plan.stage.value_rows == not case[3] and not plan.stage.context_rows == not case[2],
      words .. ": other rows of words")
    local keys = plan.stage.key_rows
    check((keys and keys.c.row) == case[5], ("%s: rows of K of %d words"):format(words, keys and keys.c.row or 0))
  end

  -- Keys that are rounded as they are stored are whole sums; those of groups of weights are not.
  for words, count in pairs { ["weight_dtype=int8"] = 1, ["weight_dtype=int4"] = 10 } do
    local plan = plan_of.build(config.load(nil, split("h=4 d_model=300 dk=76 seq=9 dtype=bf16 isa=avx2 " .. words)))
    check(plan.stage.keys.product.chunks.count == count, words .. ": sums of keys")
  end

  -- Inputs of a smaller type are widened once, but for those that are read in pairs, or rounded where they are read;
  -- sums of y are stored whole.
  for _, case in ipairs {
    { "", "wide_q" }, { "attention=cross", "wide_q wide_k wide_v" }, { "dtype=bf16", "" },
    { "dtype=f16", "" }, { "attention=cross project=o layout=bhsd", "wide_q wide_k wide_v" },
    { "attention=cross cache=fixed", "wide_q", "wide_k wide_v" },
  } do
    local plan = plan_of.build(config.load(nil, split("h=4 d_model=300 dk=76 seq=9 io_dtype=bf16 isa=avx512_bf16 " ..
      case[1])))
    local function widened(stage)
      local names = {}
      for i, input in ipairs(stage and stage.inputs or {}) do names[i] = input.to.name end
      return table.concat(names, " ")
    end
    check(widened(plan.stage.widen) == case[2], case[1] .. ": widens " .. widened(plan.stage.widen))
    check(widened(plan.stage.round) == (case[1] == "dtype=f16" and "rounded_q" or ""), case[1] .. ": rounds")
    check(widened(plan.stage.widen_filling) == (case[3] or ""), case[1] .. ": fills")
    check(plan.stage.output.product.chunks.count == 1, case[1] .. ": chunks of y")
  end

  -- Groups in straight code have functions of their own where their spans differ (the tape compares bodies here).
  for _, more in ipairs { "", " mask=bool", " window_left=2 probs=true" } do
    local text = "h=1 d_model=2 dk=1 seq=9 causal=true unroll=full query_vectors=1 isa=neon" .. more
    local ok, message = pcall(record, config.load(nil, split(text)))
    check(ok, ("%s: %s"):format(text, message))
  end

  -- Few queries read a cache as rows, where they can; else a reason says why not.
  local base = "h=4 h_kv=2 d_model=20 dk=6 cache=append "
  for _, case in ipairs {
    { "seq=4 seq_kv=16 isa=avx512", true }, { "seq=5 seq_kv=16 isa=avx512", "once for each query" },
    { "seq=2 seq_kv=8 isa=avx2", true }, { "seq=1 seq_kv=7 isa=avx2", "8 keys at a time" },
    { "seq=1 seq_kv=16 isa=neon rope=half alibi=true softcap=2 sink=true kv_len=true qk_norm=rms", true },
    { "seq=1 seq_kv=16 isa=scalar", "once for each query" },
    { "seq=1 seq_kv=16 isa=avx2 unroll=full", "straight code" },
    { "seq=1 seq_kv=16 isa=avx2 key_rows=2", "key_rows is given" },
    { "seq=1 seq_kv=16 isa=avx2 attend_dtype=f16", true }, { "seq=1 seq_kv=16 isa=avx2 dtype=bf16", true },
    { "seq=1 seq_kv=16 isa=avx2 cache_dtype=int8 dv=9 cache_layout=bhsd", true },
    { "seq=1 seq_kv=16 isa=avx2 cache_dtype=int8 attend_dtype=bf16 rope=half", true },
    { "seq=1 seq_kv=16 isa=avx2 attend_dtype=f16 cache_dtype=f32", "operands of products are rounded" },
    { "seq=1 seq_kv=16 isa=avx2 dtype=bf16 attend_dtype=f32", "operands of products are rounded" },
    { "seq=1 seq_kv=16 isa=avx2 mask=bool mask_dims=hqk", true }, { "seq=1 seq_kv=16 isa=avx2 probs=true", true },
    { "seq=1 seq_kv=16 isa=avx2 scores=scaled", "scores are written" },
    { "seq=1 seq_kv=16 isa=avx2 dv=8 cache_layout=bhsd", true },
    { "seq=1 seq_kv=16 isa=avx2 dv=9 cache_layout=bhsd", "no whole vectors" },
  } do
    local plan = plan_of.build(config.load(nil, split(base .. case[1])))
    local why
    for _, row in ipairs(plan.why) do
      if row.choice == "no lanes over keys in attend" then why = row.reason end
    end
    local steps = plan.attend.step
    local as_wanted = case[2] == true and steps and not why or why and why:find(case[2], 1, true) and not steps
    check(as_wanted, ("%s: %s"):format(case[1], why or "steps"))
    check(not steps or not plan.stage.copied_keys, case[1] .. ": keys are copied")
  end

  -- So are rows of inputs that are not projected.
  for _, case in ipairs {
    { "project=none dk=16", true }, { "project=none dk=16 layout=bhsd kv_len=true", true },
    { "project=none dk=20", false }, { "project=none dk=16 dv=20", false }, { "project=q dk=16 d_model=9", true },
    { "project=qk dk=16 d_model=9", false }, { "project=none dk=16 attend_dtype=bf16", false },
  } do
    local keys = "isa=avx2 h=4 h_kv=2 seq=1 seq_kv=33 attention=cross " .. case[1]
    local plan = plan_of.build(config.load(nil, split(keys)))
    check((plan.attend.kind == "decode") == case[2], case[1] .. ": " .. plan.attend.kind)
  end

  -- Their projections are of pairs where rows of the context are whole vectors; never of tiles.
  for _, case in ipairs { { "dv=16 isa=avx512_bf16", 2 }, { "dv=8 isa=avx512_bf16", 1 }, { "dv=16 isa=amx", 2 } } do
    local plan = plan_of.build(config.load(nil, split(base .. "seq=1 seq_kv=16 dtype=bf16 " .. case[1])))
    check(plan.attend.step and plan.scheme.group == case[2] and not plan.scheme.tiled, case[1] .. ": words")
  end

  -- Rows of a small cache are kept behind what makes them, and widened for all but steps; where a cache lies, and how
  -- large it is, does not depend on the queries.
  for _, case in ipairs {
    { "cache_dtype=bf16", "keys cached_keys copied_keys" }, { "seq=1 cache_dtype=bf16", "keys cached_keys" },
    { "project=none attention=cross cache_dtype=int8", "cached_keys copied_keys" },
    { "project=none attention=cross rope=half cache_dtype=int8 seq=1", "keys cached_keys" },
  } do
    local plan = plan_of.build(config.load(nil, split("isa=avx2 h=4 h_kv=2 d_model=20 dk=6 seq_kv=33 cache=append " ..
      (case[1]:find "seq=" and "" or "seq=9 ") .. case[1])))
    local names = {}
    for _, stage in ipairs(plan.stages) do
      if stage.of == "keys" or stage.name == "keys" then names[#names + 1] = stage.name end
    end
    check(table.concat(names, " ") == case[2], case[1] .. ": " .. table.concat(names, " "))
  end
  local bytes = {}
  for _, more in ipairs { "seq=1", "seq=9 key_rows=3", "seq=9 causal=true batch=2 unroll=tile" } do
    for _, layout in ipairs { "packed", "bhsd" } do
      local plan = plan_of.build(config.load(nil, split(
        "isa=avx2 h=4 h_kv=2 d_model=20 dk=5 dv=3 seq_kv=33 cache=append cache_dtype=int8 cache_layout=" .. layout ..
        " " .. more)))
      bytes[layout] = bytes[layout] or plan.cache_bytes
      check(plan.cache_bytes == bytes[layout], more .. ": another cache")
    end
  end
  check(bytes.bhsd == 2 * 33 * 8 + 4 * 33 * 4, "bytes of a cache of int8: " .. bytes.bhsd)
end
