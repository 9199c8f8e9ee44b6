-- Rewrites that insert stages of stage/convert.lua. Their results replace the tensors that they read.
--
--   of_operands(list, kind, scheme, make)   projections of Q, K and V, where they multiply by a scheme, read
--                  make(input, stage), a new tensor, in place of each input; stage: the first of them. Products of the
--                  feed-forward likewise read it in place of rows that the layer has made
--   name(prefix, input, stage)   that of such a tensor
--   round, widen                    the same for all inputs that need it
--   context_rows                    before the output
--   key_rows, value_rows            before attention
--
-- Stages that convert inputs come before all others: one for a run, and one (fill) for the filling of a cache. Their
-- inputs are { name, of = the tensor that is read, unless it is the input as given, to = the new tensor, rows, cols }
-- each.

local choices = require "base.choices"
local graph = require "graph.init"
local layouts = require "graph.layout"
local options = require "options.init"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"
local ways = require "way.init"

local M = {}

-- ---- inputs ----

-- Adds an input to the stage of a kind. `stages` has one such stage for each value of `fill`.
local function add(stages, kind, fill, input)
  fill = fill or false
  stages[fill] = stages[fill] or graph.moving { name = fill and kind .. "_filling" or kind, kind = kind, inputs = {},
                                                fill = fill }
  table.insert(stages[fill].inputs, input)
end

-- The list with these stages at place `first`.
local function in_front(list, stages, first)
  for _, fill in ipairs { true, false } do
    if stages[fill] then table.insert(list, first, stages[fill]) end
  end
  return list
end

-- Whether the product that makes rows may store them as words: these are pairs of its columns without any padding.
local function stores_words(maker, kind, words, steps)
  return kind == "narrow" and maker.nest == "groups" and ways.interleave(words.scheme) == 1
    and words.words * words.scheme.group == steps
end

-- The conversions of rows of the layer that its products need.
local function of_layer(made) return tensors.rows(made.name, graph.with(made, { scaled = "rows" })) end

-- The list with a stage in front of each product of the feed-forward, unless what it would make can be stored at once.
-- Products that read the same rows share it. known: what has been made of inputs, by their names.
local function of_rows(list, kind, scheme, make, known)
  local output, edits, read = graph.output(list), {}, {}
  for _, to in pairs(known) do read[to] = true end
  for _, stage in ipairs(list) do
    local a = stage.a
    if stage.weights and stage.scheme == scheme and a.at == "rows" and stage ~= output and not read[a] then
      local there, maker = {}, graph.maker(list, a)
      local made = not known[a.name] and make(a, stage)
      local to = made and of_layer(made) or known[a.name]
      if made and stores_words(maker, kind, made, stage.steps) and not graph.is_beside(list, a) then
        to = layouts.pairs(to, "columns", to.scheme)
        local before = edits[maker] or { maker }
        before[#before] = graph.with(before[#before], { c = to })
        edits[maker] = before
      elseif made then
        local name = kind .. "_" .. a.name
        there[1] = graph.moving { name = name, phase = name, kind = kind, inputs = {
          { name = a.name, of = a, to = to, rows = stage.rows, cols = stage.steps } } }
      end
      known[a.name] = to
      there[#there + 1] = graph.with(stage, { a = to })
      edits[stage] = there
    end
  end
  return graph.edited(list, edits)
end

-- Whether products of the feed-forward with this scheme read an input of attention.
local function is_shared(list, input, scheme)
  for _, stage in ipairs(list) do
    if stage.name == "up" and stage.a == input and stage.scheme == scheme then return true end
  end
end

-- The products that read the inputs of attention. Without attention that is the output's.
local function readers(list)
  local found, attend = {}, graph.attend(list)
  if attend.passes then return { graph.output(list) } end
  for _, operand in ipairs { attend.queries, attend.keys, attend.values } do
    found[#found + 1] = graph.projection(list, operand)
  end
  return found
end

function M.name(prefix, input, stage) return prefix .. (stage.apart and "ffn_" or "") .. input.name end

function M.of_operands(list, kind, scheme, make)
  local known, stages, edits, attend = {}, {}, {}, graph.attend(list)
  for _, stage in ipairs(readers(list)) do
    if stage.scheme ~= scheme then break end -- which all have
    local input = stage.a
    if not known[input.name] then
      local made = make(input, stage)
      known[input.name] = (attend.passes or is_shared(list, input, scheme)) and of_layer(made) or made
      add(stages, kind, stage.fill, { name = input.name, of = input, to = known[input.name], rows = stage.rows,
                                      cols = input.row })
    end
    edits[stage] = { graph.with(stage, { a = known[input.name] }) }
    if attend.passes then edits[attend] = { graph.with(attend, { context = known[input.name] }) } end
  end
  return of_rows(in_front(graph.edited(list, edits), stages, graph.behind_inputs(list)), kind, scheme, make, known)
end

local function rounds(scheme) return scheme.a.round and scheme.group == 1 end

-- The list with a tensor whose numbers are rounded to the type of a scheme's operands.
local function held(list, tensor, scheme)
  return graph.replaced(list, tensor, layouts.held(tensor, scheme))
end

-- Rounds keys and values when they are stored, if attention reads them as their projection leaves them. With scales for
-- groups, chunks are added to what is stored, so it cannot be rounded.
local function held_rows(plan, list)
  local quant, attend = plan.weights.quant, graph.attend(list)
  if quant and quant.group then return list end
  for _, operand in ipairs { attend.keys, attend.values } do
    local stage = graph.projection(list, operand)
    if stage and stage.c.at == "workspace" and not stage.qk and not stage.c.staged then
      list = held(list, stage.c, attend.scheme)
    end
  end
  return list
end

-- Inputs become rounded copies. Results of products are rounded when they are stored, and weights when they are packed
-- (plan/pack.lua).
function M.round(plan, list)
  local in_attention, in_products = rounds(graph.attend(list).scheme), {}
  for _, scheme in ipairs(graph.product_schemes(list)) do
    in_products[#in_products + 1] = rounds(scheme) and scheme or nil
  end
  if in_attention or in_products[1] then choices.add(plan.why, "rounded") end
  if in_attention then list = held_rows(plan, list) end
  for _, scheme in ipairs(in_products) do
    local output, context = graph.output(list), graph.attend(list).context
    local read = output and output.scheme == scheme and not graph.maker(list, context)
    if read and context.at == "lanes" then list = held(list, context, scheme) end -- as attention stores it
    list = M.of_operands(list, "round", scheme, function(input, stage)
      return tensors.workspace(M.name("rounded_", input, stage), graph.with(input, { scheme = scheme }))
    end)
  end
  return list
end

function M.has_small_inputs(plan) return plan.arrays.round end

-- Widens all inputs that stages read as tensors. Stages that name an input (narrow) read it as it is.
function M.widen(plan, list)
  local cfg = plan.cfg
  local known, stages, out = {}, {}, {}
  local function wide(tensor, fill)
    if not (tensor and tensor.at == "input") then return tensor end
    if known[tensor.name] then return known[tensor.name] end
    local to = tensors.wide(tensor)
    add(stages, "widen", fill, { name = tensor.name, to = to, cols = graph.row(cfg, tensor.name),
                                 rows = tensor.name == "q" and cfg.seq or options.key_rows(cfg) })
    known[tensor.name] = to
    return to
  end
  for i, stage in ipairs(list) do
    local fill = stage.fill
    local a = stage.as_given and stage.a or wide(stage.a, fill)
    out[i] = graph.with(stage, { a = a, context = stage.passes and wide(stage.context),
                                 queries = wide(stage.queries, fill), keys = wide(stage.keys, fill),
                                 values = wide(stage.values, fill) })
  end
  return in_front(out, stages, 1)
end

-- ---- rows of words, as tile registers take them ----

function M.lacks_context_rows(_, list)
  local output = graph.output(list)
  return output and ways.of(output.scheme).rows_of_a and output.a.at == "lanes"
end

function M.context_rows(plan, list)
  local output = graph.output(list)
  local count = tiles.words(output.scheme, output.steps)
  local rows = tensors.rows("context_rows", tensors.with(layouts.words(output.scheme, plan.cfg.seq, count),
    { scales = output.a.scales, scaled = output.a.scaled }))
  local stage = graph.moving { name = "context_rows", of = "context", a = output.a, c = rows, words = count }
  return graph.edited(list, { [output] = { stage, graph.with(output, { a = rows }) } })
end

-- Words in a row of K, without and with the padding to whole rows of tile registers.
local function words_of_keys(attend)
  local words = tiles.words(attend.scheme, attend.depth)
  return words, tiles.padded(attend.scheme, words)
end

-- Whether a head's columns do not fill whole words. Its words are then made from rows of float32.
function M.ragged(attend) return attend.depth % attend.scheme.group > 0 end

function M.has_short_keys(_, list)
  local attend = graph.attend(list)
  local words, row = words_of_keys(attend)
  return row > words or M.ragged(attend)
end

-- The rows of K that tiles of any group touch.
local function rows_touched(plan)
  local keys, scheme = plan.cfg.seq_kv, plan.attend.scheme
  local most = tiles.round_up(keys, scheme.group * scheme.pad)
  for _, group in ipairs(plan.groups) do most = math.max(most, tiles.round_up(keys, group.key_rows)) end
  return most
end

function M.key_rows(plan, list)
  local attend = graph.attend(list)
  local words, row = words_of_keys(attend)
  local to = tensors.workspace("key_rows", { row = row, head = rows_touched(plan) * row, scheme = attend.scheme })
  local stage = graph.moving { name = "key_rows", a = attend.keys, c = to, heads = plan.cfg.h_kv, words = words,
                               ragged = M.ragged(attend) }
  return graph.edited(list, { [attend] = { stage, graph.with(attend, { keys = to }) } })
end

function M.lacks_value_rows(_, list) return ways.of(graph.attend(list).scheme).rows_of_a end

function M.value_rows(plan, list)
  local attend, heads = graph.attend(list), plan.cfg.h_kv
  local scheme = attend.scheme
  local rows = graph.in_block(plan, { heads = heads }) * attend.breadth
  local layout = layouts.words(scheme, rows, tiles.words(scheme, plan.cfg.seq_kv))
  local to = tensors.workspace("value_rows", tensors.with(layout, { head = attend.breadth * layout.row }))
  local stage = graph.moving { name = "value_rows", a = attend.values, c = to, heads = heads, cols = attend.breadth }
  return graph.edited(list, { [attend] = { stage, graph.with(attend, { value_rows = to }) } })
end

return M
