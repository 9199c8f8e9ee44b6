-- Inputs in pairs: rows of X, K and V as the products of pairs read them, zeros behind each row.

local expr = require "base.expr"
local inputs = require "graph.inputs"
local tiles = require "schedule.tiles"
local ways = require "way.init"

local M = { phase = "narrow", title = "inputs in pairs" }

function M.plan(plan, stage)
  for _, input in ipairs(stage.inputs) do
    input.words = tiles.round_up(input.cols, plan.isa.lanes) // plan.scheme.group
    tiles.lay(input.to, plan.scheme, input.rows, input.words)
  end
  inputs.split(stage)
  return 0
end

function M.sections(plan, stage, add)
  for _, input in ipairs(stage.inputs) do
    add("entry", { name = input.to.name, doc = "inputs in pairs", cols = input.to.row, count = input.to.count,
                   type = plan.scheme.held })
  end
end

M.axes = inputs.axes

function M.emit(K, place, _, part, i)
  local t, isa, input, scheme = K.t, K.plan.isa, part.input, K.plan.scheme
  local beside, to = ways.beside(scheme), part.input.to
  local first = i * part.size + part.at
  local params = { { "x", "in", place[input.name]:at(first * input.cols) },
                   { "pairs", "out", K.plan.memory:at(place, to.name):at(first * to.row) } }
  K:part(tiles.label("narrow", to, part.size, input.cols), ("%d rows of %d numbers in pairs."):format(
    part.size, input.cols), params, function(p)
    local function row(r, first)
      local function store(word, numbers)
        t:op(scheme.store_pairs, isa.full, nil, p.pairs:at(first + tiles.word_at(to, word)), numbers)
      end
      K:vectors("block", input.cols, function(at, used)
        t:block(function()
          store(expr.share(at, scheme.group),
            t:read("load", isa.full, "numbers", p.x:at(r * input.cols + at), used))
        end)
      end)
      for word = input.words, to.words - 1, isa.lanes // scheme.group do
        t:block(function() store(word, t:op("zero", isa.full, "zero")) end)
      end
    end
    local function together(i, count) -- rows whose words lie side by side
      for n = 0, count - 1 do row(i * beside + n, i * (beside * to.row) + beside * n) end
    end
    K:each("row", part.size // beside, function(i) together(i, beside) end)
    if part.size % beside > 0 then together(part.size // beside, part.size % beside) end
  end)
end

function M.cycles(plan, stage) return inputs.cycles(plan, stage, 2.0) end

return M
