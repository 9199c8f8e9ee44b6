-- The head of an encoder in an ONNX graph: one or two products behind what is taken of the last rows, with an
-- activation between them. It is proposed by the nodes, and then proved on drawn numbers.
--
--   of(find, whole, output) -> head, or nil where the output is made in another way
--     whole      of gen/onnx/whole.lua
--     head       { name = logits or embedding, rows = first, mean or all, said = words about the result, steps = {
--                { matrix = of gen/onnx/proposal.lua, bias = numbers or nil, act = or nil, depth, width } .. } }

local indices = require "onnx.indices"
local meanings = require "onnx.meanings_of_layers"
local proposal = require "onnx.proposal"
local rows = require "onnx.rows"
local values = require "onnx.values"
local whole_layers = require "onnx.whole_layers"
local whole_outputs = require "onnx.whole_outputs"
local wording = require "base.wording"

local M = {}

local origin, refuse = rows.origin, proposal.refuse

local HOPS = 12 -- nodes of an activation

-- The product that a value is made of by other nodes than products, or nil.
local function product_before(find, value)
  local waiting, hops = { value }, 0
  while waiting[1] and hops < HOPS do
    local name = origin(find, table.remove(waiting, 1))
    local found = name ~= value and rows.projection(find, name)
    if found then return found end
    hops = hops + 1
    for _, input in ipairs((find.graph.makers[name] or { inputs = {} }).inputs) do waiting[#waiting + 1] = input end
  end
end

-- What a product with its bias is, once it is proved.
local function proved(find, found)
  local product = found.product
  local step = { matrix = proposal.matrix_of(product), bias = found.bias, depth = product.width,
                 width = product.columns }
  whole_layers.prove(find, { product.x }, found.out, function(run, x)
    local y = run:product(x, whole_layers.numbers_of(find, run, step.matrix))
    return step.bias and run:apply("add", y, values.value(run.arrays.numbers(step.bias), { step.width })) or y
  end)
  return step
end

-- Refuses an activation that is another one of large numbers. The rows of a head are few.
local LARGE = { 20 }
local function check_large(find, h, y, act)
  local why = whole_layers.differs(setmetatable({ sizes = LARGE }, { __index = find.few() }), { h }, y,
    function(run, x) return meanings.activations[act](run, x) end)
  if why then refuse("%s", why) end
end

local function head_of(find, whole, output)
  local function taken(value) return value == whole.rows and "all" or whole_outputs.taken(find, whole, value) end
  local last = rows.projection(find, output) or refuse("no product makes it")
  local steps, from = { proved(find, last) }, origin(find, last.product.x)
  local kind = taken(from)
  if not kind then
    local first = product_before(find, from) or refuse("nothing is taken of the rows")
    table.insert(steps, 1, proved(find, first))
    steps[1].act = whole_layers.activation_of(find, { first }, from, { { first } }, steps[1].width)
    check_large(find, first.out, from, steps[1].act)
    kind = taken(origin(find, first.product.x))
  end
  if not kind then refuse("nothing is taken of the rows") end
  return { name = output:lower():find "embed" and "embedding" or "logits", rows = kind, steps = steps,
           said = ("output %s of the graph"):format(wording.short(output)) }
end

function M.of(...) return (indices.attempt(head_of, ...)) end

return M
