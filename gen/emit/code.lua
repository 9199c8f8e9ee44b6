-- How the text of a kernel is divided into functions and loops. This is the one place that knows the unrolling levels.
-- An emitter describes its work once; at the level `full` that is recorded as straight-line code.

local choices = require "base.choices"
local expr = require "base.expr"
local isas = require "isa.init"
local tape = require "tape.init"
local tiles = require "schedule.tiles"
local ways = require "way.init"

local M = {}
local Code = {}
Code.__index = Code

-- t: the tape to record on; plan: the plan of the kernel.
function M.new(t, plan)
  local level = plan.cfg.unroll
  t.rolled = level == "auto"
  if t.rolled then
    choices.add(t.why, "arrays")
    choices.add(t.why, "sections")
  end
  return setmetatable({ t = t, plan = plan, full = level == "full" }, Code)
end

-- The C type of a parameter of kind "in", "out" or "int" that receives `value`.
local function ctype(kind, value)
  if kind == "int" then return "ptrdiff_t" end
  return (kind == "in" and "const " or "") .. value.type.c .. " *"
end

-- The range of integer parameters, which are counts or indices.
local COUNT = { 0, 1 << 40 }

-- Records `build` as a function of its own, and a call of it. At the unroll level full the code is recorded in place
-- instead, unless `kind` asks for a function: "whole" for one with straight-line code, "cold" for one with loops that
-- is as short as possible.
--   K.phase   the phase that the function is part of; equal functions may be part of several
--   K.role    the word in its name that says what it is for; an equal function with another role may share it
--   params    { name, "in" | "out" | "int", value } each; build gets the values by name. A parameter whose value is nil
--             or false is left out
function Code:part(name, doc, params, build, kind)
  local t, values = self.t, {}
  if self.full and not kind then
    for _, p in ipairs(params) do values[p[1]] = p[3] or nil end
    t:scope(function()
      t:note(name)
      build(values)
    end)
    return
  end
  local list, args = {}, {}
  for _, p in ipairs(params) do
    local own, of, value = table.unpack(p)
    if value then
      list[#list + 1] = { kind = ctype(of, value), name = own }
      args[#args + 1] = of == "int" and value or value:named()
      values[own] = of == "int" and expr.var(own, COUNT) or tape.pointer(own, 0, value.type)
    end
  end
  local fn = t:define({ name = name, doc = doc, params = list, attr = "NOINLINE",
                        reuse = self.cold, role = self.role, loops = self.cold and self.plan.isa.tile ~= nil },
    function()
      local full, cold = self.full, self.cold
      self.full, self.cold = full and kind == "whole", cold or kind == "cold"
      build(values)
      self.full, self.cold = full, cold
    end)
  fn.phases = fn.phases or {}
  if self.phase and not fn.phases[self.phase] then
    fn.phases[self.phase], fn.phases[#fn.phases + 1] = true, self.phase
  end
  t:call(fn, args)
end

-- Counts all that record(K, ...) records as part of a phase: its functions have the phase among their `phases`.
function Code:of(phase, record, ...)
  local outer, body = self.phase, self.t.body
  local first = #body + 1
  self.phase = phase
  record(self, ...)
  self.phase = outer
  for i = first, #body do body[i].phase = body[i].phase or phase end
end

-- Records build(i) for i = 0 .. count-1, as a loop. A single round, or any at level full, becomes straight-line code.
function Code:each(var, count, build)
  if expr.is_const(count) and (count <= 1 or self.full) then
    for i = 0, count - 1 do build(i) end
  elseif not expr.is_const(count) or count > 0 then
    self.t:loop(var, count, build)
  end
end

-- Records build(at, count) for n numbers: first for whole vectors, then for the rest. With `range`, only vectors that
-- hold numbers range.from to range.stop - 1 are visited.
function Code:vectors(var, n, build, range)
  local lanes, first, stop = self.plan.isa.lanes, 0, n
  if range then first, stop = expr.div(range.from, lanes), range.stop end
  local whole, vectors = n // lanes, expr.ceil_div(stop, lanes)
  self:each(var, expr.min(vectors, whole) - first, function(i) build((first + i) * lanes, lanes) end)
  if n % lanes == 0 then return end
  self.t:when(whole, vectors, function() build(n - n % lanes, n % lanes) end)
end

-- Adds a range, if there is one, to the parameters of a function. Returns a function that turns the values of the
-- parameters back into a range.
function Code:add_range(params, range)
  local own = {}
  for _, name in ipairs(range and { "from", "stop" } or {}) do
    own[name] = expr.is_const(range[name]) and range[name] or nil
    if not own[name] then params[#params + 1] = { name, "int", range[name] } end
  end
  return function(p) return range and { from = own.from or p.from, stop = own.stop or p.stop } end
end

-- Records build(v, at, suffix) for n numbers, each in a C block of its own: whole vectors first, then the narrowest
-- vector of the ISA that holds the rest. suffix: for names.
function Code:covered(n, build)
  local isa, t = self.plan.isa, self.t
  local whole = n // isa.lanes
  self:each("i", whole, function(i)
    t:scope(function() build({ w = isa.full, used = isa.lanes }, i * isa.lanes, "") end)
  end)
  for _, v in ipairs(isas.cover(isa, n % isa.lanes)) do
    t:scope(function() build(v, whole * isa.lanes, "_tail") end)
  end
end

-- The divisor of n that is close to `want`, so that no K steps are left over; or `want` if there is none.
local function divisor_near(n, want)
  for _, by in ipairs { 0, 1, 2, -1, 3, 4 } do
    if want + by > 0 and n % (want + by) == 0 then return want + by end
  end
  return want
end

-- K steps per loop iteration of a tile: all of them at the levels k and full. loop: the number otherwise, if the caller
-- leaves no choice. Code that rarely runs has one step, because that is the shortest text.
function Code:unroll(steps, loop)
  if self.cold then return 1 end
  if self.plan.cfg.unroll == "k" or self.full then return steps end
  if loop then return loop end
  choices.add(self.t.why, "loop_steps")
  return self.t.rolled and divisor_near(steps, tiles.LOOP_STEPS) or tiles.LOOP_STEPS
end

-- Up to so many K steps of few sums are written out, because a round of so few FMAs costs less than the loop around it.
local SHORT = 32

-- The same for a tile of a product whose sums may be split into chains; also returns the number of chains. With chains,
-- an iteration has one step for each chain, because clang spills with more. If a vector of A is read by lane, it has
-- the steps that this vector serves. edge: masks follow.
function Code:summing(scheme, rows, vectors, steps, edge)
  local plan, loop = self.plan, nil
  local way = ways.of(scheme)
  local chains = way.chained and tiles.chains(plan, rows, vectors, steps) or 1
  local lanes = way.by_lane and plan.isa.lanes
  if chains > 1 then
    choices.add(self.t.why, "chains")
    loop = self.t.rolled and steps <= SHORT and steps or math.max(chains, lanes or 1)
  elseif lanes then
    loop = tiles.LOOP_STEPS
  elseif edge and self.t.rolled then
    choices.add(self.t.why, "edge_steps")
    loop = divisor_near(steps, 2)
  end
  return math.max(chains, self:unroll(steps, loop)), chains
end

-- The chunks of a long sum: run(mode, k0, steps, is_last), where mode is "only", or "first" and then "next".
function Code:chunks(chunks, run)
  if chunks.count == 1 then return run("only", 0, chunks.last, true) end
  if chunks.group then
    choices.say(self.t.why, ("sums of at most %d steps in one chain"):format(chunks.group), "groups have scales")
  elseif not self.plan.cfg.k_block then
    choices.add(self.t.why, "k_block")
  end
  run("first", 0, chunks.size)
  self:each("chunk", chunks.count - 2, function(i) run("next", (i + 1) * chunks.size, chunks.size) end)
  run("next", (chunks.count - 1) * chunks.size, chunks.last, true)
end

M.suffix = { only = "", first = "", next = "_add", start = "_start", more = "_more" }

return M
