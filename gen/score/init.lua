-- The steps of a score between the product and exp2: a list of rows, in the order of the formula. Scores are in base
-- 2, so they are log2(e) times those of the formula.
--
-- A row has a `key` of the config, or a function on(cfg), that switches it on, and some of these:
--
--   reads          list of values that it reads at run time, see below
--   packed         its numbers in a head's packed weights: { name, matrix = row of h numbers in mhagen_weights, doc,
--                  scale, default = (h): the values for a null pointer }
--   first, last    (s): the first and the last key that a query sees, affine in s.place and the integers s.<int>, and
--                  monotone: a larger input never lowers them. From one query to the next they grow by at most one.
--   by_row         true: `first` and `last` are s.row_first and s.row_last, which a run gives for each query; nothing
--                  is known of them but that they are keys (emit/row_keys.lua)
--   bias           (t, w, name, at): a number that is added to a score. Sums start there, unless a change comes first.
--   hides          (t, w, name, at): the mask of the lanes that do not see the key
--   change         (t, w, name, at, score): another score. Then sums start at zero, since -m comes after the change.
--   rises          whether biases mostly rise with the key: m comes from the last tile then, not from the first one
--   shown          the least value of `scores` that includes this row, if not "masked"
--   extra          (t, w, name, reads): an extra score, which belongs to no key. Its weight is added to the sum of a
--                  row that sees a key, and m is not below it.
--
--   reads          name, kind, from = its name in C
--   kind "int"     one for each batch entry, from `least` to most(cfg); moves: the positions of all queries move with
--                  it
--   kind "in"      a pointer: an entry has floats(cfg) numbers, of `type` if given; void: C has a pointer to void;
--                  block(cfg, head, query): how many lie before those of a head and a query
--
-- `at` describes a vector of scores:
--
--   index(t, w, name)        the vector of the numbers of its keys
--   first                    with keys in the lanes: the number of the first one
--   key, c, lane, width      with queries in the lanes: their key, an expression; the number of the vector in the
--                            group; its first lane; the lanes of the group
--   cfg, <name>              the config; the values that rows read
--   origin                   of a row that rises: the vector of the last keys that are seen; with an extra score, or
--                            before a change, the vector of the positions of the queries

local expr = require "base.expr"
local mask = require "score.mask"
local past = require "score.past"
local tape = require "tape.init"
local window = require "score.window"

local M = {}

M.rows = {}

function M.add(row) M.rows[#M.rows + 1] = row end

-- One line to add for a new row.
M.add(past.row)
M.add(require "score.kv_len")
M.add(require "score.causal")
M.add(window.left)
M.add(window.right)
M.add(require "score.softcap")
M.add(require "score.alibi")
M.add(require "score.kv_start")
M.add(require "score.row_keys")
M.add(require "score.q_len")
M.add(mask.bool)
M.add(mask.add)
M.add(require "score.sink")

-- s for one query: what s has, the query, and its place among the keys.
function M.of_query(s, query)
  return setmetatable({ query = query, place = query + past.before(s) }, { __index = s })
end

-- The interval of keys of a query. s: cfg, query, place and the integers that rows read.
local function first_key(rows, s)
  local first = 0
  for _, row in ipairs(rows) do
    if row.first then first = expr.max(first, row.first(s)) end
  end
  return first
end

local function last_key(rows, s)
  local last = s.cfg.seq_kv - 1
  for _, row in ipairs(rows) do
    if row.last then last = expr.min(row.last(s), last) end
  end
  return last
end

-- The first and the last key that a query sees; behind the last one where it sees none. s: as M.of_query makes it.
function M.interval(scores, s) return first_key(scores.rows, s), last_key(scores.rows, s) end

-- The least and the most that the ends of a row's own range may be.
function M.range_of_ends(cfg)
  return { row_first = { 0, cfg.seq_kv }, row_last = { -1, cfg.seq_kv - 1 } }
end

-- s for one query, where each integer is its `least` or its `most`; those that move places, as `moving` says.
local function extreme(scores, which, query, moving)
  local s, ends, of = { cfg = scores.cfg }, M.range_of_ends(scores.cfg), which == "least" and 1 or 2
  s.row_first, s.row_last = ends.row_first[of], ends.row_last[of]
  for _, read in ipairs(scores.reads) do
    local this = read.moves and moving or which
    if read.kind == "int" then s[read.name] = this == "least" and read.least or read.most(scores.cfg) end
  end
  return M.of_query(s, query)
end

-- Whether some query may see no key. The last key less the first is concave from query to query, and from place to
-- place. So it is least at one of the ends.
local function keyless(scores)
  for _, query in ipairs { 0, scores.cfg.seq - 1 } do
    for _, moving in ipairs { "least", "most" } do
      local first = first_key(scores.rows, extreme(scores, "most", query, moving))
      if last_key(scores.rows, extreme(scores, "least", query, moving)) < first then return true end
    end
  end
  return false
end

local levels = { scaled = 1, capped = 2, masked = 3 }

-- M.of for those rows that `is` tells.
local function of_rows(cfg, is)
  local scores = { cfg = cfg, rows = {}, reads = {}, bounds = {}, biases = {}, changes = {}, packed = {}, extras = {},
                   hides = {} }
  for _, row in ipairs(M.rows) do
    local on = row.on
    if is(row) and (on and on(cfg) or not on and cfg[row.key]) then
      scores.rows[#scores.rows + 1] = row
      for _, read in ipairs(row.reads or {}) do scores.reads[#scores.reads + 1] = read end
      for _, bound in ipairs { "first", "last" } do
        if row[bound] then scores.bounded, scores.bounds[bound] = true, true end
      end
      scores.by_row = scores.by_row or row.by_row
      if row.hides then scores.hides[#scores.hides + 1] = row end
      local behind = row.change or #scores.changes > 0
      if row.bias or row.change then table.insert(behind and scores.changes or scores.biases, row) end
      if row.change and scores.rises then scores.places = true end
      scores.rises = scores.rises or row.rises
      if row.extra then scores.extras[#scores.extras + 1] = row end
      scores.packed[#scores.packed + 1] = row.packed
    end
  end
  scores.masked = scores.bounded or #scores.hides > 0
  scores.bounds.last = scores.masked
  scores.wraps = scores.bounds.first or scores.rises
  scores.places = scores.places or scores.rises and #scores.extras > 0
  scores.keyless = #scores.hides > 0 or keyless(scores)
  return scores
end

-- The rows of a config:
--   rows       all of them
--   reads      what all of them read
--   bounds     { first, last }: that end of the interval is not the end of all keys
--   bounded    a row bounds the interval
--   by_row     a row bounds it by what a run gives for each query
--   hides      the rows that hide keys, which is a mask as well
--   masked     bounded, or a row hides keys; the last tile then is as high as others, so its last key is a bound
--   biases     the rows with a bias before any change
--   changes    the first row with a change, and those with a bias or change behind it
--   packed     numbers that are read of a head's weights
--   rises      a row rises
--   wraps      tiles of keys are not taken in their order: some of those that all lanes see come last
--   extras     the rows with an extra score
--   places     places of queries are read
--   keyless    a query may see no key
--   shown      the same of the rows that args->scores includes, where the config has scores
function M.of(cfg)
  local scores = of_rows(cfg, function() return true end)
  local level = levels[cfg.scores]
  if not level then return scores end
  scores.shown = of_rows(cfg, function(row) return levels[row.shown or "masked"] <= level end)
  scores.shown.places = scores.shown.rises -- what is shown is added whole
  scores.places = scores.places or scores.shown.places
  return scores
end

-- Pairs of a query and a key that it may see, at the last places that there are.
function M.pairs_seen(scores)
  local cfg, pairs_seen = scores.cfg, 0
  if not scores.masked then return cfg.seq * cfg.seq_kv end
  for query = 0, cfg.seq - 1 do
    local most = last_key(scores.rows, extreme(scores, "most", query))
    local first = first_key(scores.rows, extreme(scores, "least", query, "most"))
    pairs_seen = pairs_seen + math.max(0, most + 1 - first)
  end
  return pairs_seen
end

-- Reads what the rows want of batch entry entry.b, into `entry` by name.
function M.read(scores, t, entry)
  for _, read in ipairs(scores.reads) do
    if read.kind == "int" then
      entry[read.name] = t:int_at(read.name, read.from, entry.b)
    else
      local pointer = tape.pointer(read.from, entry.b * read.floats(scores.cfg), read.type)
      if read.void then pointer.base = ("(const %s *)%s"):format(pointer.type.c, read.from) end
      entry[read.name] = pointer
    end
  end
end

-- Parameters of a function that takes what the rows read; values: by name.
function M.add_params(scores, params, values)
  for _, read in ipairs(scores.reads) do params[#params + 1] = { read.name, read.kind, values[read.name] } end
end

-- The same of one that works on a head.
function M.add_head_params(scores, params, values)
  M.add_params(scores, params, values)
  for _, value in ipairs(scores.packed) do params[#params + 1] = { value.name, "in", values[value.name] } end
end

-- What the rows read, by name, from a head and a query on.
function M.of_block(scores, values, head, query)
  local own = setmetatable({}, { __index = values })
  for _, read in ipairs(scores.reads) do
    if read.block then own[read.name] = values[read.name]:at(read.block(scores.cfg, head, query)) end
  end
  return own
end

-- What the rows read for a head, by name; at: of the name of a packed value to the pointer to it; biases: what is read
-- in the place of a mask.
function M.of_head(scores, values, at, biases)
  local own = setmetatable({ mask = biases or nil }, { __index = values })
  for _, value in ipairs(scores.packed) do own[value.name] = at(value.name) end
  return own
end

-- Whether a run says lengths or places: how many keys or rows there are, or from where on.
function M.reads_lengths(scores)
  for _, read in ipairs(scores.reads) do
    if read.kind == "int" then return true end
  end
  return false
end

-- The keys of a batch entry that some row sees, or whose scores are shown: from `first` on and below `stop`, as far as
-- a run tells. values: what it reads, by name.
function M.keys_seen(scores, values)
  local bounds, s, m = {}, setmetatable({ cfg = scores.cfg }, { __index = values }), scores.cfg.seq_kv
  local function bound(row, which, query)
    local key = row[which] and row[which](M.of_query(s, query))
    return key and not expr.is_const(key) and key or nil
  end
  local function rises(row, which)
    return row[which] and row[which](M.of_query(s, 1)) - row[which](M.of_query(s, 0)) == 1
  end
  local rows = {}
  for _, row in ipairs((scores.shown or scores).rows) do rows[#rows + 1] = not row.by_row and row or nil end
  for _, row in ipairs(rows) do
    local first, last = bound(row, "first", 0), nil
    if first and rises(row, "first") then first = expr.max(first, 0) end
    if not rises(row, "last") then
      last = bound(row, "last", 0)
    elseif values.rows and scores.cfg.cache ~= "append" then -- there no row stands behind the last key
      last = bound(row, "last", values.rows - 1)
      last = last and expr.max(expr.min(last, m - 1), -1)
    end
    if first then bounds.first = bounds.first and expr.max(bounds.first, first) or first end
    if last then bounds.stop = bounds.stop and expr.min(bounds.stop, last + 1) or last + 1 end
  end
  return bounds
end

local ends = { "begin", "lead", "opened", "finish" }

-- By row, the number of tiles that each end of a span would be. s: as rows have it, its query the first of a group; of
-- rows with ranges of their own, s.outer has the ends of what some query sees, and s.inner those of what all see.
local function tile_numbers(scores, group, s)
  local rows, numbers = group.keys.rows, { begin = {}, lead = {}, opened = {}, finish = {} }
  local last = s.query + (group.used - 1)
  local final = M.of_query(s, s.rows and expr.min(last, s.rows - 1) or last)
  local function add(name, number) table.insert(numbers[name], number) end
  for _, row in ipairs(scores.rows) do
    local outer, inner = row.by_row and s.outer, row.by_row and s.inner
    if row.first then
      add("begin", expr.div(row.first(outer or s), rows))
      add("lead", expr.ceil_div(row.first(inner or final), rows))
    end
    if row.last then
      add("opened", expr.div(row.last(inner or s) + 1, rows))
      add("finish", expr.ceil_div(row.last(outer or final) + 1, rows))
    end
  end
  return numbers
end

-- The tiles of keys of a group of queries:
--   begin, finish   some lane sees a key of the tiles begin .. finish - 1
--   clear, opened   all lanes see all keys of the tiles clear .. opened - 1
--   lead            `clear`, or with a row that rises the last one that all lanes see; a tile in any case
--   most            bounds of opened and finish
--   names           of those that functions are given
-- s: as rows have it, its query the first of the group. straight: no number of tiles may depend on what a run reads.
function M.span(scores, group, s, straight)
  local rows, tiles = group.keys.rows, group.keys.tiles
  local span = { begin = 0, lead = 0, opened = scores.cfg.seq_kv // rows, finish = tiles }
  local joined = { begin = "max", lead = "max", opened = "min", finish = "min" }
  local widest = { begin = "least", lead = "most", opened = "least", finish = "most" }
  local function numbers(which, query) return tile_numbers(scores, group, extreme(scores, which, query)) end
  local from, to = group.q0, group.q0 + (group.count - 1) * group.used
  if straight then from, to = s.query, s.query end
  local extremes = { least = numbers("least", from), most = numbers("most", to) }
  local run_time = straight and extremes.least or tile_numbers(scores, group, s)
  span.most = {}
  for _, name in ipairs(ends) do
    local join, limit = expr[joined[name]], span[name]
    local all, bounded, least, most = nil, false, limit, limit
    for i, number in ipairs(run_time[name]) do
      local least_i, most_i = extremes.least[name][i], extremes.most[name][i]
      if straight or least_i == most_i then number = extremes[widest[name]][name][i] end
      all = all and join(all, number) or number
      bounded = bounded or joined[name] == "max" and least_i >= limit or joined[name] == "min" and most_i <= limit
      least, most = join(least, least_i), join(most, most_i)
    end
    if least < 0 then -- the last key of some query lies before all keys
      all, least, most = expr.max(all, 0), 0, math.max(most, 0)
    end
    if all then span[name] = least == most and most or bounded and all or join(limit, all) end
    span.most[name] = most
  end
  span.clear = span.lead
  if scores.rises then span.lead = expr.max(span.clear, span.opened - 1) end
  span.names = scores.rises and scores.bounds.first and { "clear", table.unpack(ends) } or ends
  if scores.bounds.first then
    span.begin = expr.min(span.begin, tiles - 1)
    span.lead = expr.min(span.lead, expr.max(span.finish - 1, span.begin))
  end
  return span
end

-- Gives the numbers of a span names.
function M.name_span(span, t)
  for _, name in ipairs(span.names) do span[name] = t:int(name, span[name]) end
end

-- A span as parameters of a function, and in the function; what is known stays a number.
function M.add_span(params, span)
  for _, name in ipairs(span.names) do params[#params + 1] = { name, "int", span[name] } end
end

function M.own_span(values, span)
  local own = { most = span.most, names = span.names }
  for _, name in ipairs(span.names) do own[name] = expr.is_const(span[name]) and span[name] or values[name] end
  return own
end

-- The vector of an end of the interval, "first" or "last", for the lanes of vector c of a group. values: s of the first
-- query; values.ends has the ends of the ranges that rows have of their own, by lane.
function M.lane_bound(scores, t, group, which, c, values)
  local w, op, found = group.vecs[c].w, which == "last" and "min" or "max", 0
  local bound, bounded
  local function join(vector)
    found = found + 1
    bound = bound and t:op(op, w, ("%s%d_c%d"):format(which, found, c - 1), vector, bound) or vector
  end
  local function name(word) return ("%s_%s%d_c%d"):format(which, word, found, c - 1) end
  for _, row in ipairs(scores.rows) do
    if row[which] and row.by_row then
      join(t:op("load", w, name "own", values.ends[which]:at((c - 1) * group.lanes)))
      bounded = true
    elseif row[which] then
      local function key(lane)
        return row[which](M.of_query(values, values.query + (c - 1) * group.lanes + lane))
      end
      local rises = key(1) - key(0) == 1
      local vector = t:op("index", w, name "of", key(0))
      if rises then vector = t:op("add", w, name "lanes", t:op("iota", w, name "lane"), vector) end
      local rest = group.used - (c - 1) * group.lanes
      if rises and which == "first" and rest < w.lanes then -- lanes without a query see what the last one sees
        vector = t:op("min", w, name "used", t:op("index", w, name "final", key(rest - 1)), vector)
      end
      join(vector)
      bounded = bounded or not rises
    end
  end
  -- What does not rise with the query is a key.
  if not bounded then join(t:op("index", w, name "key", which == "last" and scores.cfg.seq_kv - 1 or 0)) end
  return bound
end

return M
