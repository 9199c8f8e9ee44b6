-- Unit tests of what lies between a config and C text: ISA tables, tapes, whole tiny kernels. They
-- run by tests/unit/evaluate.lua, for every ISA, without a compiler.

local code = require "emit.code"
local config = require "options.config"
local evaluate = require "tests.unit.evaluate"
local expr = require "base.expr"
local isas = require "isa.init"
local legend = require "tape.legend"
local pack = require "plan.pack"
local qk_of = require "graph.qk"
local plan_of = require "plan.init"
local tape = require "tape.init"
local tasks = require "plan.tasks"
local walk = require "plan.walk"

local check, same -- of unit.lua

-- ---- definitions ----

local function isa_errors()
  local function try(change, message)
    local isa = {}
    for key, value in pairs(isas.list.scalar) do isa[key] = value end
    isa.name, isa.rows = "wrong", {}
    for name, row in pairs(isas.list.scalar.rows) do isa.rows[name] = row end
    change(isa)
    local ok, why = pcall(isas.define, isa)
    check(not ok and why:find(message, 1, true), ("define: got %s, want %s"):format(why, message))
  end
  try(function(isa) isa.rows.fmadd = "$1" end, "isa wrong: unknown op fmadd")
  try(function(isa) isa.rows.sub = nil end, "isa wrong: missing op sub")
  try(function(isa) isa.rows.sub = "$1 - $3" end, "isa wrong: op sub: operand $3 of 2")
  try(function(isa) isa.rows.store_n = { [1] = "$e4 = $2" } end, "isa wrong: op store_n: operand $4 of 3")
  try(function(isa) isa.rows.sub = 1 end, "isa wrong: op sub: not a text")
  try(function(isa) isa.registers = nil end, "isa wrong: missing registers")
end

-- ---- the evaluator itself ----

-- Products of tiles: C = 1 + A B, where all rows of A are 1 2 3 .. and all columns of B are 1 -1 1 -1 ..: in pairs, low
-- halves alone are 1 + 3 + .. + 31, so the sum is -16. What stands outside of the tiles is an error.
local function tiles()
  local function product(record)
    local t = tape.new(isas.list.amx)
    local params = {}
    for i, name in ipairs { "a", "b", "c" } do params[i] = { kind = "float *", name = name } end
    t:define({ name = "f", params = params, keep = true }, function()
      record(function(name, ...) t:op(name, isas.list.amx.full, nil, ...) end)
    end)
    local function pair(low, high)
      return (string.unpack("<f", string.pack("<f", low):sub(3) .. string.pack("<f", high):sub(3)))
    end
    local a = evaluate.buffer("a", 256, function(i) return pair(2.0 * (i % 16) + 1, 2.0 * (i % 16) + 2) end)
    local b = evaluate.buffer("b", 256, function() return pair(1.0, -1.0) end)
    local c = evaluate.buffer("c", 256, function() return 1.0 end)
    local ok, why = pcall(evaluate.new(t), "f", a, b, c)
    return ok and c.buffer or why
  end
  local function all(op, step)
    op "tiles_on"
    op("tile_load", "C01", tape.pointer "c", 16)
    op("tile_load", "A1", tape.pointer "a", step or 16)
    op("tile_load", "B0", tape.pointer "b", 16)
    op("tile_dot", "C01", "A1", "B0")
    op("tile_store", "C01", tape.pointer "c", 16)
  end
  local c = product(function(op)
    all(op)
    op "tiles_off"
  end)
  for i = 0, 255 do check(c[i] == -15.0, "word " .. i .. " of a product of tiles") end
  for message, record in pairs {
    ["has left tiles on"] = function(op) all(op) end,
    ["where there are no tiles"] = function(op) op("tile_zero", "C00") end,
    ["on already"] = function(op)
      op "tiles_on"
      op "tiles_on"
    end,
    ["at float 256 of a"] = function(op) all(op, 17) end,
  } do
    local why = product(record)
    check(type(why) == "string" and why:find(message, 1, true), ("tiles: got %s, want %s"):format(why, message))
  end
end

-- Records one function of the pointers p and q on a tape of `isa` and runs it on five floats each.
local function run(isa, build)
  local t = tape.new(isas.list[isa])
  local params = { { kind = "float *", name = "p" }, { kind = "float *", name = "q" } }
  t:define({ name = "f", params = params, keep = true }, function()
    build(t, isas.list[isa].full, tape.pointer("p"), tape.pointer("q"))
  end)
  local p = evaluate.buffer("p", 5, function(i) return i + 1.0 end)
  local q = evaluate.buffer("q", 5, function() return 0.0 end)
  local ok, why = pcall(evaluate.new(t), "f", p, q)
  return q.buffer, not ok and why or nil
end

-- A value may not have the name of a parameter: in C it would be its own initializer.
local function names()
  local ok, why = pcall(run, "scalar", function(t, w, p, q) t:op("store", w, nil, q, t:op("load", w, "p", p)) end)
  check(not ok and why == "f: a value has the name of the parameter p", "names: got " .. tostring(why))
end

local function evaluator()
  local function fails(message, build)
    local _, why = run("neon", build)
    check(why and why:find(message, 1, true), ("evaluate: got %s, want %s"):format(why, message))
  end
  local q, why = run("neon", function(t, w, p, to)
    local sum = t:start("zero", w, "sum")
    t:loop("i", 2, function(i) t:update(sum, "add", sum, t:op("load", w, "x", p:at(i))) end)
    t:op("store_n", w, nil, to:at(2), sum, 3)
  end)
  same(why, nil, "evaluate")
  same(table.concat(q, " ", 0, 4), "0.0 0.0 3.0 5.0 7.0", "evaluate")
  fails("load at float 5 of p, which has 5", function(t, w, p, to)
    t:op("store", w, nil, to, t:op("load", w, "x", p:at(2)))
  end)
  fails("load_n at float 5 of p", function(t, w, p, to)
    t:op("store", w, nil, to, t:op("load_n", w, "x", p:at(3), 3))
  end)
  fails("dup at float 5 of p", function(t, w, p, to)
    t:op("store", w, nil, to, t:op("dup", w, "x", p:at(5)))
  end)
  fails("store at float 5 of q", function(t, w, p, to)
    t:op("store", w, nil, to:at(2), t:op("load", w, "x", p))
  end)
  fails("store_n at float -1 of q", function(t, w, _, to)
    t:op("store_n", w, nil, to:at(-1), t:op("zero", w, "x"), 1)
  end)
  fails("x is defined twice", function(t, w, p)
    for i = 0, 1 do t:op("store", w, nil, p, t:op("load", w, "x", p:at(i))) end
  end)
  fails("no x here", function(t, w, p)
    local x
    t:scope(function() x = t:op("load", w, "x", p) end)
    t:op("store", w, nil, p, x)
  end)
end

-- ---- a kernel ----

-- The same numbers everywhere, in [-1, 1), exact in float32.
-- A function that is for no one use is found again by one that is.
local function shared()
  local t = tape.new(isas.list.scalar)
  local function define(name, role)
    return t:define({ name = name, doc = name, role = role, params = { { kind = "float *", name = "p" } } }, function()
      t:op("store", isas.list.scalar.full, nil, tape.pointer("p"), t:op("zero", isas.list.scalar.full, "zero"))
    end)
  end
  local first = define("output_1x1")
  same(define("keys_1x1", "keys"), first, "an equal function")
  same(first.name, "output_1x1", "its name")
  same(define("values_1x1", "values"), first, "an equal function")
end

local function randoms(seed)
  local state = seed
  return function()
    state = (state * 1103515245 + 12345) & 0x7FFFFFFF
    return (state >> 8) / 2.0 ^ 22 - 1.0
  end
end


local function float32(x) return (string.unpack("<f", string.pack("<f", x))) end

-- The integers and the scale of some weights that share one, lists from 0; see mhagen.h.
local function quantized(bits, numbers)
  local largest, integers = 0.0, {}
  for i = 0, #numbers do
    if math.abs(numbers[i]) > math.abs(largest) then largest = numbers[i] end
  end
  local scale = float32(bits == 8 and math.abs(largest) / 127 or largest / -8)
  local least, most = bits == 8 and -127 or -8, bits == 8 and 127 or 7
  for i = 0, #numbers do
    local x = scale ~= 0 and numbers[i] / scale + 0x1.8p52 - 0x1.8p52 or 0.0
    integers[i] = math.tointeger(math.max(least, math.min(most, x)))
  end
  return integers, scale
end

local function even(x) return math.tointeger(x + 0x1.8p52 - 0x1.8p52) end

-- The 16 bits of the nearest number of a type, and that number, of a float32 that is finite there.
local shorts = {
  bf16 = function(x)
    local bits = string.unpack("<I4", string.pack("<f", x))
    bits = bits + 0x7FFF + (bits >> 16 & 1) >> 16
    return bits, string.unpack("<f", string.pack("<I4", bits << 16))
  end,
  f16 = function(x)
    local size, sign = math.abs(x), x < 0 and 0x8000 or 0
    local exponent = math.max((string.unpack("<I4", string.pack("<f", size)) >> 23) - 127, -14)
    local steps = even(size * 2.0 ^ (10 - exponent))
    local bits = steps + (exponent + 14 << 10)
    return sign | bits, (x < 0 and -1 or 1) * steps * 2.0 ^ (exponent - 10)
  end,
}

-- A matrix [in][out] of weights as a kernel has them.
local function dequantized(quant, rows, columns, weights)
  local group = quant.group or rows
  local out = evaluate.buffer("dequantized", rows * columns, function() return 0.0 end)
  for i = 0, quant.type and rows * columns - 1 or -1 do
    out.buffer[i] = select(2, shorts[quant.type.name](weights.buffer[i]))
  end
  if quant.type then return out end
  for first = 0, rows - 1, group do
    for c = 0, columns - 1 do
      local numbers = {}
      for i = first, math.min(first + group, rows) - 1 do numbers[i - first] = weights.buffer[i * columns + c] end
      local integers, scale = quantized(quant.bits, numbers)
      for i = 0, #integers do out.buffer[(first + i) * columns + c] = integers[i] * scale end
    end
  end
  return out
end

-- What mhagen_pack of the runtime does, for weights as MHAGEN_IN_OUT has them. Words of quants are integers.
local function pack_weights(list, weights, packed)
  local columns = {}
  for _, of in ipairs(list.matrices) do columns[of.matrix.name] = of.columns end
  local function element(name, flipped, row, column)
    if flipped then row, column = column, row end
    return weights[name].buffer[row * columns[name] + column]
  end
  local function value(term, moved, k, c)
    local row, column = (term.row or 0) + moved.row + k, (term.column or 0) + moved.column + c
    if not term.b then return (term.sign or 1) * element(term.a, term.a_flipped, row, column) end
    local sum, first = 0.0, (term.first or 0) + moved.first
    for i = first, first + term.inner - 1 do
      sum = sum + element(term.a, term.a_flipped, row, i) * element(term.b, term.b_flipped, i, column)
    end
    return sum
  end
  local function element_of(fill, moved, k, c)
    local sum = 0.0
    for _, term in ipairs(c < fill.used and fill.terms or {}) do sum = sum + value(term, moved, k, c) end
    return sum
  end
  local function quants(fill, moved)
    local quant = fill.quant
    local to, in_word, group = fill.to + moved.to, 32 // quant.bits, quant.group or fill.steps
    local interleave = list.interleave
    local words = -(-fill.steps // (in_word * interleave)) * interleave
    for row = 0, words + (quant.beside and -(-fill.steps // group) or 0) - 1 do
      for c = 0, fill.width - 1 do packed.buffer[to + row * fill.width + c] = 0 end
    end
    for first = 0, fill.steps - 1, group do
      local beside = quant.beside and first // group or 0
      local scales = (quant.beside and math.min((first + group) // in_word, words) or words) + first // group
      for c = 0, fill.width - 1 do
        local numbers = {}
        for k = first, math.min(first + group, fill.steps) - 1 do numbers[k - first] = element_of(fill, moved, k, c) end
        local integers, scale = quantized(quant.bits, numbers)
        packed.buffer[to + scales * fill.width + c] = float32(fill.scale * scale)
        local sum = 0
        for i = 0, #integers do
          local k = first + i
          sum = sum + integers[i]
          local row, bit = k // in_word + beside, k % in_word * quant.bits
          if quant.bytes then bit = k % 4 * 8 + k % 8 // 4 * 4 end
          local at = to + row // interleave * interleave * fill.width + c * interleave + row % interleave
          local part = (integers[i] & (1 << quant.bits) - 1) << bit
          packed.buffer[at] = packed.buffer[at] | part
        end
        if quant.sums then packed.buffer[to + (words + 1) * fill.width + c] = -128 * sum end
      end
    end
  end
  local function pairs_of(fill, moved)
    local to, deinterleave = fill.to + moved.to, list.deinterleave
    for row = 0, -(-fill.steps // 2) - 1 do
      for c = 0, fill.width - 1 do packed.buffer[to + row * fill.width + c] = 0 end
    end
    for k = 0, fill.steps - 1 do
      for c = 0, fill.width - 1 do
        local at = deinterleave > 0 and (2 * (c // deinterleave) + k % 2) * deinterleave + c % deinterleave
          or 2 * c + k % 2
        local word = to + k // 2 * fill.width + at // 2
        local bits = shorts[list.f16 and "f16" or "bf16"](float32(element_of(fill, moved, k, c)))
        packed.buffer[word] = packed.buffer[word] | bits << at % 2 * 16
      end
    end
  end
  local function panel(fill, moved)
    for k = 0, fill.steps - 1 do
      for c = 0, fill.width - 1 do
        local at = fill.to + moved.to + k * fill.width + c
        if packed.buffer[at] == nil then error("packs outside of its buffer") end
        packed.buffer[at] = float32(fill.scale * element_of(fill, moved, k, c))
      end
    end
  end
  local function rounds(fill, write, i, moved)
    local round = fill.rounds[i]
    if not round then return write(fill, moved) end
    for n = 0, round.count - 1 do
      local at = {}
      for what, by in pairs(moved) do at[what] = by + n * (round[what] or 0) end
      rounds(fill, write, i + 1, at)
    end
  end
  for name, write in pairs { fills = panel, pairs = pairs_of, quants = quants, value_quants = quants } do
    for _, fill in ipairs(list.lists[name]) do rounds(fill, write, 1, { to = 0, row = 0, column = 0, first = 0 }) end
  end
end

-- Turns a head's columns, each a list of all rows; place: that of row 0, as the tables count.
local function turn(cfg, w, columns, rows, place)
  local pairs = cfg.rope_dims // 2
  for i = 0, cfg.rope == "none" and -1 or pairs - 1 do
    local first, second = i, i + pairs
    if cfg.rope == "interleaved" then first, second = 2 * i, 2 * i + 1 end
    for r = 0, rows - 1 do
      local at = (place + r) * pairs + i
      local cosine, sine = w.rope_cos.buffer[at], w.rope_sin.buffer[at]
      local x, y = columns[first][r], columns[second][r]
      columns[first][r], columns[second][r] = x * cosine - y * sine, y * cosine + x * sine
    end
  end
end

-- The norm of columns, each a list of all rows; first: the place of their gains.
local function norm(cfg, gains, first, columns, rows)
  local n = #columns + 1
  for r = 0, rows - 1 do
    local mean, squares = 0.0, 0.0
    for i = 0, cfg.qk_norm == "layer" and n - 1 or -1 do mean = mean + columns[i][r] / n end
    for i = 0, n - 1 do squares = squares + (columns[i][r] - mean) ^ 2 end
    local length = cfg.qk_norm == "l2" and math.max(math.sqrt(squares), cfg.norm_eps)
      or math.sqrt(squares / n + cfg.norm_eps)
    for i = 0, n - 1 do columns[i][r] = (columns[i][r] - mean) / length * gains.buffer[first + i] end
  end
end

-- One batch entry in double, straight from the formulas: y and probs[head], rows as lists from 0. given: with rope_at =
-- run, what `turn` takes in the place of weights for Q and K, and their first rows there.
local function reference(cfg, w, q, k, v, seen, given)
  local function project(x, rows, width, matrix, bias, columns, column, from)
    local out = {}
    for r = 0, rows - 1 do
      local sum = bias.buffer[column]
      for i = 0, width - 1 do
        sum = sum + x.buffer[from + r * width + i] * matrix.buffer[i * columns + column]
      end
      out[r] = sum
    end
    return out
  end
  local y, probs = {}, {}
  for r = 0, cfg.seq - 1 do
    y[r] = {}
    for c = 0, cfg.y_width - 1 do y[r][c] = w.bo.buffer[c] end
  end
  for head = 0, cfg.h - 1 do
    local Q, K, V = {}, {}, {}
    local shared = head // (cfg.h // cfg.h_kv)
    for i = 0, cfg.dk - 1 do
      Q[i] = project(q, cfg.seq, cfg.d_model, w.wq, w.bq, cfg.h * cfg.dk, head * cfg.dk + i, q.off)
      K[i] = project(k, cfg.seq_kv, cfg.k_width, w.wk, w.bk, cfg.h_kv * cfg.dk, shared * cfg.dk + i, k.off)
    end
    if cfg.qk_norm ~= "none" then -- of one head: norms of all heads are the checker's
      local own = cfg.norm_span == "each" and cfg.dk or 0
      norm(cfg, w.q_norm, head * own, Q, cfg.seq)
      norm(cfg, w.k_norm, shared * own, K, cfg.seq_kv)
    end
    local offset = cfg.causal_align == "bottom_right" and cfg.seq_kv - cfg.seq or 0
    turn(cfg, given and given.q or w, Q, cfg.seq, given and given.q.first or math.max(0, offset))
    turn(cfg, given and given.k or w, K, cfg.seq_kv, given and given.k.first or math.max(0, -offset))
    for i = 0, cfg.dv - 1 do
      V[i] = project(v, cfg.seq_kv, cfg.v_width, w.wv, w.bv, cfg.h_kv * cfg.dv, shared * cfg.dv + i, v.off)
    end
    probs[head] = {}
    for r = 0, cfg.seq - 1 do
      local keys = cfg.causal and math.min(seen, r + 1) or seen
      local p, sum = {}, 0.0
      for c = 0, cfg.seq_kv - 1 do
        local score = 0.0
        for i = 0, cfg.dk - 1 do score = score + Q[i][r] * K[i][c] end
        p[c] = c < keys and math.exp(score / math.sqrt(cfg.dk)) or 0.0
        sum = sum + p[c]
      end
      for c = 0, keys - 1 do p[c] = p[c] / sum end
      probs[head][r] = p
      for i = 0, cfg.dv - 1 do
        local o = 0.0
        for c = 0, keys - 1 do o = o + p[c] * V[i][c] end
        for c = 0, cfg.y_width - 1 do
          y[r][c] = y[r][c] + o * w.wo.buffer[(head * cfg.dv + i) * cfg.y_width + c]
        end
      end
    end
  end
  return y, probs
end

-- What decides the numbers of a kernel, as a text: what it does, and how its weights are packed.
local function content_of(kernels, list, plan)
  local out = { tostring(kernels.isa.fused), tostring(plan.packed.total) }
  local function say(what)
    if type(what) ~= "table" then
      out[#out + 1] = tostring(what)
      return
    end
    for key, value in pairs(what) do
      out[#out + 1] = tostring(key)
      say(value)
    end
    out[#out + 1] = ";"
  end
  for _, fn in ipairs(kernels.functions) do out[#out + 1] = fn.name .. fn.content end
  say { list.lists, list.matrices, list.interleave or false }
  return table.concat(out, "\n")
end

local ran = {} -- contents of kernels

local function kernel_of(text, kv_len)
  local words = {}
  for word in text:gmatch("%S+") do words[#words + 1] = word end
  local cfg = config.load(nil, words)
  local plan = plan_of.build(cfg)
  local kernels = tape.new(plan.isa)
  local K = code.new(kernels, plan)
  local phases, coarse = tasks.record(K, walk.record(K))

  same(legend.unexplained(kernels.functions), nil, text .. ": a name that the legend lacks")

  local random = randoms(#text:match "^(.*) isa=") -- the same for all
  local function input(name, size)
    local p = evaluate.buffer(name, size, random)
    p.buffer.constant = true
    return p
  end
  local function fresh(name, size)
    return evaluate.buffer(name, size, function() return 0.0 / 0.0 end)
  end
  local list = pack.list(plan)
  local content = content_of(kernels, list, plan)
  if ran[content] then return end -- ISAs that differ in types alone record the same of float32
  ran[content] = true

  local d = cfg.d_model
  local weights = { layout = 0 }
  for _, of in ipairs(list.matrices) do weights[of.matrix.name] = input(of.matrix.name, of.rows * of.columns) end
  local packed = evaluate.buffer("packed", plan.packed.total, function() return 0.0 end)
  local quant = plan.weights.quant
  pack_weights(list, weights, packed)
  packed.buffer.constant = true
  for _, of in ipairs(quant and list.matrices or {}) do
    local name, own = of.matrix.name, of.matrix.projects == "v" and plan.value_weights.quant or quant
    if of.matrix.required then weights[name] = dequantized(own, of.rows, of.columns, weights[name]) end
  end

  local function arguments()
    return {
      y = fresh("y", cfg.batch * cfg.seq * cfg.y_width), workspace = fresh("workspace", plan.workspace),
      probs = fresh("probs", cfg.probs and cfg.batch * cfg.h * cfg.seq * cfg.seq_kv or 0),
    }
  end
  local args = arguments()
  args.packed, args.kv_len = packed, kv_len
  args.q = input("q", cfg.batch * cfg.seq * d)
  local cross = cfg.attention == "cross"
  args.k = cross and input("k", cfg.batch * cfg.seq_kv * cfg.k_width) or args.q
  args.v = cross and input("v", cfg.batch * cfg.seq_kv * cfg.v_width) or args.q
  local own = { "packed", "kv_len", "q", "k", "v" }
  for _, angles in ipairs(qk_of.angles(cfg)) do
    own[#own + 1] = angles.name
    args[angles.name] = input(angles.name, cfg.batch * angles.rows * cfg.rope_dims // 2)
  end
  local function angles_of(prefix, b, rows)
    if not args[prefix .. "rope_cos"] then prefix = "" end
    return { rope_cos = args[prefix .. "rope_cos"], rope_sin = args[prefix .. "rope_sin"], first = b * rows }
  end
  local evaluated = evaluate.new(kernels)
  evaluated("run_all", args)

  -- The same by tasks of both lists, in another order.
  for _, list_of in ipairs { phases, coarse } do
    local other = arguments()
    for _, key in ipairs(own) do other[key] = args[key] end
    for _, phase in ipairs(list_of) do
      for i = cfg.batch * phase.per_entry - 1, 0, -1 do evaluated("task_" .. phase.name, other, i) end
    end
    for _, name in ipairs { "y", "probs" } do
      for i = 0, args[name].buffer.size - 1 do
        if args[name].buffer[i] ~= other[name].buffer[i] then
          return check(false, ("%s: %s[%d] differs by tasks"):format(text, name, i))
        end
      end
    end
  end

  local worst = 0.0
  local function compare(got, want)
    local error = math.abs(got - want)
    if not (error <= worst) then worst = error end
  end
  for b = 0, cfg.batch - 1 do
    local function entry(p, floats) return { buffer = p.buffer, off = b * floats } end
    local y, probs = reference(cfg, weights, entry(args.q, cfg.seq * d),
      entry(args.k, cfg.seq_kv * cfg.k_width), entry(args.v, cfg.seq_kv * cfg.v_width),
      kv_len and kv_len[b] or cfg.seq_kv,
      args.rope_cos and { q = angles_of("", b, cfg.seq), k = angles_of("k_", b, cfg.seq_kv) })
    for r = 0, cfg.seq - 1 do
      for c = 0, cfg.y_width - 1 do compare(args.y.buffer[(b * cfg.seq + r) * cfg.y_width + c], y[r][c]) end
      for head = 0, cfg.probs and cfg.h - 1 or -1 do
        for c = 0, cfg.seq_kv - 1 do
          compare(args.probs.buffer[((b * cfg.h + head) * cfg.seq + r) * cfg.seq_kv + c], probs[head][r][c])
        end
      end
    end
  end
  check(worst <= (plan.scheme.quant and 0.15 or 1e-5), ("%s: error %g"):format(text, worst))
end

local function kernels(takes)
  for isa_at, isa in ipairs(isas.list) do
    local shares = isa.rows.prefetch_far and " fetch=shares" or ""
    local fetching, ahead = isa.rows.prefetch and " fetch=panels" or "", isa.rows.prefetch and " fetch=ahead" or ""
    for case_at, case in ipairs {
      { "h=2 d_model=37 dk=33 seq=7 kv_vectors=1 out_vectors=1 kv_rows=3 fold=off" .. fetching },
      { "h=1 d_model=37 dk=2 seq=3 qkv=separate q_lanes=columns fold=off unroll=full" .. fetching },
      { "h=4 h_kv=2 d_model=40 dk=20 seq=5 k_block=16 batch=2 kv_len=true" .. fetching, { [0] = 4, 3 } },
      { "h=2 d_model=37 dk=3 seq=23 kv_rows=1 kv_len=true qkv=separate fold=off" .. shares, { [0] = 13 } },
      { "h=2 d_model=5 dk=3 seq=6" },
      { "h=1 d_model=4 dk=2 dv=3 seq=3 seq_kv=7 attention=cross probs=true" },
      { "h=2 d_model=3 dk=2 seq=9 causal=true probs=true unroll=tile" },
      { "h=1 d_model=3 dk=2 seq=5 batch=2 kv_len=true causal=true", { [0] = 3, 0 } },
      { "h=2 d_model=3 dk=2 seq=3 unroll=k batch=2 probs=true kv_len=true", { [0] = 2, 3 } },
      { "h=1 d_model=2 dk=2 seq=3 causal=true unroll=full" },
      { "h=2 d_model=3 dk=4 seq=9" }, -- merged
      { "h=2 d_model=18 dk=40 seq=3 q_lanes=columns" },
      { "h=3 d_model=5 dk=3 seq=6 q_lanes=columns causal=true" },
      { "h=2 d_model=5 dk=3 seq=6 qkv=joint causal=true" },
      { "h=4 h_kv=2 d_model=5 dk=3 dv=2 seq=6 qkv=joint q_lanes=queries probs=true" },
      { "h=6 h_kv=2 d_model=5 dk=3 seq=3 head_block=3 qkv=joint q_lanes=columns fold=off" },
      { "h=3 d_model=3 dk=2 seq=9 batch=2 qkv=joint q_lanes=columns causal=true unroll=tile" },
      { "h=1 d_model=4 dk=3 seq=5 qkv=joint causal=true unroll=full" },
      { "h=2 d_model=40 dk=16 seq=1 seq_kv=9 attention=cross" }, -- absorbed
      { "h=2 d_model=3 dk=4 seq=9 fold=off" },
      { "h=4 h_kv=2 d_model=5 dk=3 dv=2 seq=6 probs=true causal=true" },
      { "h=6 h_kv=2 d_model=5 dk=3 seq=3 head_block=3 q_lanes=columns" },
      { "h=6 h_kv=1 d_model=4 dk=2 seq=5 unroll=full" },
      { "h=2 d_model=5 dk=3 seq=6 seq_kv=4 attention=cross k_width=7 v_width=2 y_width=9 batch=2 kv_len=true",
        { [0] = 3, 4 } },
      { "h=2 d_model=3 dk=4 seq=9 attention=cross k_width=5 v_width=4 y_width=2" },
      { "h=4 h_kv=2 d_model=40 dk=16 seq=1 seq_kv=9 attention=cross" }, -- absorbed, heads share the matrices
      { "h=1 d_model=3 dk=2 seq=5 batch=2 kv_len=true fold=off", { [0] = 3, 0 } },
      { "h=2 d_model=5 dk=3 seq=6 qk_norm=rms" },
      { "h=2 d_model=5 dk=20 seq=19 rope=half rope_at=run batch=2" },
      { "h=2 d_model=5 dk=36 seq=5 seq_kv=7 attention=cross rope=interleaved rope_at=run batch=2" },
      { "h=1 d_model=3 dk=8 seq=5 rope=interleaved rope_dims=6 rope_at=run unroll=full" },
      { "h=4 h_kv=2 d_model=5 dk=6 seq=19 qk_norm=layer rope=half rope_dims=4 kv_len=true", { [0] = 17 } },
      { "h=1 d_model=3 dk=20 seq=5 qk_norm=l2 rope=interleaved norm_eps=0.5 unroll=full" },
      { "h=4 h_kv=2 d_model=3 dk=3 seq=5 qk_norm=rms norm_span=each head_block=2" },
      { "h=1 d_model=3 dk=8 seq=5 qk_norm=layer norm_span=all q_lanes=columns unroll=tile" },
      { "h=2 d_model=5 dk=6 seq=6 rope=half" },
      { "h=4 h_kv=2 d_model=5 dk=7 dv=2 seq=6 rope=interleaved rope_dims=6 q_lanes=columns unroll=tile" },
      { "h=1 d_model=2 dk=2 seq=3 rope=interleaved unroll=full" },
      { "h=2 d_model=3 dk=20 seq=3 seq_kv=5 attention=cross rope=half causal_align=bottom_right" },
      { "h=2 d_model=3 dk=4 seq=5 seq_kv=3 attention=cross rope=half rope_dims=2 causal_align=bottom_right kv_len=true",
        { [0] = 2 } },
      { "h=2 d_model=11 dk=5 seq=3 weight_dtype=int8 fold=off" },
      { "h=4 h_kv=2 d_model=35 dk=3 seq=5 weight_dtype=int8 k_block=16 unroll=tile kv_len=true", { [0] = 4 } },
      { "h=1 d_model=9 dk=7 seq=2 weight_dtype=int4 group=8 unroll=full fold=off" },
      { "h=3 d_model=37 dk=11 seq=6 seq_kv=4 attention=cross weight_dtype=int4 fold=off probs=true" },
      { "h=2 d_model=70 dk=9 seq=3 weight_dtype=int4 group=24 k_block=16 unroll=k fold=off" .. ahead },
      { "h=2 h_kv=1 d_model=70 dk=9 seq=3 weight_dtype=int4 value_weight_dtype=int8 k_block=16 fold=off" },
      { "h=2 h_kv=1 d_model=70 dk=9 seq=3 weight_dtype=int8 group=24 k_block=16 fold=off" },
      { "h=2 d_model=38 dk=5 seq=3 dtype=int8 weight_dtype=int8 group=16" },
      { "h=4 h_kv=2 d_model=37 dk=5 seq=3 dtype=int8 weight_dtype=int8 group=8 q_lanes=columns unroll=tile" },
      { "h=2 d_model=38 dk=5 seq=3 dtype=int8 weight_dtype=int4 group=16" },
      { "h=2 h_kv=1 d_model=37 dk=9 seq=3 weight_dtype=bf16 k_block=16 kv_len=true", { [0] = 2 } },
      { "h=2 h_kv=1 d_model=37 dk=9 seq=3 weight_dtype=f16 k_block=16 unroll=tile" .. ahead },
      { "h=1 d_model=3 dk=2 seq=2 weight_dtype=f16 unroll=full fold=off" },
      { "h=2 d_model=37 dk=5 seq=11 k_block=16 query_vectors=2 key_rows=2 key_block=4 unroll=tile" },
      { "h=1 d_model=18 dk=3 seq=11 k_block=16 query_vectors=2 key_rows=2 key_block=4 causal=true " ..
        "kv_len=true", { [0] = 9 } },
      { "h=2 d_model=70 dk=5 dv=3 seq=5 qk_norm=l2 dtype=int8 attend_dtype=f32" },
      { "h=1 d_model=3 dk=2 seq=3 dtype=int8 attend_dtype=f32 unroll=full" },
      { "h=4 h_kv=2 d_model=9 dk=4 seq=5 seq_kv=7 attention=cross batch=2 rope=half dtype=int8 attend_dtype=f32" },
    } do
      local text = case[1] .. " isa=" .. isa.name
      if takes(case_at, isa_at) then
        local ok, why = pcall(kernel_of, text, case[2])
        check(ok, text .. ": " .. tostring(type(why) == "table" and why.rule or why))
      end
    end
  end
end

return function(unit_check, unit_same, takes)
  check, same = unit_check, unit_same
  for _, test in ipairs { isa_errors, tiles, names, evaluator, shared, kernels } do test(takes) end
end
