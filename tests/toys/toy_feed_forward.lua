-- A toy feed-forward behind the output, with its option and its matrices: Y + gelu(norm(Y) W1 + b1) W2 + b2, in float32
-- whatever attention multiplies. The norm is that of layers, without gains; gelu is the one of tanh. It shows what a
-- layer is made of: products that name what their tiles end with, and a stage for rows.

local exp = require "tape.exp"
local graph = require "graph.init"
local groups = require "schedule.groups"
local isas = require "isa.init"
local layouts = require "graph.layout"
local norm = require "emit.norm"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"
local types = require "machine.types"

local M = {}

M.option = { key = "ffn", kind = "integer", min = 0, max = 65536, default = 0, name = "_ffn",
             word = "feed-forward of %s", doc = "width of a feed-forward behind Y; 0: none",
             excludes = { { key = "project", lacks = "o", why = "which does not project Y" } } }

local function matrix(name, size, required)
  return { name = name, null = "zeros", required = required, size = function(cfg)
    if cfg.ffn > 0 then return size(cfg) end
  end }
end

M.matrices = {
  matrix("w1", function(cfg) return cfg.y_width, cfg.ffn end, true),
  matrix("b1", function(cfg) return 1, cfg.ffn end),
  matrix("w2", function(cfg) return cfg.ffn, cfg.y_width end, true),
  matrix("b2", function(cfg) return 1, cfg.y_width end),
}

-- ---- the function of W1's results ----

local K = -2.0 * math.sqrt(2.0 / math.pi) * types.LOG2E

-- x / (1 + exp(-2 sqrt(2/pi) (x + 0.044715 x^3))), which is x (1 + tanh(..)) / 2: Hendrycks and Gimpel, 2016.
local gelu = { name = "gelu", apply = function(t, w, x, name)
  local function constant(word, value) return t:op("set", w, word .. name, value) end
  local square = t:op("mul", w, "square" .. name, x, x)
  local slope = t:op("fma", w, "slope" .. name, square, constant("cubic", 0.044715 * K), constant("linear", K))
  local exponent = t:op("min", w, "exponent" .. name, constant("most", 126.0), t:op("mul", w, "raw" .. name, slope, x))
  local one = constant("one", 1.0)
  local below = t:op("add", w, "below" .. name, one, exp.exp2(t, "power" .. name, exponent))
  return t:op("div", w, "gelu" .. name, x, below)
end }

-- ---- the stage that norms rows ----

local LAYER = { norm = "layer", eps = 1e-5 }

M.norm = { phase = "norm", title = "norm" }

function M.norm.axes(plan) return { groups.axis(plan) } end

function M.norm.sections(plan, stage, add)
  add("entry", { name = stage.c.name, doc = "normed rows", cols = stage.c.row, count = plan.cfg.seq * stage.c.row })
end

function M.norm.cycles(plan, stage) return 6.0 * plan.cfg.seq * stage.cols / plan.isa.lanes end

function M.norm.emit(own, place, stage, group, i)
  local t, w, lanes, a, c = own.t, own.plan.isa.full, own.plan.isa.lanes, stage.a, stage.c
  local first = i * group.used + group.q0
  local function rows_of(tensor) return own.plan.memory:tensor(place, tensor):at(layouts.at(tensor, first)) end
  own:part(("norm_%dx%d"):format(group.used, stage.cols), ("Norms of %d rows."):format(group.used),
    { { "x", "in", rows_of(a) }, { "out", "out", rows_of(c) } }, function(p)
    local factors = t:buffer("factors", 2 * lanes)
    local function block(from, count)
      local function at(r, column) return p.x:at((from + r) * a.row + column) end
      norm.row_factors(own, LAYER, count, stage.cols, factors, at)
      own:each("row", count, function(r)
        t:scope(function()
          local mean, by = t:op("dup", w, "mean", factors:at(lanes + r)), t:op("dup", w, "factor", factors:at(r))
          norm.vectors(own, stage.cols, function(column, used)
            local value = t:op("sub", w, "centered", t:read("load", w, "value", at(r, column), used), mean)
            t:write(w, p.out:at((from + r) * c.row + column), t:op("mul", w, "normal", value, by), used)
          end)
        end)
      end)
    end
    own:each("block", group.used // lanes, function(b) block(b * lanes, lanes) end)
    if group.used % lanes > 0 then block(group.used - group.used % lanes, group.used % lanes) end
  end)
end

-- ---- the list of stages ----

function M.applies(plan) return plan.cfg.ffn > 0 end

function M.rewrite(plan, list)
  local cfg, output = plan.cfg, graph.output(list)
  local width, scheme = cfg.y_width, isas.scheme(plan.isa, types.f32)
  local function rows(name, count) return tensors.rows(name, layouts.rows(tiles.round_up(count, plan.isa.lanes))) end
  local attended, normed, hidden = rows("attended", width), rows("normed", width), rows("hidden", cfg.ffn)
  local function product(n, name, fields)
    return graph.product(graph.with({
      name = name, phase = name, title = name, nest = "groups", rows = cfg.seq, heads = 1,
      scheme = scheme, multiplied = scheme, stored = scheme,
      weights = graph.matrix("w" .. n, { steps = fields.steps }),
      bias = { section = "b" .. n, text = "b" .. n, terms = { { a = "b" .. n } } } }, fields))
  end
  return graph.edited(list, { [output] = {
    graph.with(output, { c = attended, doc = graph.with(output.doc, { c = "attention's result" }) }),
    graph.moving { name = "norm", kind = "plain_norm", a = attended, c = normed, cols = width },
    product(1, "up", { a = normed, c = hidden, steps = width, cols = cfg.ffn, activate = gelu,
                       doc = { a = "normed rows", c = "what is between W1 and W2" } }),
    product(2, "down", { a = hidden, c = output.c, steps = cfg.ffn, cols = width, add = attended,
                         doc = { a = "what is between W1 and W2", c = "Y" } }) } })
end

return M
