-- A lower bound of a kernel's time, by the execution ports of the core (machine/cpu.lua) that its operations need. They
-- are counted for a run on one thread, with the largest lengths. The bound of a phase is its busiest port. The bound of
-- a run is the busiest port of all phases together, because a core may overlap neighbouring phases.

local expr = require "base.expr"
local tiles = require "schedule.tiles"

local M = {}

local PORTS = { "fma", "vector", "shuffle", "load", "store", "tile" }

-- The value of an expression, given the values of variables; nil if it has an unknown one.
local function value(e, known)
  if type(e) ~= "table" then return e end
  local all = true
  expr.variables(e, function(name) all = all and known[name] ~= nil end)
  return all and expr.eval(e, known) or nil
end

-- Whether a < b; true if that is not known.
local function less(a, b, known)
  local left, right = value(a, known), value(b, known)
  return not left or not right or left < right
end

local Counter = {}
Counter.__index = Counter

function Counter:add(phase, node, times)
  local op, cpu = node.op, self.target.cpu
  local counts = self.phases[phase]
  if not counts then
    counts = { phase = phase }
    for _, port in ipairs(PORTS) do counts[port] = 0 end
    self.phases[phase], self.phases[#self.phases + 1] = counts, counts
  end
  local count = times * tiles.share(self.target, node.w)
  if op.port == "none" then return end
  counts[op.port] = counts[op.port] + count * (cpu.slots[op.name] or op.vectors)
end

-- How a node of each kind changes the counts; `known` has the values of variables.
local nodes = {}

function nodes.op(c, node, phase, times) c:add(phase, node, times) end

-- The variables, besides pointers, on which the path through a body depends.
local function deciding(body, names)
  local function add(e)
    if type(e) == "table" and not e.base then expr.variables(e, function(name) names[name] = true end) end
  end
  for _, node in ipairs(body or {}) do
    add(node.count)
    add(node.left)
    add(node.right)
    if node.kind == "int" then add(node.value) end
    for _, arg in ipairs(node.kind == "call" and node.args or {}) do add(arg) end
    deciding(node.body, names)
    deciding(node.otherwise, names)
  end
  return names
end

-- Counts all rounds at once, or one by one if their paths differ.
function nodes.loop(c, node, phase, times, known)
  local count = value(node.count, known) or select(2, expr.range(node.count)) or 0
  c.deciding[node] = c.deciding[node] or deciding(node.body, {})
  if not c.deciding[node][node.var] then return c:body(node.body, phase, times * math.max(count, 0), known) end
  for i = 0, count - 1 do
    c:body(node.body, phase, times, setmetatable({ [node.var] = i }, { __index = known }))
  end
end

function nodes.when(c, node, phase, times, known)
  c:body(less(node.left, node.right, known) and node.body or node.otherwise, phase, times, known)
end

nodes["unless"] = function(c, node, phase, times, known)
  if node.usual then c:body(node.body, phase, times, known) end
end

function nodes.scope(c, node, phase, times, known) c:body(node.body, phase, times, known) end

function nodes.call(c, node, phase, times, known)
  local inner = {}
  for i, p in ipairs(node.fn.params) do
    local arg = node.args[i]
    if type(arg) ~= "table" or arg.terms then inner[p.name] = value(arg, known) end
  end
  c:body(node.fn.body, phase, times, inner)
end

function nodes.apply(c, node, phase, times) c:body(node.fn.body, phase, times, {}) end

function nodes.int(_, node, _, _, known) known[node.name] = value(node.value, known) end

-- Lengths of a run count as their maximum, and other integers as what is usual, or 0.
function nodes.int_at(c, node, _, _, known)
  local cfg = c.plan.cfg
  local most = { ["args->q_len"] = cfg.seq, ["args->kv_len"] = cfg.seq_kv, ["args->past"] = cfg.seq_kv - cfg.seq }
  known[node.name] = most[node.base] or node.usual or 0
end

function Counter:body(body, phase, times, known)
  for _, node in ipairs(body or {}) do
    local visit, own = nodes[node.kind], self.outermost and phase ~= "entry" and phase or node.phase or phase
    if visit and own ~= phase then self.entries[own] = (self.entries[own] or 0) + times end
    if visit then visit(self, node, own, times, known) end
  end
end

-- The cycles for these counts, the port that they are bound by, and how many of its operations a cycle has.
local function fullest(counts, cpu)
  local ports = cpu.ports
  local rates = { fma = cpu.fmas, vector = ports.vector, shuffle = ports.shuffle, load = ports.load,
                  store = ports.store, tile = 1 / cpu.tiling.dot }
  local most, port = 0, "fma"
  for _, name in ipairs(PORTS) do
    local count = counts[name] + (name == "vector" and counts.fma + counts.shuffle or 0)
    if count / rates[name] > most then most, port = count / rates[name], name end
  end
  return most, port, rates[port]
end

local function count(recorded, cpu, outermost)
  local c = setmetatable({ plan = recorded.plan, target = { isa = recorded.plan.isa, cpu = cpu }, phases = {},
                           entries = {}, deciding = {}, outermost = outermost }, Counter)
  for _, fn in ipairs(recorded.tape.functions) do
    if fn.name == "run_entry" then c:body(fn.body, "entry", 1, {}) end
  end
  return c
end

-- The cycles of a batch entry for each phase of its stages.
function M.by_stages(recorded)
  local cycles = {}
  for _, counts in ipairs(count(recorded, recorded.plan.cpu, true).phases) do
    cycles[counts.phase] = fullest(counts, recorded.plan.cpu)
  end
  return cycles
end

-- Returns three values, all for a batch entry:
--   a list of phases { phase, counts by port, cycles, port, alone }
--   the cycles of all phases together
--   what phases take beyond their FMAs or tile products
-- alone: cycles of a phase that cannot overlap with another one, because a core has only so many instructions in flight
-- when it enters the phase. facts: those of another core (machine/cpu.lua), in place of the plan's.
function M.of(recorded, facts)
  local cpu = facts or recorded.plan.cpu
  local c = count(recorded, cpu)
  local all, beyond = {}, 0
  for _, counts in ipairs(c.phases) do
    local rate
    counts.cycles, counts.port, rate = fullest(counts, cpu)
    counts.alone = math.max(0, counts.cycles - (c.entries[counts.phase] or 0) * cpu.under_way / rate)
    beyond = beyond + counts.cycles - math.max(counts.fma / cpu.fmas, counts.tile * cpu.tiling.dot)
    for _, port in ipairs(PORTS) do all[port] = (all[port] or 0) + counts[port] end
  end
  return c.phases, all.fma and fullest(all, cpu) or 0, beyond
end

return M
