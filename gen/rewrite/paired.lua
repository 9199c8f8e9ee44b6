-- Operands in pairs. On ISAs with pairwise dot products of a small type, a 32-bit word holds two neighbours along K. A
-- K step takes a word of A and a vector of words of B. Steps, panels and rows are counted in words.
--
--   of            along       made
--   X, Wq Wk Wv   d_model     by a stage of its own; when packing
--   Q^T, K        dk          after the query projection, or when it stores queries; when keys are stored
--   P, V          keys        two rows at a time, when their tiles end
--   context, Wo   dv          likewise; when packing
--
-- Keys with rope become pairs in place, after the rotation. So do copies of inputs or of rows in a cache.
--
-- An odd dk or dv is padded with a zero. Stage key_rows makes the words of such keys, each from a number and the one
-- half a row after it. Each head of the context begins with a new word.

local choices = require "base.choices"
local conversions = require "rewrite.conversions"
local decode = require "schedule.decode"
local fold = require "rewrite.fold"
local graph = require "graph.init"
local isas = require "isa.init"
local layouts = require "graph.layout"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"

local M = {}

-- Whether few queries read a cache, whose rows are then read as single numbers.
local function few_queries(plan, list)
  return graph.attend(list).keys.at == "cache" and decode.few_queries(plan)
end

-- The ISA's scheme of pairs for products with weights, or nil.
local function pairs_of(plan) return isas.paired(plan.isa, plan.scheme.b) end

local MANY = 8 -- from so many queries on, it pays to dequantize weights to pairs before the products

-- Whether a run dequantizes int8/int4 weights to pairs, once for all rows. The pairs must be in the plain order, and
-- heads must not be padded.
local function widens(plan, list)
  local own = pairs_of(plan)
  local ragged = not plan.feeds and graph.output(list) and graph.attend(list).out % 2 > 0
  return plan.cfg.seq >= MANY and not (own.f16_sums or own.blocks or isas.by_halves(plan.isa, own) or ragged)
end

-- Reasons against pairs, for a plan and the list of the formula: in all products with weights, in projections alone,
-- and in attention.
local against_products = {
  { function(plan, list) return plan.weights.scheme.scales and not widens(plan, list) end,
    "weights are small integers, which become float32" },
  { function(plan)
      local type = plan.weights.quant and plan.weights.quant.type
      return type and type ~= plan.scheme.b
    end,
    "weights have 16 bits of another type, and become float32" },
  { function(plan) return pairs_of(plan).f16_sums and plan.sums ~= plan.scheme.b end,
    "sums of half precision would err twice as much: sum_dtype = f16 takes them" },
}

local against_projections = {
  { function(plan, list)
      return few_queries(plan, list) and graph.output(list) and graph.attend(list).out % plan.isa.lanes > 0
    end, "rows of the context are no whole vectors" },
  { function(plan, list)
      return pairs_of(plan).f16_sums and graph.output(list) and graph.attend(list).out % 2 > 0
    end, "blocks of sums in half precision have no room for zeros behind an odd dv" },
  { function(plan, list) return graph.output(list) and (plan.cfg.context_rows or 0) % 2 > 0 end,
    "given rows of tiles have to be even" },
  { function(_, list)
      local keys = graph.origin(list, graph.attend(list).keys)
      return keys and keys.fill
    end, "a cache is filled from rows of float32" },
  table.unpack(against_products),
}

local against_attention = {
  { function(plan, list) return isas.paired(plan.isa, graph.attend(list).scheme.b).f16_sums end,
    "scores would lose more digits in sums of half precision than weights may" },
  { function(plan) return plan.weights.quant and plan.weights.quant.group end, "sums of groups are added as float32" },
  { function(plan) return plan.scores.shown end, "scores that are a result are float32" },
  { function(plan) return ((plan.cfg.kv_rows or 0) % 2 + (plan.cfg.key_rows or 0) % 2) > 0 end,
    "given rows of tiles have to be even" },
  { few_queries, "all of the cache would be copied for few queries" },
}

-- Reasons against tile registers in attention.
local against_tiles = {
  { function(plan, list) return 4 * tiles.round_up(graph.attend(list).depth, 2) < plan.isa.tile end,
    "dk is less than an eighth of what a row of a tile has" },
  { function(plan) return 2 * plan.cfg.seq_kv < plan.isa.tile end, "keys are less than half of a tile's rows" },
  { function(plan) return (plan.cfg.key_rows or 0) % (2 * plan.isa.tile) > 0 end,
    "a given key_rows is no multiple of two tiles" },
}

-- Whether a vector instruction on pairs takes as long as the FMAs for as many numbers, or longer.
local function slow(plan, scheme) return not scheme.tiled and (plan.cpu.slots[scheme.op] or 1) >= scheme.group end

local SLOW = "this core multiplies pairs by vectors no faster than float32"

local FOLDED = 0.2 -- of the multiply-adds

-- Whether folding, which pairs exclude, saves more multiply-adds than vector instructions on pairs would.
local function folds(plan, list)
  local own = isas.paired(plan.isa, graph.attend(list).scheme.b)
  local tiled = own and own.tiled and not choices.against(against_tiles, plan, list)
  return own and not tiled and fold.left(plan, list) < FOLDED
end

-- The scheme of pairs in place of `scheme`, or nil where the ISA has none or there is a reason against it. what: the
-- products, for explain; against, untiled: reasons against pairs and against tile registers.
local function choose(plan, list, scheme, what, against, untiled)
  local own = isas.paired(plan.isa, scheme.b)
  if not own then return nil end
  local few, found = few_queries(plan, list), choices.against(against, plan, list)
  local no_tiles = not found and own.tiled and choices.against(untiled, plan, list)
  if few or no_tiles then own = isas.by_vectors(own) end
  if not few and slow(plan, own) then found = found or SLOW end -- few queries wait for memory, and pairs are smaller
  if found then
    choices.say(plan.why, ("no pairs in %s"):format(what), found)
  else
    choices.add(plan.why, own.f16_sums and "halves" or "pairs")
  end
  if no_tiles then choices.say(plan.why, ("no tiles in %s"):format(what), no_tiles) end
  return not found and own or nil
end

-- The scheme of products with weights: that of the plan, or one of pairs.
local function choose_products(plan, list, what, against)
  if plan.scheme.integers then return plan.scheme end
  local scheme = choose(plan, list, plan.scheme, what, against, {})
  if scheme and plan.weights.scheme.scales then choices.add(plan.why, "widened_once") end
  scheme = scheme or plan.scheme
  local by_halves = isas.by_halves(plan.isa, scheme)
  if by_halves and plan.cfg.q_lanes == "queries" and not plan.feeds then
    choices.say(plan.why, "no products by halves of words", "q_lanes = queries asks for other lanes")
  elseif by_halves then
    choices.add(plan.why, "deinterleaved")
    return by_halves
  end
  return scheme
end

-- That of the feed-forward, for its plan, where it has a type of its own.
function M.choose_feeding(feeding, list) return choose_products(feeding, list, "the feed-forward", against_products) end

-- The schemes of products with weights and of attention, `products` and `attention`. They use pairs if the ISA has
-- these and there is no reason against it. list: that of the formula.
function M.choose(plan, list)
  local chosen = { products = plan.scheme, attention = graph.attend(list).scheme }
  if folds(plan, list) then
    choices.add(plan.why, "folded")
    return chosen
  end
  local known = plan
  if graph.scheme(list) then chosen.products = choose_products(plan, list, "projections", against_projections) end
  if chosen.products.group > 1 and not chosen.products.integers then
    known = setmetatable({ weights = { scheme = chosen.products } }, { __index = plan })
  end
  chosen.attention = choose(known, list, chosen.attention, "attention", against_attention, against_tiles)
    or chosen.attention
  return chosen
end

-- Keys, queries or values in pairs for attention: pairs of columns, or of rows for values. fields: more fields of the
-- tensor.
function M.in_pairs(attend, tensor, fields)
  local along = tensor.operand == "values" and "rows" or "columns"
  return tensors.with(layouts.pairs(tensor, along, attend.scheme), fields)
end

-- The words in a row of an input with `width` numbers.
function M.words_of_row(isa, scheme, width) return tiles.round_up(width, isa.lanes) // scheme.group end

-- Each head of the context begins with a new word, so an odd dv is padded with zeros, in the rows of Wo as well.
local function padded_output(plan, list)
  local output, width = graph.output(list), graph.attend(list).out
  if width % 2 == 0 then return list end
  choices.add(plan.why, "ragged")
  local heads, macs = graph.attend(list).heads, output:macs()
  return graph.edited(list, { [output] = { graph.with(output, {
    steps = heads * tiles.round_up(width, 2), macs = function() return macs end,
    weights = graph.with(output.weights, { steps = width, heads = heads, along = "row" }) }) } })
end

-- The list with the operands of a scheme's products in pairs.
local function products_in_pairs(plan, list, scheme)
  local output = graph.output(list)
  if output and output.scheme == scheme and not graph.attend(list).passes then
    local context = tensors.with(graph.attend(list).context, { pairs = true, scheme = scheme })
    list = padded_output(plan, graph.replaced(list, graph.attend(list).context, context))
  end
  return conversions.of_operands(list, "narrow", scheme, function(input, stage)
    local words = M.words_of_row(plan.isa, scheme, input.row)
    return tensors.workspace(conversions.name("pairs_", input, stage),
      graph.with(layouts.words(scheme, stage.rows, words), { head = 0 }))
  end)
end

-- The list of stages, with inputs, keys, values and context in pairs.
function M.rewrite(plan, list)
  local attend = graph.attend(list)
  local queries, ragged = graph.projection(list, attend.queries), conversions.ragged(attend)
  if ragged then choices.add(plan.why, "ragged") end
  local function pair(stage, fields)
    list = graph.replaced(list, stage.c, M.in_pairs(attend, stage.c, fields))
  end
  for _, operand in ipairs(attend.scheme.group > 1 and { attend.keys, attend.values } or {}) do
    local stage = graph.projection(list, operand)
    local has_own_rows = operand == attend.keys and ragged -- of float32, for stage key_rows
    if stage and stage.c.at == "workspace" and not (stage.c.staged or has_own_rows) then
      pair(stage, { in_place = stage.qk ~= nil })
    end
  end
  if attend.scheme.tiled and queries and not (queries.merged or attend.qk or ragged) then
    pair(queries, { scale = attend.query_scale })
    choices.add(plan.why, "query_pairs")
  end
  for _, scheme in ipairs(graph.product_schemes(list)) do
    if scheme.group > 1 and not scheme.integers then list = products_in_pairs(plan, list, scheme) end
  end
  return list
end

return M
