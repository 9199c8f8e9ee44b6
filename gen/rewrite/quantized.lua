-- Operands in int8: rows of X and of the context are quantized, with a scale for each row, before they are multiplied.
-- A word of memory holds four or two neighbours along K, as rewrite/paired.lua has two. Epilogues convert the sums, so
-- Q, K, V and Y are float32.

local choices = require "base.choices"
local conversions = require "rewrite.conversions"
local graph = require "graph.init"
local layouts = require "graph.layout"
local memory = require "schedule.memory"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"
local types = require "machine.types"
local ways = require "way.init"
local wording = require "base.wording"

local M = {}

-- The most products of bytes whose sum fits int32.
local MOST = (2 ^ 31 - 1) // (127 * 127)

local NUMBERS = { [2] = "two", [4] = "four", [8] = "eight" }

local function check(stage)
  if math.min(stage.steps, stage.multiplied.quant.group or stage.steps) <= MOST then return end
  local key = stage.apart and "ffn_dtype" or "dtype"
  tiles.refuse(key, stage.scheme.b.name, ("has sums of %d products with %s, of at most %d that int32 holds"):format(
    stage.steps, stage.weights.text, MOST))
end

-- The layout of `rows` rows of integers as a product reads them; count: numbers in a row.
local function layout(plan, stage, rows, count)
  return layouts.words(stage.scheme, rows, tiles.round_up(tiles.words(stage.scheme, count), plan.isa.lanes))
end

-- The quantized context, which the output reads.
local function words_of_context(plan, output)
  local at = output.a.at
  return tensors[at]("context_words", graph.with({ scales = "context_scales", scaled = at },
    at == "rows" and layout(plan, output, plan.cfg.seq, output.steps) or { scheme = output.scheme }))
end

-- The schemes of products of integers.
local function of_integers(list)
  local found = {}
  for _, scheme in ipairs(graph.product_schemes(list)) do found[#found + 1] = scheme.quant and scheme or nil end
  return found
end

function M.applies(_, list) return of_integers(list)[1] end

-- Adds the stages that quantize inputs of a run, inputs that fill a cache, and the context.
function M.rewrite(plan, list)
  for _, scheme in ipairs(of_integers(list)) do
    for _, stage in ipairs(list) do
      if stage.weights and stage.scheme == scheme then check(stage) end
    end
    list = conversions.of_operands(list, "quantize", scheme, function(input, stage)
      return tensors.workspace(conversions.name("words_", input, stage),
        graph.with(layout(plan, stage, stage.rows, input.row),
          { scales = conversions.name("scales_", input, stage), scaled_rows = stage.rows, head = 0 }))
    end)
    local output = graph.output(list)
    if output and output.scheme == scheme and not graph.attend(list).passes then
      local to = words_of_context(plan, output)
      local first = graph.moving { name = "quantize_context", of = "context", a = output.a, c = to,
                                   rows = output.steps }
      list = graph.edited(list, { [output] = { first, graph.with(output, { a = to }) } })
    end
  end
  return list
end

-- Adds reasons that say what products of a scheme cost, and where it does not pay. what: these products.
local function tell(plan, scheme, what)
  local floats, all, own, making = 0, 0, 0, 0
  for _, stage in ipairs(plan.stages) do
    local product, macs = stage.scheme == scheme and stage.product, stage.fill and 0 or stage:macs()
    all = all + macs
    if product then
      own, floats = own + macs, floats + product.floats * product.steps // product.depth * scheme.group
        * (stage.nest == "groups" and 1 or plan.head_blocks)
    end
    local made = stage.of == "context" and stage.c or stage.inputs and stage.inputs[1].to
    if made and made.scheme == scheme then making = making + (stage.cycles or 0) end
  end
  local share, at_once = math.floor(100 * own / all + 0.5), scheme.group * ways.interleave(scheme)
  choices.say(plan.why, ("%s in %s"):format(what, scheme.b.name),
    ("error at most %g instead of %g; weights of %s bytes instead of %s"):format(plan.error, types.f32.error,
      wording.number(floats * scheme.quant.bits // 8), wording.number(memory.BYTES * floats)))
  local none = scheme.widens and
    "it saves memory, and little time or none: bytes are widened before they are multiplied"
  choices.say(plan.why, ("%d %% of the multiply-adds are in %s"):format(share, scheme.b.name), none
    or ("an instruction does %s, so at best %.2g of float32's time is left beside the same attention; integers " ..
        "take about %s cycles to make"):format(NUMBERS[at_once], 1 - (1 - 1 / at_once) * share / 100,
        wording.number(math.ceil(making))))
end

-- The same for all of them. The plan's order must be known.
function M.tell(plan)
  for _, scheme in ipairs(of_integers(plan.stages)) do
    if scheme.group == 2 then choices.add(plan.why, "shorts") end
    if scheme.quant.group then choices.add(plan.why, scheme.quant.bytes and "nibbles" or "groups") end
    tell(plan, scheme, graph.only_feeds(plan, scheme) and "feed-forward" or "projections")
  end
end

return M
