-- Inputs in pairs: rows of X, K and V as the products of pairs read them, zeros behind each row.

local expr = require "expr"
local inputs = require "inputs"
local tiles = require "tiles"

local M = { phase = "narrow", title = "inputs in pairs" }

function M.plan(plan, stage)
  for _, input in ipairs(stage.inputs) do
    input.words = tiles.round_up(input.cols, plan.isa.lanes) // plan.product.group
    input.to.row = tiles.padded(plan.product, input.words)
  end
  inputs.split(stage)
  return 0
end

function M.sections(plan, stage, add)
  for _, input in ipairs(stage.inputs) do
    add("entry", { name = input.to.name, doc = "inputs in pairs", cols = input.to.row,
                   count = (input.rows + tiles.rows_behind(plan.product)) * input.to.row, type = plan.product.held })
  end
end

M.axes = inputs.axes

function M.emit(K, place, _, part, i)
  local t, isa, input = K.t, K.plan.isa, part.input
  local first = i * part.size + part.at
  local params = { { "x", "in", place[input.name]:at(first * input.cols) },
                   { "pairs", "out", K.plan.memory:at(place, input.to.name):at(first * input.to.row) } }
  K:part(("narrow_%dx%d"):format(part.size, input.cols), ("%d rows of %d numbers in pairs."):format(
    part.size, input.cols), params, function(p)
    K:each("row", part.size, function(r)
      K:vectors("block", input.cols, function(at, used)
        t:block(function()
          local row = t:read("load", isa.full, "numbers", p.x:at(r * input.cols + at), used)
          local to = p.pairs:at(r * input.to.row + expr.share(at, K.plan.product.group))
          t:op(K.plan.product.store_pairs, isa.full, nil, to, row)
        end)
      end)
      for word = input.words, input.to.row - 1, isa.lanes // K.plan.product.group do
        t:block(function()
          t:op(K.plan.product.store_pairs, isa.full, nil, p.pairs:at(r * input.to.row + word),
            t:op("zero", isa.full, "zero"))
        end)
      end
    end)
  end)
end

function M.cycles(plan, stage) return inputs.cycles(plan, stage, 2.0) end

return M
