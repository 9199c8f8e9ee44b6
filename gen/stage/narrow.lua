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
  inputs.split(plan, stage)
  return 0
end

function M.sections(plan, stage, add)
  for _, input in ipairs(stage.inputs) do
    add("entry", { name = input.to.name, doc = "inputs in pairs", cols = input.to.row,
                   count = (tiles.round_up(input.rows, tiles.deep(plan.product)) + tiles.rows_behind(plan.product))
                     * input.to.row, type = plan.product.held })
  end
end

M.axes = inputs.axes

function M.emit(K, place, _, part, i)
  local t, isa, input, deep = K.t, K.plan.isa, part.input, tiles.deep(K.plan.product)
  local first = i * part.size + part.at
  local params = { { "x", "in", place[input.name]:at(first * input.cols) },
                   { "pairs", "out", K.plan.memory:at(place, input.to.name):at(first * input.to.row) } }
  K:part(("narrow_%dx%d"):format(part.size, input.cols), ("%d rows of %d numbers in pairs."):format(
    part.size, input.cols), params, function(p)
    local function row(r, to)
      K:vectors("block", input.cols, function(at, used)
        t:block(function()
          local numbers = t:read("load", isa.full, "numbers", p.x:at(r * input.cols + at), used)
          local words = p.pairs:at(to + expr.share(at, K.plan.product.group) * deep)
          t:op(K.plan.product.store_pairs, isa.full, nil, words, numbers)
        end)
      end)
      for word = input.words, input.to.row - 1, isa.lanes // K.plan.product.group do
        t:block(function()
          local zeros = t:op("zero", isa.full, "zero")
          t:op(K.plan.product.store_pairs, isa.full, nil, p.pairs:at(to + word * deep), zeros)
        end)
      end
    end
    local function together(i, count) -- rows whose words lie side by side
      for n = 0, count - 1 do row(i * deep + n, i * (deep * input.to.row) + deep * n) end
    end
    K:each("row", part.size // deep, function(i) together(i, deep) end)
    if part.size % deep > 0 then together(part.size // deep, part.size % deep) end
  end)
end

function M.cycles(plan, stage) return inputs.cycles(plan, stage, 2.0) end

return M
