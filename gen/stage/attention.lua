-- What attention with queries in the lanes (attend.lua) and decode steps (decode.lua) have in common.
--
--   M.record(K, place, stage, how)   records the function of a group and a block of heads. `how` has
--     group, i                       the group, and its number among those of its kind
--     in_lanes                       whether queries are put into lanes
--     build(own)                     records the work; own has K, group, and the functions of Own
--       own.p, own.q                 the parameters, and the queries in lanes
--       own.rows, own.seen           the result of query_rows; the keys that the first query sees
--   M.axes, fills, cycles            as in stage/init.lua; the *_sections add memory that both need

local context_of = require "emit.context"
local conversions = require "rewrite.conversions"
local graph = require "graph.init"
local groups = require "schedule.groups"
local layouts = require "graph.layout"
local product = require "stage.product"
local rows_of = require "stage.rows"
local score = require "score.init"
local sections = require "schedule.sections"
local tape = require "tape.init"
local tiles = require "schedule.tiles"
local transpose = require "emit.transpose"
local qk_of = require "graph.qk"
local emit_qk = require "emit.qk"
local wording = require "base.wording"

local M = {}
local Own = {}
Own.__index = Own

-- For an odd dk: whether a transposition of the words of each head takes no more squares than one of the floats of all
-- heads.
local function fewer_squares(plan, tensor, depth)
  local lanes, side_by_side = plan.isa.lanes, layouts.side_by_side(tensor, depth)
  local words = plan.hb * tiles.ceil_div(tiles.words(plan.attend.scheme, depth), lanes)
  return not side_by_side or words <= tiles.ceil_div(plan.hb * depth, lanes)
end

-- Where the queries of attention come from. `query` is a product of all heads with queries in the lanes, and
-- `key_query` one of each head. Otherwise `tensor` has them as rows, and `projected` is the projection that makes it,
-- if any.
function M.queries(plan)
  local list, tensor, own = plan.stages, plan.attend.queries, {}
  local stage = graph.maker(list, tensor)
  if stage and stage.per == "head" then
    own.key_query, tensor, stage = stage, stage.a, graph.maker(list, stage.a)
  end
  if stage and stage.nest == "lanes" then own.query = stage end
  if tensor.at ~= "lanes" and not own.query then own.tensor, own.projected = tensor, stage end
  return own
end

-- If attention has to put rows of queries into lanes: tensor; width, columns of a head there; height, rows of a head in
-- lanes; scale, unless the weights include it. paired: a head is words as products read them, or becomes such words: a
-- number and the one `distance` after it. Otherwise nil.
function M.query_rows(plan)
  local of, attend = M.queries(plan), plan.attend
  local tensor, projected = of.tensor, of.projected
  local given = not projected and tensor
  if tensor and not attend.qk and conversions.ragged(attend) and fewer_squares(plan, tensor, attend.depth) then
    local words = tiles.words(plan.attend.scheme, attend.depth)
    return { tensor = tensor, width = words, height = tiles.padded(plan.attend.scheme, words), distance = words,
             paired = true, scale = attend.query_scale or given and attend.scale }
  end
  if projected and tensor.pairs then
    local words = tensor.head
    return { tensor = tensor, width = words, height = tiles.padded(plan.attend.scheme, words), paired = true }
  end
  if projected then return { tensor = tensor, width = projected.cols, height = projected.cols } end
  return given and { tensor = given, width = given.width, height = given.width, scale = attend.scale }
end

-- Records build(columns, at, lane) for the parts of a tensor that hold a block of heads. Heads that lie side by side
-- are one part. at: the part's offset in the tensor; lane: its first row in lanes, of which a head has `height`.
-- distance: the words of each head are made separately.
function M.each_matrix(K, tensor, width, height, build, distance)
  local hb = K.plan.hb
  if layouts.side_by_side(tensor, height) and width == height and not distance then return build(hb * width, 0, 0) end
  K:each("head", hb, function(i) build(width, i * tensor.head, i * height) end)
end

-- Rows of the context of a head, with queries in the lanes.
function M.context_rows(plan, stage)
  return stage.context.pairs and tiles.words(stage.context.scheme, stage.out) or stage.out
end

-- ---- inside the function of a group ----

-- A section of the task's memory, which has a name in C unless the code is straight-line.
function Own:scratch(name)
  local found = self.K.plan.memory:from(self.p.scratch, name)
  return self.K.full and found or tape.pointer(sections.name(name), 0, found.type)
end

-- The first key and the first value of head kv.
function Own:of_keys(kv)
  local plan = self.K.plan
  return self.p.keys:at(kv * plan.attend.keys.head), self.p.values:at(kv * context_of.operand(plan).head)
end

-- The scales of its rows of keys or values, if there are any.
function Own:scales_of(name, kv) return self.p[name] and self.p[name]:at(kv * self.K.plan.cfg.seq_kv) end

-- Returns a function that finds packed numbers by name (one for each head), from head i on.
function Own:packed_from(i)
  return function(name) return self.K.plan.memory:from(self.p.packed, name):at(i) end
end

-- Applies norm and rope to the queries of head i.
function Own:turn_queries(i, q_head)
  local K, p, qk, cfg = self.K, self.p, self.K.plan.attend.qk, self.K.plan.cfg
  if not qk then return end
  local factors = qk.norm and self:scratch "norms"
  if qk.norm and not qk.all then emit_qk.query_factors(K, self.group, qk, cfg.dk, q_head, factors) end
  emit_qk.queries(K, self.group, qk, q_head, { cosines = p.cosines, sines = p.sines, place = self.seen.place,
    gains = p.gains and p.gains:at(qk.q_heads and i * cfg.dk or 0), factors = factors })
end

-- The queries of all heads in lanes: transposed rows, or the result of the query projection.
local function queries_in_lanes(own, in_lanes)
  local K, plan, group, rows, q = own.K, own.K.plan, own.group, own.rows, nil
  local query = M.queries(plan).query
  if rows and in_lanes then
    q = own:scratch "q"
    M.each_matrix(K, rows.tensor, rows.width, rows.height, function(columns, at, lane)
      transpose.panel(K, "queries_lanes", group,
        { p = own.p.queries:at(at), row = rows.tensor.row, columns = columns, scale = rows.scale,
          distance = rows.distance, pair = plan.attend.scheme.pair }, q:at(lane * group.width))
      context_of.clear(K, group, q:at((lane + rows.width) * group.width), rows.height - rows.width)
    end, rows.distance)
  elseif query then
    q = own:scratch "q"
    product.apply(K, query, { group = group, packed = own.p.packed, head = 0, b = own.p.xt, c = q })
  end
  return q
end

-- ---- the function ----

-- The arguments of the function of a group.
local function arguments(K, place, stage, group, i)
  local plan, cfg, memory = K.plan, K.plan.cfg, K.plan.memory
  local q0, queries, context = i * group.used + group.q0, M.query_rows(plan), stage.context
  local function from_q0(tensor) return memory:tensor(place, tensor):at(layouts.at(tensor, q0)) end
  local function of_keys(name) -- for results that are [h][seq][seq_kv]
    return place[name] and place[name]:at(place.hb * (plan.hb * cfg.seq * cfg.seq_kv) + q0 * cfg.seq_kv)
  end
  local in_lanes = context.at == "lanes"
  return {
    xt = plan.q_lanes == "queries" and memory:of_group(place, "xt", group, i),
    packed = memory.head.total > 0 and memory:base(place, "head"), queries = queries and from_q0(queries.tensor),
    keys = rows_of.operands(K, place, stage.keys), values = rows_of.operands(K, place, context_of.operand(plan)),
    k_scales = stage.keys.scales and memory:at(place, stage.keys.scales),
    v_scales = stage.values.scales and memory:at(place, stage.values.scales),
    scratch = memory:base(place, "task"),
    o = in_lanes and memory:of_group(place, "context", group, i):at(
      place.hb * (plan.hb * M.context_rows(plan, stage) * group.width)),
    y = not in_lanes and from_q0(context):at(context.at == "rows" and place.hb * (plan.hb * context.head) or 0),
    probs = of_keys("probs"), scores = of_keys("scores"),
    q0 = q0, reads = score.of_block(plan.scores, place, place.hb * plan.hb, q0),
    tables = emit_qk.query_params(K, place, stage.qk, group, i),
  }
end

-- The same as a list of parameters.
local function params_of(plan, a)
  local params = {}
  local function add(name, kind) params[#params + 1] = { name, kind, a[name] } end
  for _, name in ipairs { "xt", "packed", "keys", "values" } do add(name, "in") end
  add("scratch", "out")
  for _, name in ipairs { "k_scales", "v_scales" } do add(name, "in") end
  add("o", "out")
  add("queries", "in")
  add("y", "out")
  for _, name in ipairs(graph.sheets(plan.cfg)) do add(name, "out") end
  for _, table in ipairs(a.tables) do params[#params + 1] = table end
  add("q0", "int")
  score.add_params(plan.scores, params, a.reads)
  return params
end

function M.record(K, place, stage, how)
  local plan, cfg, group = K.plan, K.plan.cfg, how.group
  local params = params_of(plan, arguments(K, place, stage, group, how.i))
  K:part("attend_" .. group.name, ("Attention of %d queries, %d head%s."):format(
    group.used, plan.hb, plan.hb > 1 and "s" or ""), params, function(p)
    local own = setmetatable({ K = K, group = group, p = p, rows = M.query_rows(plan) }, Own)
    if not K.full then K.t:places(p.scratch:cut(sections.of(plan, "scratch"))) end
    own.q = queries_in_lanes(own, how.in_lanes)
    -- Lane i of the group sees the keys first[i] .. last[i].
    local reads, qk = { cfg = cfg }, plan.attend.qk
    for _, read in ipairs(plan.scores.reads) do reads[read.name] = p[read.name] end
    own.seen = score.of_query(reads, group.count == 1 and group.q0 or p.q0)
    if qk and qk.norm and qk.all then
      emit_qk.query_factors(K, group, qk, plan.hb * cfg.dk, own.q, own:scratch "norms")
    end
    how.build(own)
  end)
end

-- ---- the plan ----

function M.axes(plan)
  return { { var = "g", items = plan.groups, total = plan.group_count, grain = plan.groups_per_task,
             queries = groups.queries } }
end

-- Adds a section of a task with so many rows as wide as the widest group.
function M.add_rows(plan, add, name, doc, rows, type)
  add("task", { name = name, doc = doc, count = rows * plan.widest, type = type })
end

-- The section of the queries in lanes, if they are put there.
function M.query_sections(plan, add)
  local rows, of, scheme = M.query_rows(plan), M.queries(plan), plan.attend.scheme
  local asked = (scheme.group == 1 or rows and rows.paired) and scheme.held or nil -- only once they are pairs
  if not (rows or of.query) then return end
  M.add_rows(plan, add, "q", "Q", plan.hb * (rows and rows.height or of.query.cols),
    of.key_query and of.key_query.scheme.held or asked)
end

-- The sections of what rows of gen/score pack: a number for each head.
function M.packed_sections(plan, add)
  for _, value in ipairs(plan.scores.packed) do
    add("head", { name = value.name, doc = value.doc, count = plan.hb })
  end
end

-- The sections of norm factors and rope tables for the queries.
function M.qk_sections(plan, stage, add)
  if not stage.qk then return end
  if stage.qk.norm then M.add_rows(plan, add, "norms", "factors and means of queries", 2) end
  qk_of.query_sections(plan, stage.qk, add)
end

function M.fills(pack, stage)
  if stage.qk then qk_of.query_fills(pack, stage.qk) end
  local hb = pack.plan.hb
  for _, value in ipairs(pack.plan.scores.packed) do
    local matrix = { text = value.matrix, a = value.matrix, along = "column", width = 1, heads = pack.plan.cfg.h }
    pack:add_heads(matrix, { to = pack:at(value.name), steps = 1, used = hb, width = hb, scale = value.scale,
                             terms = { pack.term(matrix, 0) }, rounds = {} })
  end
end

-- Includes the products that are applied to its queries and context.
function M.cycles(plan, stage)
  local macs = stage:macs()
  for _, other in ipairs(plan.stages) do
    if other.nest == "lanes" then macs = macs + other:macs() end
  end
  return 2.0 * macs / plan.per_cycle
end

-- Describes a kind of groups.
function M.queries_text(plan, group)
  local of = M.queries(plan)
  local first = of.query or of.key_query
  local width = group.width == group.used and group.used or group.used .. " of " .. group.width
  return ("%d x %s queries%s"):format(group.count, width,
    first and ": Q " .. wording.runs(plan.groups[1].products[first.name].runs, group.used) or "")
end

return M
