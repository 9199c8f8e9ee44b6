-- Unit tests of gen/tape/roll.lua: what it writes once is, written out again, what was recorded. And of share.lua:
-- which sections become functions.

local code = require "emit.code"
local config = require "options.config"
local cprint = require "tape.cprint"
local expr = require "base.expr"
local isas = require "isa.init"
local plan_of = require "plan.init"
local roll = require "tape.roll"
local tape = require "tape.init"
local tasks = require "plan.tasks"
local walk = require "plan.walk"

local check, same -- of unit.lua

-- ---- loops written out ----

-- Any variable has a number of its own, but for those of loops that are set.
local function new_env()
  return setmetatable({}, { __index = function(_, name)
    local number = 7
    for i = 1, #name do number = (number * 31 + name:byte(i)) % 9973 end
    return number
  end })
end

-- Calls visit(node, opens) for the nodes of a body in the order in which they run, with the variables of roll.lua's
-- loops in env; opens: whether a body of the node begins, or else ends.
local function each_node(body, env, visit)
  for _, node in ipairs(body or {}) do
    if node.kind == "loop" and node.first then
      for i = node.first, node.first + node.count - 1 do
        env[node.var] = i
        each_node(node.body, env, visit)
      end
      env[node.var] = nil
    elseif node.kind ~= "array" and node.kind ~= "note" then
      visit(node, true)
      each_node(node.body, env, visit)
      each_node(node.otherwise, env, visit)
      visit(node, false)
    end
  end
end

-- What a node does but for the values that it uses and makes, as a text; and these.
local function parts_of(node, env)
  local said, values = { node.kind, node.op and node.op.name or node.fn and node.fn.name or "" }, {}
  local function say(what)
    local text
    if math.type(what) == "float" then
      text = ("%a"):format(what)
    elseif type(what) == "string" then -- a tile register
      text = what
    elseif type(what) == "table" and what.base then
      text = what.base .. " + " .. expr.eval(what.off, env)
    elseif type(what) == "table" and what.kind then
      text = what.kind .. what.w.lanes
      values[#values + 1] = what
    else
      text = tostring(expr.eval(what, env))
    end
    said[#said + 1] = text
  end
  if node.dst and node.updates then say(node.dst) end
  for _, a in ipairs(node.args or {}) do say(a) end
  for _, c in ipairs(node.conditions or {}) do say(c) end
  if node.result then say(node.result) end
  for _, key in ipairs { "left", "right", "count", "value", "off", "by" } do
    if node[key] then say(node[key]) end
  end
  for _, key in ipairs { "updates", "mutable", "var", "name" } do said[#said + 1] = tostring(node[key]) end
  if node.dst and not node.updates then said[#said + 1] = node.dst.kind .. node.dst.w.lanes end
  return table.concat(said, " "), values
end

-- The name of a value, or of an element of an array.
local function place_of(value, env)
  local place = { value.array or value.name }
  for i, e in ipairs(value.index or {}) do place[i + 1] = ("[%d]"):format(expr.eval(e, env)) end
  return table.concat(place)
end

-- What is wrong with a body for a function, or nil.
local function difference(fn, body)
  local rolled, env = {}, new_env()
  each_node(body, env, function(node, opens)
    local text, values = parts_of(node, env)
    for i, v in ipairs(values) do values[i] = place_of(v, env) end
    rolled[#rolled + 1] = { text = text, values = values, opens = opens,
                            makes = node.dst and not node.updates and place_of(node.dst, env) }
  end)
  local held, n, wrong = {}, 0, nil -- the value that each place holds
  each_node(fn.body, env, function(node, opens)
    n = n + 1
    local other, text, values = rolled[n], parts_of(node, env)
    if wrong or not other or other.opens ~= opens then
      wrong = wrong or "other nodes"
      return
    end
    if text ~= other.text then wrong = text .. " became " .. other.text end
    for i, v in ipairs(opens and values or {}) do
      local of_fn = held[other.values[i]] -- or a parameter
      if of_fn ~= v and (of_fn or v.name ~= other.values[i]) then
        wrong = ("%s: %s is not %s"):format(text, other.values[i], v.name)
      end
    end
    if opens and other.makes then held[other.makes] = node.dst end
  end)
  return wrong or n ~= #rolled and "nodes are missing" or nil
end

-- ---- small functions ----

-- The function that `build` records, on a tape of an ISA.
local function recorded(isa, build)
  local t = tape.new(isas.list[isa])
  local params = { { kind = "float *", name = "p" }, { kind = "float *", name = "q" } }
  return t:define({ name = "f", params = params, keep = true }, function()
    build(t, isas.list[isa].full, tape.pointer("p"), tape.pointer("q"))
  end), t
end

-- The body of its text.
local function text_of(isa, build)
  local _, t = recorded(isa, build)
  t.rolled = true
  return (cprint.functions(t):match("%(void%)q;\n(.*)}\n$") or cprint.functions(t):match("{\n(.*)}\n$"))
end

local function writes(want, what, build, isa)
  local fn = recorded(isa or "scalar", build)
  same(difference(fn, roll(fn)), nil, what)
  same(text_of(isa or "scalar", build), want, what)
end

local function texts()
  writes([[
  float x[5];
  UNROLL(5) for (ptrdiff_t r = 0; r < 5; ++r) x[r] = p[2 * r];
  UNROLL(5) for (ptrdiff_t r = 0; r < 5; ++r) q[4 - r] = x[r];
]], "an array, forwards and backwards", function(t, w, p, q)
    local x = {}
    for r = 0, 4 do x[r] = t:op("load", w, "x_r" .. r, p:at(2 * r)) end
    for r = 0, 4 do t:op("store", w, nil, q:at(4 - r), x[r]) end
  end)
  writes([[
  UNROLL(5) for (ptrdiff_t r = 0; r < 5; ++r) {
    const float x = p[r];
    q[r + 1] = x;
  }
]], "a value of one round", function(t, w, p, q)
    for r = 0, 4 do t:op("store", w, nil, q:at(r + 1), t:op("load", w, "x_r" .. r, p:at(r))) end
  end)
  writes([[
  UNROLL(4) for (ptrdiff_t r = 0; r < 4; ++r) {
    const float p_r = p[r];
    q[r] = p_r;
  }
]], "a name that a parameter has", function(t, w, p, q)
    for r = 0, 3 do t:op("store", w, nil, q:at(r), t:op("load", w, "p_r" .. r, p:at(r))) end
  end)
  writes([[
  float sum[8];
  sum[0] = p[0];
  sum[1] = p[1];
  UNROLL(6) for (ptrdiff_t r = 2; r < 8; ++r) {
    const float x = p[r];
    sum[r] = sum[r - 2] + x;
  }
  q[0] = sum[6];
  q[1] = sum[7];
]], "values of other rounds; where a loop starts", function(t, w, p, q)
    local sums = {}
    for r = 0, 7 do
      local x = t:op("load", w, (r < 2 and "sum_r" or "x_r") .. r, p:at(r))
      sums[r] = r < 2 and x or t:op("add", w, "sum_r" .. r, sums[r - 2], x)
    end
    for r = 6, 7 do t:op("store", w, nil, q:at(r - 6), sums[r]) end
  end)
  writes([[
  float acc[4][5];
  UNROLL(4) for (ptrdiff_t r = 0; r < 4; ++r) {
    UNROLL(5) for (ptrdiff_t c = 0; c < 5; ++c) acc[r][c] = 0.0f;
  }
  for (ptrdiff_t step = 0; step < 9; ++step) {
    UNROLL(4) for (ptrdiff_t r = 0; r < 4; ++r) {
      const float a = p[step + 9 * r];
      UNROLL(5) for (ptrdiff_t c = 0; c < 5; ++c) acc[r][c] = a * a + acc[r][c];
    }
  }
  q[0] = acc[1][3];
]], "a loop in a loop", function(t, w, p, q)
    local acc = {}
    for r = 0, 3 do
      acc[r] = {}
      for c = 0, 4 do acc[r][c] = t:start("zero", w, ("acc_r%d_c%d"):format(r, c)) end
    end
    t:loop("step", 9, function(step)
      for r = 0, 3 do
        local a = t:op("load", w, "a_r" .. r, p:at(step + 9 * r))
        for c = 0, 4 do t:update(acc[r][c], "fma", a, a, acc[r][c]) end
      end
    end)
    t:op("store", w, nil, q, acc[1][3])
  end)
  writes([[
  UNROLL(8) for (ptrdiff_t r = 0; r < 8; ++r) {
    UNROLL(3) for (ptrdiff_t c = 0; c < 3; ++c) {
      const float x = p[4 * r + c];
      const float sum = x + x;
      q[4 * r + c] = sum;
    }
  }
]], "rows of columns, one loop and not two of four rows", function(t, w, p, q)
    for r = 0, 7 do
      for c = 0, 2 do
        local x = t:op("load", w, ("x_r%d_c%d"):format(r, c), p:at(4 * r + c))
        t:op("store", w, nil, q:at(4 * r + c), t:op("add", w, ("sum_r%d_c%d"):format(r, c), x, x))
      end
    end
  end)
  writes([[
  float sum = 0.0f;
  UNROLL(4) for (ptrdiff_t r = 0; r < 4; ++r) {
    const float x = p[2 * r];
    const float y = x + x;
    sum = y * y + sum;
    const float x_r = p[2 * r + 1];
    const float y_r = x_r + x_r;
    sum = y_r * y_r + sum;
    const float z = y * y_r;
    q[r] = z;
  }
  q[9] = sum;
]], "two rows and what is made of both, one loop and not many of two rounds", function(t, w, p, q)
    local y, sum = {}, t:start("zero", w, "sum")
    for r = 0, 7 do
      local x = t:op("load", w, "x_r" .. r, p:at(r))
      y[r] = t:op("add", w, "y_r" .. r, x, x)
      t:update(sum, "fma", y[r], y[r], sum)
      if r % 2 > 0 then
        t:op("store", w, nil, q:at(r // 2), t:op("mul", w, "z_r" .. r // 2, y[r - 1], y[r]))
      end
    end
    t:op("store", w, nil, q:at(9), sum)
  end)
  writes([[
  float x[5], y[5];
  UNROLL(5) for (ptrdiff_t r = 0; r < 5; ++r) x[r] = y[r] = 0.0f;
  UNROLL(5) for (ptrdiff_t r = 0; r < 5; ++r) {
    p[r] = x[r];
    q[r] = y[r];
  }
]], "the same constant for several", function(t, w, p, q)
    local x, y = {}, {}
    for r = 0, 4 do x[r], y[r] = t:start("zero", w, "x_r" .. r), t:start("zero", w, "y_r" .. r) end
    for r = 0, 4 do
      t:op("store", w, nil, p:at(r), x[r])
      t:op("store", w, nil, q:at(r), y[r])
    end
  end)
  writes([[
  float32x4_t acc = vdupq_n_f32(0.0f);
  const float32x4_t x = vld1q_f32(p);
  UNROLL(4) for (ptrdiff_t k = 0; k < 4; ++k) {
    const float32x4_t b = vld1q_f32(q + 4 * k);
    acc = vfmaq_n_f32(acc, b, x[k]);
  }
  vst1q_f32(q, acc);
]], "lanes that are counted, without notes that say so", function(t, w, p, q)
    local acc, x = t:start("zero", w, "acc"), t:op("load", w, "x", p)
    for lane = 0, 3 do
      t:note("k = " .. lane)
      t:update(acc, "fma_lane", t:op("load", w, "b_k" .. lane, q:at(4 * lane)), x, acc, lane)
    end
    t:op("store", w, nil, q, acc)
  end, "neon")
end

-- What must not become one: each function as it is, and none of its loops over other things than `count` rounds.
local function apart()
  local function stays(what, isa, build)
    local fn = recorded(isa, build)
    local body = roll(fn)
    same(difference(fn, body), nil, what)
    for _, node in ipairs(body) do check(node.kind ~= "loop", what .. " became a loop") end
  end
  stays("uneven steps", "scalar", function(t, w, p, q)
    for _, r in ipairs { 0, 1, 3, 6, 10, 15 } do
      t:op("store", w, nil, q:at(r), t:op("load", w, "x_r" .. r, p:at(r)))
    end
  end)
  stays("two rounds that differ by chance", "scalar", function(t, w, p, q)
    local x = {}
    for r = 0, 5 do x[r] = t:op("load", w, "x_r" .. r, p:at(r * r)) end
    for _, of in ipairs { { 0, 1, 2, 3, 4, 5 }, { 1, 3, 5, 0, 2, 4 } } do
      for i, r in ipairs(of) do t:op("store", w, nil, q:at(i * i), x[r]) end
    end
  end)
  stays("lanes, which are part of an instruction", "neon_i8mm", function(t, w, p, q)
    local acc, x = t:start("zero", w, "acc"), t:op("load", w, "x", p)
    for lane = 0, 3 do t:update(acc, "dot_odd_lane", x, x, acc, lane) end
    t:op("store", w, nil, q, acc)
  end)
  stays("literals", "scalar", function(t, w, _, q)
    for r = 0, 5 do t:op("store", w, nil, q:at(r), t:op("set", w, "x_r" .. r, r + 0.5)) end
  end)
end

-- Values that end in one name have arrays of their own.
local function names()
  local function arrays_of(isa, build)
    local fn = recorded(isa, build)
    local body = roll(fn)
    same(difference(fn, body), nil, "names")
    local list = {}
    for _, node in ipairs(body) do
      for _, array in ipairs(node.names or {}) do
        list[#list + 1] = array[1] .. "[" .. table.concat(array[2], "][") .. "]"
      end
    end
    return table.concat(list, " ")
  end
  same(arrays_of("scalar", function(t, w, p, q)
    local rows, columns = {}, {}
    for i = 0, 4 do rows[i] = t:op("load", w, "x_r" .. i, p:at(i)) end
    for i = 0, 4 do columns[i] = t:op("load", w, "x_c" .. i, p:at(9 * i)) end
    for i = 0, 4 do t:op("store", w, nil, q:at(i), t:op("sub", w, "y_" .. i, rows[i], columns[4 - i])) end
  end), "x[5] x_c[5]", "rows and columns of one word")
  same(arrays_of("avx512", function(t, _, p, q)
    local wide, narrow = table.unpack(isas.list.avx512.widths)
    local x = {}
    for r = 0, 4 do
      x[r] = {}
      for c, w in ipairs { wide, wide, wide, wide, narrow } do
        x[r][c] = t:op("load", w, ("x_r%d_c%d"):format(r, c - 1), p:at(80 * r + 16 * c))
      end
    end
    for r = 0, 4 do
      for c, w in ipairs { wide, wide, wide, wide, narrow } do
        t:op("store", w, nil, q:at(80 * r + 16 * c), x[4 - r][c])
      end
    end
  end), "x[5][4] x_c4[5]", "two widths")
  same(arrays_of("scalar", function(t, w, p, q)
    local x = {}
    for i = 1, 2 do
      for r = 0, 4 do x[5 * i + r] = t:op("load", w, ("bias%d_r%d"):format(i, r), p:at(5 * i + r)) end
    end
    for r = 0, 4 do t:op("store", w, nil, q:at(r), t:op("add", w, "sum_r" .. r, x[5 + r], x[14 - r])) end
  end), "bias1[5] bias2[5]", "biases")
end

-- ---- sections ----

-- The text of two functions with a section each, as record(t, w, number, a) makes it; a is their pointer.
local function two_functions(record)
  local t = tape.new(isas.list.avx2)
  local w = t.isa.full
  t.rolled = true
  for number = 1, 2 do
    t:define({ name = "function" .. number, params = { { kind = "const float *", name = "a" },
                                                       { kind = "float *", name = "c" } } }, function()
      local a, c = tape.pointer("a"), tape.pointer("c")
      local sum = record(t, w, number, a)
      t:op("store", w, nil, c:at(number), sum)
    end)
  end
  return cprint.functions(t)
end

local mixed = { [0] = "add", "mul", "max", "sub", "min", "div", "add", "mul" } -- nothing to be written as a loop

-- Records operations on some vectors, as a section of a name.
local function squares(t, w, a, count, first)
  t:open("squares", "Adds vectors.")
  local sum = t:op("zero", w, "sum_" .. first)
  for i = 0, count do
    local x = t:op("load", w, ("x%d_%d"):format(i, first), a:at(i * i))
    sum = t:op(mixed[i], w, ("sum%d_%d"):format(i, first), sum, x)
  end
  t:close()
  return sum
end

local function sections()
  local function places(text) return select(2, text:gsub(" squares%(", "")) end -- of the function and its calls
  local text = two_functions(function(t, w, number, a) return squares(t, w, a, 6, number) end)
  same(places(text), 3, "equal sections but for names")
  text = two_functions(function(t, w, number, a) return squares(t, w, a, 5 + number, 1) end)
  same(places(text), 0, "sections of other literals")
  text = two_functions(function(t, w, _, a) return squares(t, w, a, 1, 1) end)
  same(places(text), 0, "sections that would save nothing")
  text = two_functions(function(t, w, _, a)
    t:open("moved", "Moves on.")
    for i = 0, 6 do t:op("store", w, nil, tape.pointer("c", i * i), t:op("load", w, "x" .. i, a:at(i * i * i))) end
    t:bump(a, 8)
    t:close()
    return t:op("load", w, "behind", a)
  end)
  check(not text:find("moved", 1, true), "a pointer that is used behind the section")
end

-- ---- whole kernels ----

local function kernels(takes)
  local loops, rolled = 0, {}
  for isa_at, isa in ipairs(isas.list) do
    for text_at, text in ipairs {
      "h=4 d_model=32 dk=8 seq=16", "h=5 d_model=100 dk=20 seq=37", "h=6 d_model=384 dk=64 seq=197",
      "h=2 d_model=48 dk=24 seq=70 causal=true kv_len=true probs=true", "h=1 d_model=64 dk=64 seq=98",
      "h=1 d_model=1 dk=1 seq=17 alibi=true softcap=1 mask=add", "h=2 d_model=40 dk=16 seq=35 dtype=bf16",
      "h=4 h_kv=2 d_model=48 dk=24 seq=33 qk_norm=rms rope=half sink=true window_left=9 causal=true",
      "h=4 h_kv=1 d_model=32 dk=16 seq=1 seq_kv=70 cache=append",
      "h=3 d_model=30 dk=10 seq=19 q_len=true mask=bool kv_start=true kv_len=true scores=masked",
      "h=2 d_model=30 dk=10 seq=39 q_len=true row_keys=range",
      "h=2 d_model=30 dk=10 seq=39 rope=interleaved rope_at=run",
    } do
      local words = {}
      for word in (text .. " isa=" .. isa.name):gmatch("%S+") do words[#words + 1] = word end
      local ok, cfg = pcall(config.load, nil, words)
      local taken = ok and takes(text_at, isa_at)
      check(ok, text .. ": " .. tostring(not ok and type(cfg) == "table" and cfg.rule or cfg))
      local t = taken and tape.new(isa)
      if taken then
        local K = code.new(t, plan_of.build(cfg))
        tasks.record(K, walk.record(K))
      end
      for _, fn in ipairs(taken and t.functions or {}) do
        if not rolled[fn.content] then
          rolled[fn.content] = true
          local body = roll(fn)
          local wrong = difference(fn, body)
          if wrong then check(false, ("%s isa=%s: %s: %s"):format(text, isa.name, fn.name, wrong)) end
          for _, node in ipairs(body) do loops = loops + (node.first and 1 or 0) end
        end
      end
    end
  end
  check(loops > 100, "few loops: " .. loops)
end

return function(unit_check, unit_same, takes)
  check, same = unit_check, unit_same
  for _, test in ipairs { texts, apart, names, sections, kernels } do test(takes) end
end
