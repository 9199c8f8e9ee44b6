-- What operators of attention mean for gen/onnx/evaluate.lua: those of com.microsoft as ONNX Runtime computes them on a
-- CPU, and those of ai.onnx. They return the keys and values of the next run too.
--
--   rows    as gen/onnx/meanings.lua has them
--
-- Operators of com.microsoft add mask_filter_value to the scores of padding. With run.hides they hide it.

local indices = require "onnx.indices"
local meanings = require "onnx.meanings"
local values = require "onnx.values"

local steps_of = indices.steps_of
local broadcast_steps, copied = values.broadcast_steps, values.copied
local refuse, reshaped, value = values.refuse, values.reshaped, values.value

local rows = {}

local HIDDEN = -math.huge

-- ---- heads ----

-- [batch][rows][heads * width] as [batch][heads][rows][width]
local function by_head(run, x, heads)
  if #x.shape == 4 then return x end
  if not heads or #x.shape ~= 3 or x.shape[3] % heads ~= 0 then refuse("has no heads") end
  local parts = { x.shape[1], x.shape[2], heads, x.shape[3] // heads }
  return run:transposed(reshaped(x, parts), { 1, 3, 2, 4 })
end

local function side_by_side(run, x)
  local s = x.shape
  return reshaped(run:transposed(x, { 1, 3, 2, 4 }), { s[1], s[3], s[2] * s[4] })
end

-- Rows behind those of earlier runs.
local function behind(run, past, x)
  return past and meanings.rows.Concat(run, { attributes = { axis = 2 } }, past, x) or x
end

-- The numbers from 0 along one axis of four.
local function places(run, count, axis)
  local shape, list = { 1, 1, 1, 1 }, {}
  shape[axis] = count
  for i = 1, count do list[i] = i - 1 end
  return value(run.arrays.numbers(list), shape, true)
end

-- ---- scores ----

-- What is added to scores: a number where a condition holds.
local function where(run, condition, by, otherwise)
  return run:apply("where", condition, run:constant(by), run:constant(otherwise))
end

-- Hides keys that lie more than `right` behind a row or more than `left` before it; `first`: the place of the first
-- row, for all or [batch][1][1][1].
local function near(run, shape, first, left, right)
  local keys, row = places(run, shape[4], 4), run:apply("add", places(run, shape[3], 3), first)
  local hidden = run:apply("less", run:apply("add", row, run:constant(right)), keys)
  if left then hidden = run:apply("or", hidden, run:apply("less", keys, run:apply("sub", row, run:constant(left)))) end
  return where(run, hidden, HIDDEN, 0.0)
end

local function swapped(run, x) return run:transposed(x, { 1, 2, 4, 3 }) end

-- Softmax over keys; of a sink, a score for each head, no value is taken.
local function weights_of(run, scores, sink)
  if not sink then return run:softmax(scores, { [4] = true }) end
  local most = run:apply("max", run:reduced("max", scores, { [4] = true }), sink)
  local e = run:apply("exp", run:apply("sub", scores, most))
  local sum = run:apply("add", run:reduced("sum", e, { [4] = true }), run:apply("exp", run:apply("sub", sink, most)))
  return run:apply("div", e, sum)
end

-- how: { scale, softcap, sink, added = list }; returns heads, and scores by qk_matmul_output_mode.
local function attend(run, q, k, v, how)
  local b, h, count, width = table.unpack(q.shape)
  local h_kv, keys = k.shape[2], k.shape[3]
  if h % h_kv ~= 0 or v.shape[2] ~= h_kv then refuse("has heads that do not fit") end
  local function shared(x, first, last) return reshaped(x, { b, h_kv, h // h_kv, first, last }) end
  local function for_all(x) return reshaped(x, { b, h_kv, 1, x.shape[3], x.shape[4] }) end
  local scale = how.scale or 0
  local scores = reshaped(run:product(shared(q, count, width), for_all(swapped(run, k))), { b, h, count, keys })
  scores = run:apply("mul", scores, run:constant(scale ~= 0 and scale or width ^ -0.5))
  local steps = { scores }
  if (how.softcap or 0) > 0 then
    local cap = run:constant(how.softcap)
    scores = run:apply("mul", run:apply("tanh", run:apply("div", scores, cap)), cap)
  end
  steps[2] = scores
  for _, x in ipairs(how.added) do scores = run:apply("add", scores, x) end
  local weights = weights_of(run, scores, how.sink)
  steps[3], steps[4] = scores, weights
  local y = run:product(shared(weights, count, keys), for_all(v))
  return reshaped(y, { b, h, count, v.shape[4] }), steps
end

-- ---- com.microsoft ----

-- Padding as it is added: counts of keys of each sequence, perhaps with the first ones behind them; or flags.
local function padding_of(run, node, mask, shape)
  local filter = run.hides and HIDDEN or node.attributes.mask_filter_value or -1e4
  local b, count, total = shape[1], shape[3], shape[4]
  if #mask.shape == 1 then
    local function column(first)
      return run:moved(mask, { b, 1, 1, 1 }, { 1, 0, 0, 0 }, first)
    end
    local hidden = run:apply("less_equal", column(0), places(run, total, 4))
    if mask.shape[1] == 2 * b then
      hidden = run:apply("or", hidden, run:apply("less", places(run, total, 4), column(b)))
    end
    return where(run, hidden, filter, 0.0)
  end
  if #mask.shape > 3 then refuse("with a mask of %d axes", #mask.shape) end
  local seen = run:apply("less", run:constant(0), mask)
  return where(run, reshaped(seen, { b, 1, #mask.shape == 3 and count or 1, total }), 0.0, filter)
end

-- Scores with what Attention and MultiHeadAttention add to them; masks: { padding, bias }.
local function of_microsoft(run, node, q, heads, masks)
  local k, v = heads[1], heads[2]
  local shape, t = { q.shape[1], q.shape[2], q.shape[3], k.shape[3] }, node.attributes
  local added = { masks[2] }
  if masks[1] then added[#added + 1] = padding_of(run, node, masks[1], shape) end
  if (t.unidirectional or 0) ~= 0 then
    if heads.rows ~= shape[3] then refuse("unidirectional, with other rows of Q than of K") end
    added[#added + 1] = near(run, shape, run:constant(shape[4] - shape[3]), nil, 0)
  end
  return side_by_side(run, (attend(run, q, k, v, { scale = t.scale, added = added })))
end

-- Columns of [batch][rows][columns].
local function columns(run, x, first, count)
  local all = x.shape[3]
  return run:moved(x, { x.shape[1], x.shape[2], count }, { x.shape[2] * all, all, 1 }, first)
end

rows["com.microsoft Attention"] = function(run, node, x, w, bias, ...)
  local padding, past, added = ...
  local t = node.attributes
  if (t.do_rotary or 0) ~= 0 or (t.past_present_share_buffer or 0) ~= 0 then refuse("with rope or a shared buffer") end
  local lead = { x.shape[1], x.shape[2] }
  local y = run:product(reshaped(x, { lead[1] * lead[2], x.shape[3] }), w)
  if bias then y = run:apply("add", y, bias) end
  y = reshaped(y, { lead[1], lead[2], w.shape[2] })
  local all, first, made = w.shape[2] // 3, 0, {}
  local sizes = t.qkv_hidden_sizes or { all, all, all }
  for i, size in ipairs(sizes) do
    made[i] = by_head(run, columns(run, y, first, size), t.num_heads)
    first = first + size
  end
  local k, v = made[2], made[3]
  if past then
    local half, steps = copied(past.shape, 2), steps_of(past.shape)
    local function part(at) return run:moved(past, half, copied(steps, 2), at * steps[1]) end
    k, v = behind(run, part(0), k), behind(run, part(1), v)
  end
  local y = of_microsoft(run, node, made[1], { k, v, rows = lead[2] }, { padding, added })
  if not node.outputs[2] then return y end
  local one = copied(k.shape)
  table.insert(one, 1, 1)
  return y, meanings.rows.Concat(run, { attributes = { axis = 0 } }, reshaped(k, one), reshaped(v, one))
end

rows["com.microsoft MultiHeadAttention"] = function(run, node, q, k, v, ...)
  local bias, padding, added, past_k, past_v, _, indirection = ...
  local t, first, made = node.attributes, 0, { q, k, v }
  if not k or not v or #q.shape ~= 3 or indirection then refuse("of another form") end
  for i, x in ipairs(made) do
    local count = x.shape[3]
    if bias and #x.shape == 3 then x = run:apply("add", x, run:moved(bias, { count }, { 1 }, first)) end
    made[i], first = by_head(run, x, t.num_heads), first + count
  end
  k, v = behind(run, past_k, made[2]), behind(run, past_v, made[3])
  return of_microsoft(run, node, made[1], { k, v, rows = made[2].shape[3] }, { padding, added }), k, v
end

-- Pairs of the first columns of each row, turned: cos and sin are [batch][1][rows][pairs].
local function turned(run, x, cos, sin, interleaved)
  local pairs_of, shape, steps = cos.shape[4], x.shape, steps_of(x.shape)
  local size, step = interleaved and 2 or 1, copied(steps)
  local half = { shape[1], shape[2], shape[3], pairs_of }
  step[4] = size
  local other = interleaved and 1 or pairs_of
  local a, b = run:moved(x, half, step), run:moved(x, half, step, other)
  local made = run:moved(x, shape, steps)
  local function put(at, y) run.arrays.copy(half, made.at, at, step, y.at, 0, steps_of(y.shape)) end
  put(0, run:apply("sub", run:apply("mul", a, cos), run:apply("mul", b, sin)))
  put(other, run:apply("add", run:apply("mul", a, sin), run:apply("mul", b, cos)))
  return made
end

-- The rows of a table at places [batch][rows], as `turned` takes them.
local function at_places(run, of, at)
  local taken = meanings.rows.Gather(run, { attributes = { axis = 0 } }, of, at)
  return reshaped(taken, { at.shape[1], 1, at.shape[2], of.shape[2] })
end

-- Rows of each sequence behind as many of earlier runs as `past` says, [batch][heads][total][width].
local function appended(run, from, x, past, total)
  local b, h, count, width = table.unpack(x.shape)
  local to = value(run.arrays.numbers(b * h * total * width, 0.0), { b, h, total, width })
  local function put(of, entry, rows_of, first)
    local steps, own = steps_of(to.shape), steps_of(of.shape)
    if rows_of == 0 then return end
    run.arrays.copy({ h, rows_of, width }, to.at, entry * steps[1] + first * width, copied(steps, 2), of.at,
                    entry * own[1], copied(own, 2))
  end
  for entry = 0, b - 1 do
    local before = past[entry + 1]
    if before < 0 or before > (from and from.shape[3] or 0) then refuse("with fewer rows than are past") end
    if before > 0 then put(from, entry, before, 0) end
    put(x, entry, count, before)
  end
  return to
end

-- Q, K and V, which may be one.
local function three(run, node, q, k, v)
  local h, h_kv = node.attributes.num_heads, node.attributes.kv_num_heads
  if not k then
    local width = q.shape[3] // (h + 2 * h_kv)
    k, v = columns(run, q, h * width, h_kv * width), columns(run, q, (h + h_kv) * width, h_kv * width)
    q = columns(run, q, 0, h * width)
  end
  return by_head(run, q, h), by_head(run, k, h_kv), by_head(run, v, h_kv)
end

-- The rows of each sequence in earlier runs, by the place of its last one; none where these are all.
local function past_of(run, lengths, count, total)
  local past = run:ints(lengths)
  for i, last in ipairs(past) do past[i] = count == total and 0 or last + 1 - count end
  return past, math.max(table.unpack(past))
end

rows["com.microsoft GroupQueryAttention"] = function(run, node, q, k, v, ...)
  local past_k, past_v, lengths, total, cos, sin, positions, bias, sink = ...
  local t = node.attributes
  local window, interleaved = t.local_window_size or -1, (t.rotary_interleaved or 0) ~= 0
  if positions or select(10, ...) or select(11, ...) or not lengths or not total then refuse("of another form") end
  if window == 0 then refuse("with local_window_size = 0, where no key is seen") end
  q, k, v = three(run, node, q, k, v)
  local b, count = q.shape[1], q.shape[3]
  local past, most = past_of(run, lengths, count, run:ints(total)[1])
  local first = value(run.arrays.numbers(past), { b, 1, 1, 1 }, true)
  if (t.do_rotary or 0) ~= 0 then
    local at = run:apply("add", first, places(run, count, 3))
    at = reshaped(at, { b, count })
    local c, s = at_places(run, cos, at), at_places(run, sin, at)
    q, k = turned(run, q, c, s, interleaved), turned(run, k, c, s, interleaved)
  end
  k, v = appended(run, past_k, k, past, most + count), appended(run, past_v, v, past, most + count)
  local shape = { b, t.num_heads, count, most + count }
  local added = { near(run, shape, first, window > 0 and window - 1 or nil, 0), bias }
  sink = sink and reshaped(sink, { 1, t.num_heads, 1, 1 }) or t.smooth_softmax == 1 and run:constant(0.0) or nil
  local y = attend(run, q, k, v, { scale = t.scale, softcap = t.softcap, sink = sink, added = added })
  return side_by_side(run, y), k, v
end

-- ---- ai.onnx ----

-- A mask as it is added, for all keys: those that it lacks are hidden.
local function mask_of(run, mask, keys)
  local lead, own = copied(mask.shape, 1, #mask.shape - 1), mask.shape[#mask.shape]
  local added = mask.integer and where(run, mask, 0.0, HIDDEN) or mask
  if own == keys then return added end
  local missing = copied(lead)
  missing[#missing + 1] = keys - own
  local hidden = run:moved(run:constant(HIDDEN), missing, broadcast_steps({}, missing))
  return meanings.rows.Concat(run, { attributes = { axis = -1 } }, added, hidden)
end

rows.Attention = function(run, node, q, k, v, ...)
  local mask, past_k, past_v, lengths = ...
  local t, flat = node.attributes, #q.shape == 3
  q, k, v = by_head(run, q, t.q_num_heads), by_head(run, k, t.kv_num_heads), by_head(run, v, t.kv_num_heads)
  k, v = behind(run, past_k, k), behind(run, past_v, v)
  local shape = { q.shape[1], q.shape[2], q.shape[3], k.shape[3] }
  local left, right, added = t.left_window_size or -1, t.right_window_size or -1, {}
  local causal = (t.is_causal or 0) ~= 0
  if mask then added[1] = mask_of(run, mask, shape[4]) end
  if lengths and (causal or left >= 0 or right >= 0) then refuse("with lengths, and a window") end
  if lengths then
    local seen = run:apply("less", places(run, shape[4], 4), reshaped(lengths, { shape[1], 1, 1, 1 }))
    added[#added + 1] = where(run, seen, 0.0, HIDDEN)
  end
  if causal or left >= 0 or right >= 0 then
    local last = right >= 0 and right or shape[4]
    local first = run:constant(past_k and past_k.shape[3] or 0)
    added[#added + 1] = near(run, shape, first, left >= 0 and left or nil, causal and 0 or last)
  end
  local y, steps = attend(run, q, k, v, { scale = t.scale, softcap = t.softcap, added = added })
  return flat and side_by_side(run, y) or y, k, v, steps[(t.qk_matmul_output_mode or 0) + 1]
end

-- Columns of rows or of heads, turned at places, or by tables of each row.
local function rotary(run, x, tables, how)
  local heads = by_head(run, x, how.heads)
  local function table_of(of)
    if how.at then return at_places(run, of, how.at) end
    return reshaped(of, { of.shape[1], 1, of.shape[2], of.shape[3] })
  end
  local y = turned(run, heads, table_of(tables[1]), table_of(tables[2]), how.interleaved)
  return #x.shape == 3 and side_by_side(run, y) or y
end

rows.RotaryEmbedding = function(run, node, x, cos, sin, at)
  local t = node.attributes
  return rotary(run, x, { cos, sin }, { heads = t.num_heads, at = at, interleaved = (t.interleaved or 0) ~= 0 })
end

-- Places of each row, or the first one of all.
rows["com.microsoft RotaryEmbedding"] = function(run, node, x, at, ...)
  local cos, sin = ...
  local t, b, count = node.attributes, x.shape[1], x.shape[#x.shape - 1]
  if (t.is_packed_batching or 0) ~= 0 then refuse("of packed sequences") end
  if #at.shape < 2 then
    at = run:apply("add", places(run, count, 3), reshaped(at, { 1, 1, 1, 1 }))
    at = run:moved(at, { b, count }, { 0, 1 })
  end
  local heads = (t.num_heads or 0) ~= 0 and t.num_heads or x.shape[#x.shape] // (2 * cos.shape[2])
  return rotary(run, x, { cos, sin }, { heads = heads, at = at, interleaved = (t.interleaved or 0) ~= 0 })
end

return rows
