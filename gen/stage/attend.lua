-- Attention of one group of queries: scores, softmax and context, head by head.

local again = require "emit.again"
local apply = require "stage.apply"
local choices = require "base.choices"
local context_of = require "emit.context"
local graph = require "graph.init"
local groups = require "schedule.groups"
local head = require "emit.head"
local mask = require "emit.mask"
local probs = require "emit.probs"
local project = require "stage.project"
local rounding = require "emit.rounding"
local memory = require "schedule.memory"
local score = require "score.init"
local step_code = require "emit.step"
local statistics = require "emit.stats"
local tiles = require "schedule.tiles"
local transpose = require "emit.transpose"
local turn_of = require "graph.turn"
local turning = require "emit.turn"
local ways = require "way.init"
local words = require "base.words"

local M = { phase = "attend", title = "attend", per = "heads" }

-- The queries of all heads, where they are rows that attention has to put into lanes: tensor, width of a head there
-- and its height in lanes, and the scale, where no weights have it; paired: they are words, as products read them. Or
-- nil.
local function query_rows(plan)
  local projected, given = plan.stage.queries, plan.attend.queries
  if projected and projected.c.pairs then
    local words = projected.c.head
    return { tensor = projected.c, width = words, height = tiles.padded(plan.attend_product, words), paired = true }
  end
  if projected then return { tensor = projected.c, width = projected.cols, height = projected.cols } end
  return given and { tensor = given, width = given.width, height = given.width, scale = plan.attend.scale }
end

-- build(columns, at, lane) for the matrices that a block of heads has in a tensor; heads that lie side by side are one.
-- at: where it is there; lane: the first of its rows where these are lanes, of which a head has `height`.
local function each_matrix(K, tensor, width, height, build)
  local hb = K.plan.hb
  if tensor.head == height and width == height then return build(hb * width, 0, 0) end
  K:each("head", hb, function(i) build(width, i * tensor.head, i * height) end)
end

-- Whether queries are read as the rows that they are: steps have no lanes for them.
local function read_as_rows(plan)
  local rows = query_rows(plan)
  local changed = plan.attend.turn or plan.attend.late or plan.attend_product.b.round
  return plan.attend.step and rows and not rows.scale and not changed
end

-- What is left where a plan has steps. Queries in lanes become rows again. own: p, the parameters; q, those queries, if
-- there are any; seen, what the first query sees; scratch and of_keys as attend has them.
local function steps(K, group, own)
  local plan, p, scratch = K.plan, own.p, own.scratch
  local context, scores, share, depth = plan.attend.context, plan.scores, plan.attend.share, plan.attend.depth
  local queries, cfg = query_rows(plan), plan.cfg
  local biases = #scores.hides > 0 and scratch "mask"
  if own.q then
    local rows = { p = scratch "q_rows", row = plan.hb * depth, columns = plan.hb * depth }
    transpose.rows(K, "queries_rows", group, own.q, rows)
    queries = { p = rows.p, row = rows.row, head = depth }
  else
    queries = { p = p.queries, row = queries.tensor.row, head = queries.tensor.head }
  end
  K:each("kv", plan.hb // share, function(kv)
    local k, v = own.of_keys(kv)
    local reads = score.of_head(scores, own.seen, function(name)
      return plan.memory:from(p.packed, name):at(kv * share)
    end, biases)
    K:each("query", group.used, function(r)
      K.t:when(r, p.rows and p.rows - own.seen.query or group.used, function()
        K:each("sharing", biases and (mask.by_head(plan) and share or 1) or 0, function(h)
          local first, last = score.interval(scores, score.of_query(own.seen, own.seen.query + r))
          mask.row(K, group, score.of_block(scores, p, kv * share + h, r).mask, biases:at(h * mask.row_count(plan)),
            mask.step_range(plan, first, last + 1))
        end)
        step_code.heads(K, {
          q = queries.p:at(kv * (share * queries.head) + r * queries.row), q_head = queries.head,
          k = k, v = v,
          k_scales = own.scales_of("k_scales", kv), v_scales = own.scales_of("v_scales", kv),
          p = scratch "p", sums = scratch "sums", o = scratch "o_sums",
          out = { p = p.y:at(kv * (share * context.head) + r * context.row), head = context.head },
          reads = score.of_query(reads, own.seen.query + r),
          probs = p.probs and p.probs:at(kv * (share * cfg.seq * cfg.seq_kv) + r * cfg.seq_kv),
          test = biases and scratch "test", seen = biases and scratch "seen_values",
        })
      end)
    end)
  end)
end

-- Rows that a head has of the context, where these are lanes.
local function context_rows(plan, stage)
  return stage.context.pairs and tiles.words(plan.product, stage.out) or stage.out
end

-- Words of a query of a head as products read them, zeros among them, where these have no room in its place; or nil.
local function apart_words(plan)
  local product, depth = plan.attend_product, plan.attend.depth
  local words, rows = tiles.padded(product, tiles.words(product, depth)), query_rows(plan)
  return not (rows and rows.paired) and words > depth and words or nil
end

-- Queries, scores, softmax and context of one group for one block of heads.
local function attend(K, group, a)
  local t, plan, cfg = K.t, K.plan, K.plan.cfg
  local query, rows, context = plan.stage.query, query_rows(plan), plan.attend.context
  local key_query, value_context = plan.stage.key_query, plan.stage.value_context
  local params = { { "keys", "in", a.keys }, { "values", "in", a.values }, { "scratch", "out", a.scratch } }
  for _, name in ipairs { "k_scales", "v_scales" } do
    if a[name] then params[#params + 1] = { name, "in", a[name] } end
  end
  if a.packed then table.insert(params, 1, { "packed", "in", a.packed }) end
  if a.o then params[#params + 1] = { "o", "out", a.o } end
  if a.xt then table.insert(params, 1, { "xt", "in", a.xt }) end
  if a.queries then params[#params + 1] = { "queries", "in", a.queries } end
  if a.y then params[#params + 1] = { "y", "out", a.y } end
  for _, name in ipairs(graph.sheets(cfg)) do params[#params + 1] = { name, "out", a[name] } end
  for _, table in ipairs(a.tables) do params[#params + 1] = table end
  params[#params + 1] = { "q0", "int", a.q0 }
  score.add_params(plan.scores, params, a.reads)
  K:part("attend_" .. group.name, ("Attention of %d queries, %d head%s."):format(
    group.used, plan.hb, plan.hb > 1 and "s" or ""), params, function(p)
    local function scratch(name) return plan.memory:from(p.scratch, name) end
    local q
    if rows and not read_as_rows(plan) then
      q = scratch "q"
      each_matrix(K, rows.tensor, rows.width, rows.height, function(columns, at, lane)
        transpose.panel(K, "queries_lanes", group,
          { p = p.queries:at(at), row = rows.tensor.row, columns = columns, scale = rows.scale },
          q:at(lane * group.width))
        context_of.clear(K, group, q:at((lane + rows.width) * group.width), rows.height - rows.width)
      end)
    elseif query then
      q = scratch "q"
      apply.record(K, query, { group = group, packed = p.packed, head = 0, b = p.xt, c = q })
    end

    -- Lane i of the group sees the keys first[i] .. last[i].
    local reads = { cfg = cfg }
    for _, read in ipairs(plan.scores.reads) do reads[read.name] = p[read.name] end
    local seen = score.of_query(reads, group.count == 1 and group.q0 or p.q0)
    local turn = plan.attend.turn
    if turn and turn.norm and turn.all then
      turning.query_factors(K, group, turn, plan.hb * cfg.dk, q, scratch "norms")
    end
    local function turn_queries(i, q_head)
      if not turn then return end
      local factors = turn.norm and scratch "norms"
      if turn.norm and not turn.all then turning.query_factors(K, group, turn, cfg.dk, q_head, factors) end
      turning.queries(K, group, turn, q_head, { cosines = p.cosines, sines = p.sines, place = seen.place,
        gains = p.gains and p.gains:at(turn.q_heads and i * cfg.dk or 0), factors = factors })
    end
    local function of_keys(kv) -- and of values
      return p.keys:at(kv * plan.attend.keys.head), p.values:at(kv * context_of.operand(plan).head)
    end
    local function scales_of(name, kv) return p[name] and p[name]:at(kv * cfg.seq_kv) end
    if plan.attend.step then
      K:each("head", turn and plan.hb or 0, function(i) turn_queries(i, q:at(i * (cfg.dk * group.width))) end)
      if q then
        rounding.lanes(K, "scaled_queries", group, { p = q, rows = plan.hb * plan.attend.depth,
                                                     scale = plan.attend.late, product = plan.attend_product })
      end
      return steps(K, group, { p = p, q = q, seen = seen, scratch = scratch, of_keys = of_keys, scales_of = scales_of })
    end
    local stats = scratch "stats"
    local span = score.span(plan.scores, group, seen, K.full)
    score.name_span(span, t)
    local asked = p.rows and t:int("asked", p.rows - seen.query) -- of its queries; or more
    local function put_ends(scores, name, put)
      for _, which in ipairs { "last", "first" } do
        if scores.bounds[which] then
          put(which, score.lane_bound(scores, t, group, which, tonumber(name:sub(2)) + 1, seen))
        end
      end
    end
    if plan.scores.masked or plan.scores.places then
      t:block(function()
        head.each_stat(K, group, stats, function(w, name, _, put)
          if plan.scores.places then
            local first = seen.place + (tonumber(name:sub(2)) * group.lanes)
            put("place", t:op("add", w, "place_" .. name, t:op("index", w, "from_" .. name, first),
              t:op("iota", w, "lane_" .. name)))
          end
          put_ends(plan.scores, name, put)
        end)
      end)
    end

    local biases = #plan.scores.hides > 0 and scratch "mask"
    local function write_biases(head)
      mask.write(K, group, score.of_block(plan.scores, p, head, 0).mask, biases, mask.range(plan, group, span))
    end
    if biases and not mask.by_head(plan) then write_biases(0) end

    local function show(ptrs, to)
      local shown = plan.scores.shown
      local of_shown = score.span(shown, group, seen, K.full)
      local function ends_of(scores)
        if not scores.bounded then return end
        t:block(function()
          head.each_stat(K, group, stats, function(_, name, _, put) put_ends(scores, name, put) end)
        end)
      end
      ends_of(shown)
      head.show(K, group, ptrs, of_shown)
      probs.write_scores(K, group, { p = ptrs.p, stats = stats, to = to, span = of_shown, asked = asked })
      ends_of(plan.scores)
    end

    local o_heads = p.o or scratch "o"
    local function one_head(i, kv) -- and the number of its keys and values, which others may share
      if biases and mask.by_head(plan) then write_biases(i) end
      local k, v = of_keys(kv)
      local ptrs = {
        q = q and q:at(i * ((rows and rows.height or query.cols) * group.width)), p = scratch "p", stats = stats,
        reads = score.of_head(plan.scores, p, function(name) return plan.memory:from(p.packed, name):at(i) end, biases),
        k = k, v = v, o = o_heads:at(i * (context_rows(plan, plan.attend) * group.width)), asked = asked,
        query = seen.query, steady = scratch "steady",
      }
      if context.pairs then ptrs.o, ptrs.context = scratch "o", ptrs.o end
      local function applied(stage, b, c)
        apply.record(K, stage, { group = group, packed = p.packed, head = kv, b = b, c = c })
        return c
      end
      turn_queries(i, ptrs.q)
      if key_query then
        if ptrs.q then
          rounding.lanes(K, "queries", group, { p = ptrs.q, rows = key_query.steps, product = plan.applying.product })
        end
        ptrs.q = applied(key_query, ptrs.q or p.xt, scratch "kq")
      end
      local apart = apart_words(plan) and scratch "q_pairs"
      if not (rows and rows.paired) then
        rounding.lanes(K, "scaled_queries", group, { p = ptrs.q, to = apart, rows = plan.attend.depth,
                                                     scale = plan.attend.late, product = plan.attend_product })
      end
      ptrs.q = (apart or ptrs.q):as(plan.attend_product.held)
      local o = ptrs.o
      if value_context then ptrs.o = scratch "c" end
      if biases then
        t:block(function()
          head.each_stat(K, group, stats, function(w, name, _, put)
            put("seen", t:op("set", w, "seen_" .. name, 1.0))
          end)
        end)
      end
      if p.scores then show(ptrs, p.scores:at(i * (cfg.seq * cfg.seq_kv))) end
      head.pass(K, group, ptrs, { span = span })
      again.check(K, group, ptrs, span)
      if value_context then applied(value_context, ptrs.o, o) end
      if ptrs.context and ways.beside(plan.product) > 1 then
        rounding.blocks(K, group, ptrs.context, context_rows(plan, plan.attend))
      end
      if p.probs then
        probs.write(K, group, { p = ptrs.p, stats = stats, to = p.probs:at(i * (cfg.seq * cfg.seq_kv)), span = span,
                                asked = asked })
      end
    end
    local share = plan.attend.share
    K:each("head", plan.hb // share, function(kv)
      K:each("sharing", share, function(i) one_head(kv * share + i, kv) end)
    end)
    if not p.y then return end
    each_matrix(K, context, context.width, context.width, function(columns, at, lane)
      transpose.rows(K, "y_rows", group, o_heads:at(lane * group.width),
        { p = p.y:at(at), row = context.row, columns = columns, asked = asked })
    end)
  end)
end

function M.emit(K, place, stage, group, i)
  if not K.plan.attend.step then choices.add(K.t.why, "one_pass") end
  local plan, cfg, memory = K.plan, K.plan.cfg, K.plan.memory
  local q0, queries, context = i * group.used + group.q0, query_rows(plan), stage.context
  local function from_q0(tensor) return memory:tensor(place, tensor):at(q0 * tensor.row) end
  local function of_keys(name) -- what is [h][seq][seq_kv]
    return place[name] and place[name]:at(place.hb * (plan.hb * cfg.seq * cfg.seq_kv) + q0 * cfg.seq_kv)
  end
  local in_lanes = context.at == "lanes"
  attend(K, group, {
    xt = plan.stage.transpose and memory:of_group(place, "xt", group, i),
    packed = memory.head.total > 0 and memory:base(place, "head"), queries = queries and from_q0(queries.tensor),
    keys = project.operands(K, place, stage.keys), values = project.operands(K, place, context_of.operand(plan)),
    k_scales = stage.keys.scales and memory:at(place, stage.keys.scales),
    v_scales = stage.values.scales and memory:at(place, stage.values.scales),
    scratch = memory:base(place, "task"),
    o = in_lanes and memory:of_group(place, "context", group, i):at(
      place.hb * (plan.hb * context_rows(plan, stage) * group.width)),
    y = not in_lanes and from_q0(context):at(context.at == "rows" and place.hb * (plan.hb * context.head) or 0),
    probs = of_keys("probs"), scores = of_keys("scores"),
    q0 = q0, reads = score.of_block(plan.scores, place, place.hb * plan.hb, q0),
    tables = turning.query_params(K, place, stage.turn),
  })
end

-- Before the first group of a run or a task.
function M.begin(K, place)
  if K.plan.attend.step then return end
  local t, w = K.t, K.plan.isa.full
  t:block(function()
    t:op("store", w, nil, K.plan.memory:from(K.plan.memory:base(place, "task"), "steady"), t:op("zero", w, "calm"))
  end)
end

-- ---- the plan ----

function M.axes(plan)
  return { { var = "g", items = plan.groups, total = plan.group_count, grain = plan.groups_per_task,
             queries = groups.queries } }
end

-- Of the widest group and one task: queries, those with Wk applied, weights, statistics, context before Wv is applied,
-- and the context that becomes rows of y; of steps rows of queries and of the context as well.
function M.sections(plan, stage, add)
  local widest, in_list = plan.widest, plan.stage
  local rows, query = query_rows(plan), in_list.query
  local scored = plan.attend_product.held
  local asked = scored -- of queries; not yet before they are pairs
  if plan.attend_product.group > 1 and not (rows and rows.paired) then asked = nil end
  local function add_task(name, doc, rows, type)
    add("task", { name = name, doc = doc, count = rows * widest, type = type })
  end
  local in_lanes = (rows or query) and not read_as_rows(plan)
  if in_lanes then
    add_task("q", "Q", plan.hb * (rows and rows.height or query.cols),
      in_list.key_query and plan.product.held or asked)
  end
  if in_list.key_query then add_task("kq", "Q with Wk", in_list.key_query.cols, scored) end
  if plan.attend.step then
    local function add_rows(name, doc, count) add("task", { name = name, doc = doc, count = count }) end
    if in_lanes then add_rows("q_rows", "rows of Q", plan.cfg.seq * plan.hb * stage.depth) end
    add("task", { name = "p", doc = "weights of scores", count = stage.share * plan.attend.step.p_row, type = scored })
    add_rows("sums", "sums of weights", stage.share * plan.isa.lanes)
    add_rows("o_sums", "sums of the context", stage.share * plan.attend.step.product.ld)
    if #plan.scores.hides > 0 then
      add_rows("test", "whether a context is finite", plan.isa.lanes)
      add("task", { name = "seen_values", doc = "values that are not hidden", type = scored,
                    count = plan.attend.step.block * plan.attend.step.seen_row + plan.isa.lanes })
    end
  else
    local apart = apart_words(plan)
    if apart then add_task("q_pairs", "Q of a head in pairs", apart, scored) end
    add("task", { name = "p", doc = "weights of scores", count = plan.weights_floats, type = scored })
    add_task("stats", "statistics", statistics.count(plan.scores))
    add("task", { name = "steady", doc = "whether maxima may rise", count = plan.isa.lanes })
  end
  if in_list.value_context then add_task("c", "context of a head", in_list.value_context.steps) end
  if #plan.scores.hides > 0 then
    add("task", { name = "mask", doc = "biases of a mask", count = mask.count(plan) })
  end
  for _, value in ipairs(plan.scores.packed) do
    add("head", { name = value.name, doc = value.doc, count = plan.hb })
  end
  if stage.context.at == "lanes" then
    local context = stage.context
    add("lanes", { name = "context", doc = "context of all heads", rows = plan.cfg.h * context_rows(plan, stage),
                   type = (context.pairs or context.held) and plan.product.held })
    if context.pairs then add_task("o", "context of a head", stage.out) end
  elseif stage.context.at == "rows" then
    add("entry", { name = "context", doc = "context of all heads", cols = stage.context.row,
                   count = plan.cfg.seq * stage.context.row, type = stage.context.pairs and plan.product.held })
  elseif not plan.attend.step then
    add_task("o", "context", plan.hb * stage.out)
  end
  if stage.turn then
    if stage.turn.norm then add_task("norms", "factors and means of queries", 2) end
    turn_of.query_sections(plan, stage.turn, add)
  end
end

function M.fills(pack, stage)
  if stage.turn then turn_of.query_fills(pack, stage.turn) end
  local hb = pack.plan.hb
  for _, value in ipairs(pack.plan.scores.packed) do
    local matrix = { text = value.matrix, a = value.matrix, along = "column", width = 1, heads = pack.plan.cfg.h }
    pack:add_heads(matrix, { to = pack:at(value.name), steps = 1, used = hb, width = hb, scale = value.scale,
                             terms = { pack.term(matrix, 0) }, rounds = {} })
  end
end

-- With all that is applied to its queries.
function M.cycles(plan, stage)
  local macs = stage:macs()
  for _, other in ipairs(plan.stages) do
    if other.kind == "apply" then macs = macs + other:macs() end
  end
  return 2.0 * macs / plan.per_cycle
end

local SCORE = 5 -- statements of exp2 and the sums, per vector of scores

function M.statements(count, plan, stage)
  local cfg = plan.cfg
  for _, group in ipairs(plan.groups) do
    local n, heads = #group.vecs, group.count * cfg.h
    if plan.attend.step then
      count:tiles(cfg.h, plan.attend.step.keys, 1, -(-stage.depth // plan.isa.lanes))
      return count:columns(plan.attend.step.product, plan.attend.step.product.runs[1], 2)
    end
    -- Of score tiles there are a first, a next and a maximum one, behind a mask more.
    local kinds = count.straight and 1 or plan.scores.masked and 6 or 3
    count:copies(count:times(heads * group.keys.tiles) + kinds - 1, group.keys.rows, n, stage.depth, SCORE)
    for _, run in ipairs(group.context) do count:tiles(heads * run.count, run.size, n, cfg.seq_kv) end
  end
end

-- In straight code compilers keep every broadcast of the keys and values of a head, to use it for the next group of
-- queries.
function M.stack(plan, stage)
  return plan.cfg.seq_kv * (stage.depth + stage.breadth) * plan.isa.lanes * memory.BYTES
end

function M.describe(plan, stage)
  local lines, first = {}, plan.stage.query or plan.stage.key_query
  for _, group in ipairs(plan.groups) do
    local width = group.width == group.used and group.used or group.used .. " of " .. group.width
    lines[#lines + 1] = { "attend", ("%d x %s queries%s"):format(group.count, width,
      first and ": Q " .. words.runs(plan.groups[1].products[first.name].runs, group.used) or "") }
    if plan.attend.step then
      lines[#lines + 1] = { "", ("scores of %d keys k%d | context %s k%d"):format(plan.attend.step.keys, stage.depth,
        words.column_tiles(plan.attend.step.product), math.min(plan.cfg.seq_kv, plan.attend.step.block)) }
      return lines
    end
    lines[#lines + 1] = { "", ("scores %dx%d k%d | context %s k%d"):format(group.keys.rows, group.used, stage.depth,
      words.runs(group.context, group.used), math.min(plan.cfg.seq_kv, group.keys.block_tiles * group.keys.rows)) }
  end
  return lines
end

return M
