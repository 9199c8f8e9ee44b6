-- The context of a decode step: the weights of a query times V of a cache, for the heads that share V.
--
--   of_heads(K, step, ptrs)         the context of all heads
--   without_hidden(K, step, ptrs)   computes it again without hidden values, if a result is not finite
--   each_vector, put, inverse_of    the vectors of the context, how one is stored, and 1 over a sum of weights
--   lowest, hidden                  whether a mask hides a key

local epilogue = require "emit.epilogue"
local expr = require "base.expr"
local fetch = require "emit.fetch"
local gemm = require "emit.gemm"
local mask = require "emit.mask"
local product_of = require "emit.product"
local softmax = require "emit.softmax"
local types = require "machine.types"
local widening = require "emit.widening"
local words = require "emit.decode_words"

local M = {}

function M.lowest(t, w) return t:op("set", w, "lowest", types.LOWEST) end

-- Whether a mask hides the key with this bias.
function M.hidden(t, w, bias) return t:op("lt", w, "hidden", t:op("dup", w, "bias", bias), M.lowest(t, w)) end

-- While a tile multiplies its own values, it prefetches later ones. If rows are contiguous, it prefetches so many
-- numbers a step in the order of memory, otherwise its own columns of a later row.
local function fetch_rows(K, inner, tile, next)
  if tile.ahead then return words.fetch_ahead(K.t, inner, next, tile.ahead) end
  local b, bytes = inner.b, K.plan.cache.stored.bytes
  table.insert(b.moving, { p = next, k_stride = tile.row })
  function b.fetch(k) fetch(K.t, bytes, tile.panels.used, next:at(k * tile.row), "prefetch") end
end

-- Some rows of O += P V over `keys`, a literal or a run-time number. of: the tensor of V, if V has to be widened; next:
-- rows to prefetch.
local function context_tile(K, step, tile)
  local t, panels, run = K.t, tile.panels, tile.run
  local literal = expr.is_const(tile.keys)
  local params = { { "p", "in", tile.p }, { "v", "in", tile.v }, { "o", "out", tile.o },
                   { "keys", "int", not literal and tile.keys }, { "scales", "in", tile.scales },
                   { "next", "in", tile.next } }
  K:part(("step_context_%dx%d%s"):format(run.size, panels.used, literal and "_k" .. tile.keys or "") .. tile.name,
    ("%d row%s of the context of %d columns, added to what is there."):format(run.size, run.size > 1 and "s" or "",
      panels.used), params, function(p)
    local unroll, chains = 1, 1
    if literal then unroll, chains = K:summing(K.plan.attend.scheme, run.size, #panels.vecs, tile.keys) end
    local inner = {
      scheme = K.plan.attend.scheme, rows = run.size, vecs = panels.vecs,
      steps = literal and tile.keys, blocks = p.keys,
      unroll = unroll, chains = chains, a = { p = p.p, row = step.p_row, k_stride = 1 },
      b = { p = p.v, k_stride = tile.row, moving = {} }, init = gemm.from_zero(t),
    }
    if p.scales then inner.b.moving[1] = { p = p.scales, k_stride = 1 } end
    if tile.of then
      function inner.b.value(v, name, at, k)
        return widening.value(K, tile.of, v, name, at, p.scales and p.scales:at(k))
      end
    end
    if p.next then fetch_rows(K, inner, tile, p.next) end
    local target = { p = p.o, row = step.product.ld }
    epilogue.run(inner, gemm.tile(t, inner), { epilogue.add(t, target), epilogue.store(t, target) })
  end)
end

-- Copies rows of V, with zeros in place of those that a mask hides, which may be NaN. mask: its biases from the first
-- of these keys on.
local function seen_values(K, ptrs)
  local params = { { "v", "in", ptrs.v }, { "mask", "in", ptrs.mask }, { "seen", "out", ptrs.seen },
                   { "keys", "int", ptrs.keys }, { "scales", "in", ptrs.scales } }
  K:part("step_values", "Copies values, with zeros in place of those that a mask hides.", params, function(p)
    local t, w, values = K.t, K.plan.isa.full, K.plan.attend.values
    K:each("key", p.keys, function(i)
      t:scope(function()
        local out = M.hidden(t, w, p.mask:at(i))
        K:vectors("i", K.plan.attend.breadth, function(at, used)
          t:scope(function()
            local value = widening.value(K, values, { w = w, used = used }, "value", p.v:at(i * values.row + at),
              p.scales and p.scales:at(i))
            local seen = t:op("zero_if", w, "seen_value", out, value)
            t:op("store", w, nil, p.seen:at(i * ptrs.row + at), seen)
          end)
        end)
      end)
    end)
  end, "cold")
end

-- Multiplies the weights of a block of keys, from key `from` on, by the scales of V, in place, for all heads.
local function scale_weights(K, step, ptrs, from)
  local t, w = K.t, K.plan.isa.full
  K:each("head", K.plan.attend.share, function(h)
    K:vectors("i", step.block, function(at, used)
      t:scope(function()
        local place = ptrs.p:at(h * step.p_row + from + at)
        local weight = t:read("load", w, "weight", place, used)
        local scale = t:read("load", w, "scale", ptrs.scales:at(from + at), used)
        t:write(w, place, words.weight_of_row(t, w, "", weight, scale), used)
      end)
    end)
  end)
end

-- Whether the scales multiply the weights instead of V. Nothing else may read these weights then.
local function scales_weights(K, ptrs)
  return ptrs.v_scales and not (ptrs.probs or widening.rounds(K, K.plan.attend.values))
    and #K.plan.scores.hides == 0
end

-- The weights of a block of keys times V, for all heads. from: the first key; next: the key from which on V is
-- prefetched.
local function context_block(K, step, ptrs, from, keys, next)
  local values = K.plan.attend.values
  local tile = { v = ptrs.v:at(from * values.row), row = values.row, scales = ptrs.scales and ptrs.scales:at(from),
                 of = values.type and values, next = next and ptrs.v:at(next * values.row),
                 ahead = step.ahead and step.ahead.numbers, name = "" }
  if ptrs.mask then
    seen_values(K, { v = tile.v, seen = ptrs.seen, mask = ptrs.mask:at(from), keys = keys, scales = tile.scales,
                     row = step.seen_row })
    tile = { v = ptrs.seen, row = step.seen_row, name = values.type and "_seen" or "" }
  end
  local first = 0
  for _, run in ipairs(step.product.runs[1]) do
    K:each("tile", run.count, function(i)
      local row, before = i * run.size + run.at, (first + i) * step.product.panels
      product_of.each_panel(K, step.product, function(panels, j)
        local column = j * panels.width + panels.at
        local part = tile.ahead and (before + panels.first + j) * (tile.ahead * step.block) or column
        context_tile(K, step, setmetatable({
          run = run, panels = panels, keys = keys, p = ptrs.p:at(row * step.p_row + from),
          v = tile.v:at(column), next = tile.next and tile.next:at(part),
          o = ptrs.o:at(row * step.product.ld + column),
        }, { __index = tile }))
      end)
    end)
    first = first + run.count
  end
end

-- Records build(row, at, used, w) for the vectors of the context of all heads, or of head `only`; at: their first
-- column.
function M.each_vector(K, build, only)
  local w = K.plan.isa.full
  local function columns(h)
    K:vectors("i", K.plan.attend.breadth, function(at, used)
      K.t:scope(function() build(h, at, used, w) end)
    end)
  end
  if only then return columns(only) end
  K:each("head", K.plan.attend.share, columns)
end

-- Stores a vector of the context in p, as words where the output multiplies pairs.
function M.put(K, p, at, value, used)
  local context, t = K.plan.attend.context, K.t
  if not context.pairs then return t:write(value.w, p:at(at), value, used) end
  t:op(context.scheme.store_pairs, value.w, nil, p:at(expr.share(at, context.scheme.group)), value)
end

-- 1 over the sum of weights at `sums`, or zero if a mask hides all keys.
function M.inverse_of(K, w, sums)
  return softmax.inverse(K.t, w, "sum", K.t:op("load", w, "sum", sums), #K.plan.scores.hides > 0 and K.plan)
end

-- Records block(from, next) for each whole block of keys, from key `from` on, with values from key `next` on being
-- prefetched; then rest(from) for the remaining keys, if there are any.
local function each_block(K, step, p, block, rest)
  local t = K.t
  local blocks = K.plan.cfg.seq_kv >= step.block and t:int("blocks", expr.div(p.stop - p.first, step.block)) or 0
  K:each("block", blocks, function(b)
    block(p.first + b * step.block, step.ahead
      and t:int("next", p.first + expr.min(b + step.ahead.blocks, blocks - 1) * step.block))
  end)
  local from = t:int("from", p.first + blocks * step.block)
  t:when(from, p.stop, function() rest(from) end)
end

-- The weights times V for all keys, by integer products. A block is never shorter, so the last one begins earlier if
-- fewer keys are left in the cache.
local function by_integers(K, step, p)
  local t, last = K.t, K.plan.cfg.seq_kv - step.block
  each_block(K, step, p, function(from, next) words.context(K, step, p, t:int("at", from), next) end, function(from)
    words.context(K, step, p, t:int("last", expr.min(from, last)), nil, { from = from, stop = p.stop })
  end)
  words.in_order(K, step, p.o)
end

-- The same in floats; scaled: the weights are multiplied by the scales of V.
local function by_floats(K, step, p, scaled)
  local own = scaled and setmetatable({ scales = false }, { __index = p }) or p
  each_block(K, step, p, function(from, next)
    if scaled then scale_weights(K, step, p, from) end
    context_block(K, step, own, from, step.block, next)
  end, function(from) context_block(K, step, p, from, K.t:int("keys", p.stop - from)) end)
end

-- The context of all heads. With ptrs.test, that vector becomes nonzero (NaN) where a result is not finite. With
-- ptrs.mask, values that the mask hides are left out; ptrs.only: the number of the only head to compute.
function M.of_heads(K, step, ptrs)
  local t = K.t
  local integers = step.words
  local scaled = not integers and scales_weights(K, ptrs)
  local params = { { "v", "in", ptrs.v }, { "p", scaled and "out" or "in", ptrs.p },
                   { "sums", "in", ptrs.sums }, { "o", "out", ptrs.o },
                   { "out", "out", ptrs.out.p }, { "first", "int", ptrs.first }, { "stop", "int", ptrs.stop },
                   { "scales", "in", ptrs.v_scales } }
  for _, name in ipairs(integers and { "p_words", "p_scales" } or {}) do
    params[#params + 1] = { name, "out", ptrs.words[name] }
  end
  if integers and #K.plan.scores.hides > 0 then params[#params + 1] = { "biases", "in", ptrs.reads.mask } end
  for _, name in ipairs(integers and {} or { "seen", "test" }) do params[#params + 1] = { name, "out", ptrs[name] } end
  params[#params + 1] = { "mask", "in", ptrs.mask }
  params[#params + 1] = { "only", "int", ptrs.only }
  local name, doc, kind = "step_context", "The context of a query, for the heads that share values.", nil
  if ptrs.mask then
    name, doc, kind = "step_context_seen", "The same, without the values that a mask hides.", "cold"
  end
  K:part(name, doc, params, function(p)
    M.each_vector(K, function(h, at, _, w)
      t:op("store", w, nil, p.o:at(h * step.product.ld + at), t:op("zero", w, "zero"))
    end)
    if integers then by_integers(K, step, p) else by_floats(K, step, p, scaled) end
    local test = p.test and t:start("zero", K.plan.isa.full, "tested")
    M.each_vector(K, function(h, at, used, w)
      local inverse = M.inverse_of(K, w, p.sums:at(h * w.lanes))
      local value = t:op("load", w, "context", p.o:at(h * step.product.ld + at))
      local final = t:op("mul", w, "o_final", value, inverse)
      M.put(K, p.out:at(h * ptrs.out.head), at, final, used)
      if test then t:update(test, "fma", final, t:op("zero", w, "zero"), test) end -- 0 * inf is NaN
    end, p.only)
    if test then t:op("store", K.plan.isa.full, nil, p.test, test) end
  end, kind)
end

-- Computes the context again if it is not finite, without values that a mask hides.
function M.without_hidden(K, step, ptrs)
  local t, w = K.t, K.plan.isa.full
  local finite = t:op("lt", w, "finite", t:op("load", w, "tested", ptrs.test), t:op("set", w, "one", 1.0))
  local function masked(own) M.of_heads(K, step, setmetatable(own, { __index = ptrs })) end
  t:unless({ t:op("all", w, "good", finite) }, function()
    if not mask.by_head(K.plan) then return masked { mask = ptrs.reads.mask, test = false } end
    K:each("head", K.plan.attend.share, function(h)
      masked { mask = ptrs.reads.mask:at(h * mask.row_count(K.plan)), only = h, test = false }
    end)
  end)
end

return M
