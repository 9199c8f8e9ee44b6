-- Attention of one group of queries, with queries in the lanes: scores, softmax and context, head by head.

local safe_path = require "emit.safe_path"
local attention = require "stage.attention"
local choices = require "base.choices"
local graph = require "graph.init"
local head = require "emit.head"
local mask = require "emit.mask"
local memory = require "schedule.memory"
local probs = require "emit.probs"
local product = require "stage.product"
local rounding = require "emit.rounding"
local row_keys = require "emit.row_keys"
local score = require "score.init"
local statistics = require "emit.stats"
local tiles = require "schedule.tiles"
local transpose = require "emit.transpose"
local ways = require "way.init"
local wording = require "base.wording"

local M = { phase = "attend", title = "attend", per = "heads", axes = attention.axes, fills = attention.fills,
            cycles = attention.cycles }

-- The product that makes the context of a head from P X (absorbed Wv), if there is one.
local function value_context_of(plan) return graph.maker(plan.stages, plan.attend.context) end

-- If the words of a head's query, padded with zeros, need more room than its floats: their number. Otherwise nil.
local function pair_words(plan)
  local scheme, depth = plan.attend.scheme, plan.attend.depth
  local words, rows = tiles.padded(scheme, tiles.words(scheme, depth)), attention.query_rows(plan)
  return not (rows and rows.paired) and words > depth and words or nil
end

-- ---- what lanes see ----

-- Stores the ends of each lane's interval of keys in the statistics of the vector with this name.
local function put_ends(own, scores, name, put)
  for _, which in ipairs { "last", "first" } do
    if scores.bounds[which] then
      put(which, score.lane_bound(scores, own.K.t, own.group, which, tonumber(name:sub(2)) + 1, own.seen))
    end
  end
end

-- Stores these ends, and the positions of the queries among the keys, if rows of gen/score ask for them.
local function put_lanes(own)
  local K, t, group, scores = own.K, own.K.t, own.group, own.K.plan.scores
  if not (scores.masked or scores.places) then return end
  t:scope(function()
    statistics.each(K, group, own.stats, function(w, name, _, put)
      if scores.places then
        local first = own.seen.place + (tonumber(name:sub(2)) * group.lanes)
        put("place", t:op("add", w, "place_" .. name, t:op("index", w, "from_" .. name, first),
          t:op("iota", w, "lane_" .. name)))
      end
      put_ends(own, scores, name, put)
    end)
  end)
end

local function write_biases(own, i)
  local K, plan, group = own.K, own.K.plan, own.group
  mask.write(K, group, score.of_block(plan.scores, own.p, i, 0).mask, own.biases, mask.range(plan, group, own.span))
end

-- ---- a head ----

-- Computes and returns the scores before softmax, whose interval of keys may be another.
local function show(own, ptrs, to)
  local K, group, scores = own.K, own.group, own.K.plan.scores
  local span = score.span(scores.shown, group, own.seen, K.full)
  local function ends_of(some)
    if not some.bounded then return end
    K.t:scope(function()
      statistics.each(K, group, own.stats, function(_, name, _, put) put_ends(own, some, name, put) end)
    end)
  end
  ends_of(scores.shown)
  head.show(K, group, ptrs, span)
  probs.write_scores(K, group, { p = ptrs.p, stats = own.stats, to = to, span = span, asked = own.asked })
  ends_of(scores)
end

-- What the emitters need for head i; kv: the number of its keys and values, which other heads may share.
local function pointers(own, i, kv)
  local plan, group, rows, context = own.K.plan, own.group, own.rows, own.K.plan.attend.context
  local k, v = own:of_keys(kv)
  local query = attention.queries(plan).query
  local height = rows and rows.height or query and query.cols
  local ptrs = {
    q = own.q and own.q:at(i * (height * group.width)), p = own:scratch "p", stats = own.stats,
    reads = score.of_head(plan.scores, own.p, own:packed_from(i), own.biases),
    k = k, v = v, o = own.o_heads:at(i * (attention.context_rows(plan, plan.attend) * group.width)),
    asked = own.asked, query = own.seen.query, steady = own:scratch "steady",
  }
  if context.pairs then ptrs.o, ptrs.context = own:scratch "o", ptrs.o end
  return ptrs
end

-- Applies a product to the queries or the context of a head, as absorbed and merged weights need it.
local function applied(own, stage, kv, b, c)
  product.apply(own.K, stage, { group = own.group, packed = own.p.packed, head = kv, b = b, c = c })
  return c
end

-- The queries of a head, in the form in which products read them.
local function operand(own, ptrs, kv)
  local K, plan, group, q = own.K, own.K.plan, own.group, ptrs.q
  local key_query = attention.queries(plan).key_query
  if key_query then
    if q then
      rounding.lanes(K, "queries", group, { p = q, rows = key_query.steps, scheme = plan.applying.scheme })
    end
    q = applied(own, key_query, kv, q or own.p.xt, own:scratch "kq")
  end
  local q_pairs = pair_words(plan) and own:scratch "q_pairs"
  if not (own.rows and own.rows.paired) then
    rounding.lanes(K, "scaled_queries", group, { p = q, to = q_pairs, rows = plan.attend.depth,
                                                 scale = plan.attend.query_scale, scheme = plan.attend.scheme })
  end
  return (q_pairs or q):as(plan.attend.scheme.held)
end

local function one_head(own, i, kv)
  local K, t, plan, cfg, group, p = own.K, own.K.t, own.K.plan, own.K.plan.cfg, own.group, own.p
  local value_context, numbers = value_context_of(plan), i * (cfg.seq * cfg.seq_kv)
  if own.biases and mask.by_head(plan) then write_biases(own, i) end
  local ptrs = pointers(own, i, kv)
  own:turn_queries(i, ptrs.q)
  ptrs.q = operand(own, ptrs, kv)
  local o = ptrs.o
  if value_context then ptrs.o = own:scratch "c" end
  if own.biases then
    t:scope(function()
      statistics.each(K, group, own.stats, function(w, name, _, put)
        put("seen", t:op("set", w, "seen_" .. name, 1.0))
      end)
    end)
  end
  if p.scores then show(own, ptrs, p.scores:at(numbers)) end
  head.pass(K, group, ptrs, { span = own.span })
  safe_path.check(K, group, ptrs, own.span)
  if value_context then applied(own, value_context, kv, ptrs.o, o) end
  if ptrs.context and ways.interleave(plan.attend.context.scheme) > 1 then
    rounding.blocks(K, group, ptrs.context, attention.context_rows(plan, plan.attend))
  end
  if p.probs then
    probs.write(K, group, { p = ptrs.p, stats = own.stats, to = p.probs:at(numbers), span = own.span,
                            asked = own.asked })
  end
end

-- ---- a group ----

-- Stores the context of all heads as rows of y.
local function write_rows(own)
  local K, context = own.K, own.K.plan.attend.context
  attention.each_matrix(K, context, context.width, context.width, function(columns, at, lane)
    transpose.rows(K, "y_rows", own.group, own.o_heads:at(lane * own.group.width),
      { p = own.p.y:at(at), row = context.row, columns = columns, asked = own.asked })
  end)
end

-- All heads of a block for one group.
local function record(own)
  local K, t, plan, p = own.K, own.K.t, own.K.plan, own.p
  own.stats = own:scratch "stats"
  if plan.scores.by_row then
    local left = p.rows and p.rows - own.seen.query
    own.seen = row_keys.of_group(K, own.group, own.seen, left, own:scratch "row_ends")
  end
  own.span = score.span(plan.scores, own.group, own.seen, K.full)
  score.name_span(own.span, t)
  -- How many of its queries are asked for; may exceed the group.
  own.asked = p.rows and t:int("asked", p.rows - own.seen.query)
  put_lanes(own)
  own.biases = #plan.scores.hides > 0 and own:scratch "mask"
  if own.biases and not mask.by_head(plan) then write_biases(own, 0) end
  own.o_heads = p.o or own:scratch "o"
  local share = plan.attend.share
  K:each("head", plan.hb // share, function(kv)
    K:each("sharing", share, function(i) one_head(own, kv * share + i, kv) end)
  end)
  if p.y then write_rows(own) end
end

function M.emit(K, place, stage, group, i)
  choices.add(K.t.why, "one_pass")
  attention.record(K, place, stage, { group = group, i = i, in_lanes = true, build = record })
end

-- Clears `steady` before the first group of a run or a task: the maximum may not rise yet.
function M.begin(K, place)
  local t, w = K.t, K.plan.isa.full
  t:scope(function()
    t:op("store", w, nil, K.plan.memory:from(K.plan.memory:base(place, "task"), "steady"), t:op("zero", w, "calm"))
  end)
end

-- ---- the plan ----

function M.tell(plan) choices.add(plan.why, "attend_lanes") end

local function context_sections(plan, stage, add)
  local context = stage.context
  if context.at ~= "lanes" then return attention.add_rows(plan, add, "o", "context", plan.hb * stage.out) end
  add("lanes", { name = "context", doc = "context of all heads",
                 rows = plan.cfg.h * attention.context_rows(plan, stage),
                 type = (context.pairs or context.held) and context.scheme.held })
  if context.pairs then attention.add_rows(plan, add, "o", "context of a head", stage.out) end
end

-- Memory for the widest group of a task: queries, queries with Wk applied, weights, statistics, the context before Wv
-- is applied, and the context that becomes rows of y.
function M.sections(plan, stage, add)
  local scored, q_pairs, value_context = plan.attend.scheme.held, pair_words(plan), value_context_of(plan)
  local key_query = attention.queries(plan).key_query
  local function add_task(...) attention.add_rows(plan, add, ...) end
  attention.query_sections(plan, add)
  if key_query then add_task("kq", "Q with Wk", key_query.cols, scored) end
  if q_pairs then add_task("q_pairs", "Q of a head in pairs", q_pairs, scored) end
  add("task", { name = "p", doc = "attention weights", count = plan.weights_floats, type = scored })
  add_task("stats", "statistics", statistics.count(plan))
  add("task", { name = "steady", doc = "0, or infinity once maxima may rise", count = plan.isa.lanes })
  if value_context then add_task("c", "context of a head", value_context.steps) end
  if plan.scores.by_row then
    add("task", { name = "row_ends", doc = "first and last keys of rows", count = row_keys.count(plan) })
  end
  if #plan.scores.hides > 0 then
    add("task", { name = "mask", doc = "biases of a mask", count = mask.count(plan) })
  end
  attention.packed_sections(plan, add)
  context_sections(plan, stage, add)
  attention.qk_sections(plan, stage, add)
end

local SCORE = 5 -- statements for each vector of scores, for exp2 and the sums

function M.statements(count, plan, stage)
  local cfg = plan.cfg
  for _, group in ipairs(plan.groups) do
    local n, heads = #group.vecs, group.count * cfg.h
    -- Tiles of scores have three kinds: first, next and one that finds the maximum; with a mask there are more.
    local kinds = count.straight and 1 or plan.scores.masked and 6 or 3
    count:copies(count:times(heads * group.keys.tiles) + kinds - 1, group.keys.rows, n, stage.depth, SCORE)
    for _, run in ipairs(group.context) do count:tiles(heads * run.count, run.size, n, cfg.seq_kv) end
  end
end

-- In straight-line code compilers keep each broadcast of a head's keys and values for the next group of queries.
function M.stack(plan, stage)
  return plan.cfg.seq_kv * (stage.depth + stage.breadth) * plan.isa.lanes * memory.BYTES
end

function M.describe(plan, stage)
  local lines, chunks = {}, tiles.score_chunks(plan.attending, stage.depth)
  local depth = chunks and wording.chain(chunks) or "k" .. stage.depth
  for _, group in ipairs(plan.groups) do
    lines[#lines + 1] = { "attend", attention.queries_text(plan, group) }
    lines[#lines + 1] = { "", ("scores %dx%d %s | context %s k%d"):format(group.keys.rows, group.used, depth,
      wording.runs(group.context, group.used), math.min(plan.cfg.seq_kv, group.keys.block_tiles * group.keys.rows)) }
  end
  return lines
end

return M
