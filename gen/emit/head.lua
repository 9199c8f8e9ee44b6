-- One head for one group of queries: scores, softmax and context over the tiles of keys that the group sees.

local begin = require "emit.begin"
local choices = require "base.choices"
local context = require "emit.context"
local exp = require "tape.exp"
local expr = require "base.expr"
local guard = require "emit.guard"
local score = require "score.init"
local score_tiles = require "emit.score_tiles"
local softmax = require "emit.softmax"
local stat = require "emit.stats".at
local statistics = require "emit.stats"
local stored = require "emit.stored"
local tiles = require "schedule.tiles"
local weights = require "emit.weights"

local M = {}

-- The mask of the lanes that see no key, where the interval of keys has an end; w, name, load: as statistics.each
-- passes them.
function M.blind(K, w, name, load)
  local t = K.t
  if #K.plan.scores.hides > 0 then
    return t:op("lt", w, "blind_" .. name, load "seen", t:op("set", w, "some_" .. name, 0.5))
  end
  local last = load "last"
  local first = K.plan.scores.bounds.first and load "first" or t:op("zero", w, "first_" .. name)
  return t:op("lt", w, "blind_" .. name, last, first)
end


-- Puts the initial values of score tiles, by the function of emit/begin.lua with this name.
local function put_begin(K, group, ptrs, by)
  K.t:scope(function()
    statistics.each(K, group, ptrs.stats, function(...) begin[by](K.t, K.plan, ...) end)
  end)
end

-- Finds m from the scores of all keys. head: span, and safe. On the safe path, the m of the first attempt is kept in
-- first_max. put_m(w, name, load, put, minus_m) stores the new m.
function M.raise(K, group, ptrs, head, put_m)
  local t, scores, scheme, span = K.t, K.plan.scores, K.plan.attend.scheme, head.span
  t:scope(function()
    statistics.each(K, group, ptrs.stats, function(w, name, load, put)
      begin.unknown(t, K.plan, w, name, put)
      local top = t:op("set", w, "none_" .. name, -math.huge)
      if scores.keyless and (scores.bounds.first or #scores.hides > 0) then
        -- The first attempt does not know yet which lanes see a key through a mask.
        local blind = (head.safe or #scores.hides == 0) and M.blind(K, w, name, load)
        local lowest = t:op("set", w, "lowest_" .. name, softmax.unseen(scheme))
        top = blind and t:op("sel", w, "start_" .. name, blind, lowest, top) or lowest
      end
      put("top", softmax.with_extras(t, w, name, { scores = scores, reads = ptrs.reads }, top))
      -- If m may rise, first_max has been put already.
      if head.safe and not group.keys.rises then put("first_max", load("negmax", "first_max")) end
    end)
  end)
  stored.top(K, group, ptrs, span)
  t:scope(function()
    statistics.each(K, group, ptrs.stats, function(w, name, load, put)
      local m = load "top"
      if scheme.b.round then m = weights.whole(t, w, "top_" .. name, m) end
      put_m(w, name, load, put, t:op("sub", w, "minus_m_" .. name, t:op("zero", w, "zero_" .. name), m))
    end)
  end)
end

-- The scores that the config returns (key `scores`), for the keys of a span. They are stored where weights go later.
function M.show(K, group, ptrs, span)
  local plan, rows, rest = K.plan, group.keys.rows, group.keys.rest
  local finish = plan.scores.masked and span.finish or plan.cfg.seq_kv // rows
  local function tile(i, rows_of)
    guard.tile(K, group, ptrs, { pass = softmax.passes.shown, key = i * rows, rows = rows_of,
                                 p_at = i * rows * group.width, edge = plan.scores.shown.bounded })
  end
  K:each("tile", finish - span.begin, function(i) tile(span.begin + i) end)
  if not plan.scores.masked and rest > 0 then tile(finish, rest) end
end

-- Adds the weights of scores that belong to no key, such as a sink, to a sum.
local function add_extras(K, ptrs, sum, stat)
  local t, scores, w = K.t, K.plan.scores, stat.w
  for i, row in ipairs(scores.extras) do
    local name = ("extra%d_"):format(i) .. stat.name
    local x = t:op("add", w, "x_" .. name, row.extra(t, w, name, ptrs.reads), stat.load("negmax", "minus_m"))
    local p = exp.exp2(t, "p_" .. name, x)
    if scores.keyless then
      p = t:op("zero_if", w, "seen_" .. name, M.blind(K, w, name, stat.load), p)
    end
    sum = t:op("add", w, "sum_" .. name, sum, p)
    stat.put("sum", sum)
  end
  return sum
end

local function invert_sums(K, group, ptrs)
  local t, stats = K.t, ptrs.stats
  t:scope(function()
    statistics.each(K, group, stats, function(w, name, load, put)
      local sum = add_extras(K, ptrs, load "sum", { w = w, name = name, load = load, put = put })
      put("inverse", softmax.inverse(t, w, name, sum, K.plan.scores.keyless and K.plan))
      put("test", t:op("zero", w, "test_zero_" .. name))
    end)
  end)
end

-- The tile of keys after tile `at`, or nil if that is the last one before `stop`. With a mask there always is such a
-- tile, although the run may not need it.
local function tile_behind(K, group, at, stop)
  local keys, masked, size = group.keys, K.plan.scores.masked, K.plan.isa.tile
  local behind = at + 1
  if masked then behind = expr.min(behind, keys.tiles - 1) end
  if behind == stop then return nil end
  local short = not masked and behind == keys.tiles - 1 and tiles.ceil_div(keys.rest, size) % (keys.rows // size) > 0
  return { key = behind * keys.rows, rows = short and keys.rest or keys.rows }
end

-- Whether the last tile of a run needs a function of its own, because the tile after it is missing or partial.
local function has_own_end(K, group, run, stop)
  if K.plan.scores.masked or not expr.is_const(run.to) or run.to - run.from < 1 then return false end
  local behind = tile_behind(K, group, run.to - 1, stop)
  return not behind or behind.rows < group.keys.rows
end

-- Records `build` for a first tile with a large m: its weights are infinite, because the product of m and the scale
-- loses digits.
local function unless_small(K, group, ptrs, build)
  local t, small = K.t, {}
  t:scope(function()
    statistics.each(K, group, ptrs.stats, function(w, name, load)
      small[#small + 1] = t:op("all", w, "are_small_" .. name, weights.is_small(t, w, name, load "negmax"))
    end)
    t:unless(small, build)
  end)
end

-- The first tile, which determines m. It is a tile that all lanes see, if there is one. If there is none, and the first
-- key differs between lanes, m comes from all tiles.
local function lead_tile(K, group, ptrs, head)
  local span = head.span
  local function first_tile(edge)
    local p_at = K.plan.whole_p and span.lead * (group.keys.words * group.width) or 0
    guard.tile(K, group, ptrs, { pass = softmax.passes.first, key = span.lead * group.keys.rows, p_at = p_at,
                                 edge = edge, next = ptrs.sums and tile_behind(K, group, span.lead, span.finish) })
  end
  local function known_tile(edge)
    put_begin(K, group, ptrs, "known")
    local at, behind = span.lead, span.lead + 1
    stored.block(K, group, ptrs, { from = at, start = at, bound = edge and at or behind, stop = behind, made = at,
                                   upto = 0, o_rows = 0 })
  end
  if head.safe then
    known_tile(K.plan.scores.masked)
    local is_alone = group.keys.tiles == 1 or not begin.from_maximum(K.plan)
    return is_alone or put_begin(K, group, ptrs, "next_attempt")
  end
  K.t:when(span.clear, span.opened, function() first_tile() end, function()
    if K.plan.scores.bounds.first then
      M.raise(K, group, ptrs, head, function(_, _, _, put, minus_m) put("negmax", minus_m) end)
      known_tile(true)
      local behind = ptrs.sums and tile_behind(K, group, span.lead, span.finish)
      if behind then guard.products(K, group, ptrs, behind.key, behind.rows) end
    else
      first_tile(true)
    end
  end)
  if K.plan.attend.scheme.powers and group.keys.rises then
    unless_small(K, group, ptrs, function() known_tile(K.plan.scores.masked) end)
  end
end

-- A block of keys, tiles `from` to stop - 1: the weights of those from `start` on, and the block's part of the context.
--   open, edge    whether it may have tiles that all lanes see, and tiles that only some see
--   first, last   whether it starts the context, and whether it finishes it
--   of            its part of the span, see parts_of
local function block(K, group, ptrs, head, part)
  local t, plan, span = K.t, K.plan, head.span
  local masked, probs, rows = plan.scores.masked, plan.whole_p, group.keys.rows
  local p_tile, from = group.keys.words * group.width, part.from
  local start, stop, bound = part.start, part.stop, part.start
  local all = stop == group.keys.tiles -- there are no keys after the last tile
  if part.open and not part.of.edge then
    bound = stop
  elseif part.open then
    bound = expr.max(start, (masked or all) and expr.min(span.opened, stop) or stop)
    if masked then bound = t:int("bound", bound) end
  end
  local own = setmetatable({
    bound = bound, made = probs and part.kept or from, upto = probs and part.upto or 0,
    o_rows = part.first and 0 or plan.attend.breadth,
    behind = function(at) return tile_behind(K, group, at, part.of.to) end,
    each = function(run, tile)
      local count, alone = run.to - run.from, ptrs.sums and has_own_end(K, group, run, part.of.to)
      K:each("tile", alone and count - 1 or count, tile)
      if alone then tile(count - 1) end
    end,
  }, { __index = part })
  local rises = head.safe or guard.always_rises(K, group)
  if rises and not head.safe then choices.add(t.why, "rises") end
  local rest = part.edge and all and guard.rest_rises(K, group) and stop -- on the safe path too, for the same bits
  if rest then own.stop, own.edge = bound, false end
  local none = group.keys.tiles == 1 or not (part.open or part.edge)
    or expr.is_const(start) and expr.is_const(own.stop) and start >= own.stop
  if not none then
    local record = rises and stored.block or group.keys.rises and guard.block or guard.each_tile
    record(K, group, ptrs, own)
  end
  if rest then
    choices.add(t.why, "rises")
    own.start, own.stop = bound, stop
    stored.block(K, group, ptrs, own)
  end
  if part.last then invert_sums(K, group, ptrs) end
  local tiles = stop - from
  local keys = not masked and all and plan.cfg.seq_kv - from * rows or tiles * rows
  local literal = expr.is_const(keys)
  guard.context(K, group, ptrs, {
    v_at = from * (group.keys.words * context.strides(plan).k_stride), p_at = probs and from * p_tile or 0,
    key = from * rows,
    steps = literal and keys or nil, tiles = not literal and tiles or nil,
    add = not part.first, final = part.last, filtered = masked and head.safe,
  })
end

-- The parts of a span in the order in which their tiles are taken: from the lead tile to the last one, then the tiles
-- before it. open, edge: as in `block`; lead: how many of the tiles are done already.
local function parts_of(scores, span, safe)
  local parts = { { from = span.lead, to = span.finish, lead = 1, open = true, edge = true } }
  local early = span.lead -- some lanes do not see all keys of the tiles before this
  if scores.rises then
    early = scores.bounds.first and expr.min(span.clear, span.lead) or span.begin
    parts[2] = { from = early, to = span.lead, lead = 0, open = true, edge = false }
  end
  if scores.bounds.first then parts[#parts + 1] = { from = span.begin, to = early, lead = 0, edge = true } end
  local last = parts[#parts]
  -- The last part is empty if the span is one tile. The first one stays even if no key is seen: it clears the context.
  if #parts > 1 and last.from == last.to then table.remove(parts) end
  for _, part in ipairs(scores.masked and safe and parts or {}) do part.open, part.edge = false, true end
  return parts
end

-- Whether a part of a span may have tiles that all lanes see, and tiles that only some see, behind those that are done.
local function kinds_of(span, part)
  local from = expr.is_const(part.from) and part.from + part.lead
  return part.open and not (from and span.most.opened <= from), part.edge and not (from and span.most.finish <= from)
end

-- All blocks of all parts. known: whether the number of blocks is known.
local function all_parts(K, group, ptrs, head, parts, known)
  local plan, span, most = K.plan, head.span, group.keys.block_tiles
  for n, part in ipairs(parts) do
    local open, edge = kinds_of(span, part)
    local kept, upto = part.from, n > 1 and span.finish or 0 -- tiles with weights, if those of all keys are kept
    if n > 1 and ptrs.sums then
      local function products() guard.products(K, group, ptrs, part.from * group.keys.rows, group.keys.rows) end
      if plan.scores.by_row then K.t:when(part.from, part.to, products) else products() end -- mostly it is empty
    end
    local count = plan.scores.bounded and 1 or tiles.ceil_div(part.to - part.from, most)
    local function known_block(b, is_last)
      local from = part.from + b * most
      block(K, group, ptrs, head, {
        from = from, start = b == 0 and from + part.lead or from, stop = is_last and part.to or from + most,
        of = part, open = open, edge = edge, first = b == 0 and n == 1, last = is_last and n == #parts, kept = kept,
        upto = upto,
        shared = not plan.scores.bounded and (#parts > 1 or group.keys.blocks > 1),
      })
    end
    for b = 0, known and count - 1 or -1 do -- the middle blocks become a loop
      local middle = b > 0 and b < count - 1
      if not middle or b == 1 then
        K:each("block", middle and count - 2 or 1, function(j) known_block(middle and j + 1 or b, b == count - 1) end)
      end
    end
    if not known then
      local blocks = expr.ceil_div(part.to - part.from, most)
      local function bounded(b)
        local from = part.from + b * most
        block(K, group, ptrs, head, {
          from = from, start = K.t:int("start", expr.max(from, part.from + part.lead)),
          stop = K.t:int("stop", expr.min(part.to, from + most)), of = part, open = open, edge = edge,
          kept = kept, upto = upto,
        })
      end
      if expr.is_const(blocks) then -- no loop, so names need a scope: the loops of the next part would see them
        K:each("block", blocks, function(b) K.t:scope(function() bounded(b) end) end)
      else
        K:each("block", blocks, bounded)
      end
    end
  end
end

-- The first part as the only block.
local function one_block(K, group, ptrs, head, part)
  local open, edge = kinds_of(head.span, part)
  block(K, group, ptrs, head, { from = part.from, start = part.from + part.lead, stop = part.to, of = part, open = open,
                                edge = edge, first = true, last = true, kept = part.from, upto = 0, shared = false })
end

-- Scores, softmax and context of one head. head: span, and safe. With safe, the maxima are in the statistics already,
-- and values of hidden keys are kept out of the products.
--
-- If the number of blocks is known, the last one divides by the sum at once. Else blocks are added to zeros, and a
-- final step divides. With ranges of keys that rows have of their own, one block is the usual case, of documents that
-- groups of queries begin with, and has code of its own.
function M.pass(K, group, ptrs, head)
  local plan, span, most = K.plan, head.span, group.keys.block_tiles
  local parts = parts_of(plan.scores, span, head.safe)
  local known = not plan.scores.bounded or span.most.finish <= most
  local alone = plan.scores.by_row and not head.safe and not K.full

  local function clear() return known or context.clear(K, group, ptrs.o, plan.attend.breadth) end
  if not alone then clear() end
  if guard.is_ahead(K, group) and not head.safe then
    local sums = K.t:buffer("sums", score_tiles.buffered(K).size(plan.isa, group.keys.rows, group.vecs))
    ptrs = setmetatable({ sums = sums }, { __index = ptrs })
    guard.products(K, group, ptrs, span.lead * group.keys.rows, group.keys.rows)
  end
  lead_tile(K, group, ptrs, head)
  if not head.safe and group.keys.rises then
    put_begin(K, group, ptrs, "next")
  end
  local function whole()
    if alone then clear() end
    all_parts(K, group, ptrs, head, parts, known)
    if known then return end
    invert_sums(K, group, ptrs)
    guard.context(K, group, ptrs, { v_at = 0, p_at = 0, steps = 0, add = true, final = true })
  end
  if not alone then return whole() end
  K.t:when(expr.max(span.lead - span.begin, span.finish - span.lead - most), 1,
    function() one_block(K, group, ptrs, head, parts[1]) end, whole)
end

return M
