-- Algebra on the weights, exact in real arithmetic: it decides which matrices are multiplied with each other, and when.
--
-- For a head, S = (X Wq + bq) (Xk Wk + bk)^T and Y = P (Xv Wv + bv) Wo, summed over the heads. Each of the pairs Wq, Wk
-- and Wv, Wo can be multiplied in three ways:
--
--   project  K = Xk Wk, V = Xv Wv: a row for every key, as the formula says
--   absorb   S = ((X Wq + bq) Wk^T) Xk^T and Y = ((P Xv) Wv) Wo: for few queries and many keys
--   merge    S = (X (Wq Wk^T) + bq Wk^T) Xk^T and Y = (P Xv) (Wv Wo): the weights are multiplied once, when packing;
--            pays if d_model is below 2 dk, most of all with one wide head
--
-- The fewest flops win. Biases:
--
--   bk   its terms are the same for all keys of a query, so softmax drops them. With rope they differ by key, and
--        Wq and Wk cannot be multiplied
--   bv   each row of P sums to one, so bv becomes bv Wo in the output's bias. It stays if a row may see no key, because
--        that row of P is zero, and if heads share keys and values. Matrices of shared heads are not merged
--
-- With a sink, or if scores are an output, none of this holds, and the formula is kept.

local choices = require "base.choices"
local graph = require "graph.init"
local matrices = require "graph.matrices"
local tensors = require "graph.tensor"
local types = require "machine.types"

local M = {}

-- By the formula, an infinite number in a row of Xk becomes dk infinite products of either sign, so the score is NaN.
-- In one case of 2^(dk - 1) it is -inf, a weight of zero. A score computed from the row itself is -inf in half of the
-- cases. In self-attention the value is infinite too, so the result is NaN nevertheless, but `probs` would show the
-- difference. In cross-attention infinite scores are made NaN, so the rare case differs. It is frequent with a small
-- dk, which is excluded.
local function keys_allowed(cfg)
  if cfg.probs then return false end
  return cfg.attention == "self" or cfg.dk >= 16
end

local function shared(cfg) return cfg.h_kv < cfg.h end

local function drop_biases(list, cfg, scores, why)
  local attend = graph.attend(list)
  local keys, values = graph.projection(list, attend.keys), graph.projection(list, attend.values)
  local output = graph.output(list)
  if keys and #scores.changes == 0 and not keys.qk then
    choices.add(why, "no_bk")
    list = graph.edited(list, { [keys] = { graph.with(keys, { bias = false }) } })
  end
  if scores.keyless or shared(cfg) or not (values and output) then return list end
  choices.add(why, "bv_in_output")
  local of_values = { a = "bv", b = "wo", inner = cfg.h * cfg.dv }
  local bias = { section = "bo", text = "bo + bv wo", terms = { { a = "bo" }, of_values } }
  return graph.edited(list, { [values] = { graph.with(values, { bias = false }) },
                              [output] = { graph.with(output, { bias = bias }) } })
end

-- Attention that reads an input instead of the keys or values that were projected from it; `instead` says why, in
-- words.
local function reading(attend, name, instead, fields)
  local told = graph.with(attend.instead, { [name] = "the inputs themselves; " .. instead })
  return graph.with(attend, graph.with(fields, { instead = told }))
end

local rewrites = {}

function rewrites.absorb_keys(list, cfg, keys)
  local attend = graph.attend(list)
  local query = graph.product {
    name = "key_query", nest = "lanes", per = "head", a = attend.queries, c = tensors.task "kq", rows = cfg.seq,
    scheme = keys.scheme, steps = cfg.dk, cols = keys.steps, heads = cfg.h,
    weights = graph.matrix("wk", { text = "wk^T", a_flipped = true, along = "row", width = cfg.dk, heads = cfg.h_kv }),
  }
  return graph.edited(list, { [keys] = {}, [attend] = { query, reading(attend, "keys", "Wk is applied to the queries", {
    queries = query.c, keys = keys.a, depth = keys.steps, test_scores = cfg.attention == "cross" }) } })
end

function rewrites.merge_keys(list, cfg, keys)
  local attend = graph.attend(list)
  local queries = graph.projection(list, attend.queries)
  local function times_wk(a)
    return graph.matrix(a, { text = a .. " wk^T", b = "wk", b_flipped = true, inner = cfg.dk, along = "first",
                             width = cfg.dk, heads = cfg.h })
  end
  local merged = graph.with(queries, {
    cols = keys.steps, weights = times_wk "wq", bias = times_wk "bq", merged = true })
  return graph.edited(list, { [queries] = { merged }, [keys] = {}, [attend] = {
    reading(attend, "keys", "the queries' weights are Wq Wk^T", {
      keys = keys.a, depth = keys.steps, test_scores = cfg.attention == "cross" }) } })
end

function rewrites.absorb_values(list, cfg, values)
  local attend = graph.attend(list)
  local context = graph.product {
    name = "value_context", nest = "lanes", per = "head", a = tensors.task "c", c = attend.context, rows = cfg.seq,
    scheme = values.scheme, steps = values.steps, cols = cfg.dv, heads = cfg.h, weights = values.weights,
    bias = values.bias,
  }
  return graph.edited(list, { [values] = {}, [attend] = {
    reading(attend, "values", "Wv is applied to the context", { values = values.a, breadth = values.steps }),
    context } })
end

function rewrites.merge_values(list, cfg, values)
  local attend, output, d = graph.attend(list), graph.output(list), values.steps
  local merged = graph.with(output, {
    steps = cfg.h * d, weights = { section = "wo", text = "wv wo", a = "wv", b = "wo", inner = cfg.dv, steps = d } })
  return graph.edited(list, { [values] = {}, [output] = { merged }, [attend] = {
    reading(attend, "values", "the output's weights are Wv Wo", { values = values.a, breadth = d, out = d }) } })
end

-- A cache must hold keys and values as in the formula.
function M.applies(plan)
  local cfg, scores = plan.cfg, plan.scores
  return cfg.fold == "auto" and cfg.cache == "none" and #scores.extras == 0 and not scores.shown
end

-- The list with the fewest flops; of equals, the first.
function M.rewrite(plan, list)
  local cfg, scores, why = plan.cfg, plan.scores, plan.why
  list = drop_biases(list, cfg, scores, why)
  local attend, own = graph.attend(list), graph.scheme(list)
  -- With a mask, keys need a buffer with extra rows at its end, which inputs do not have.
  if own then choices.add(why, scores.masked and "masked_unfolded" or "fold") end
  if plan.stored.quant then
    choices.say(why, "no products of weights", plan.stored.scheme.scales and "their integers have scales of their own"
      or "those would be rounded, in place of the weights")
  end
  if scores.masked or plan.stored.quant or not own or own.group > 1 or attend.scheme.group > 1 then return list end
  -- The best list for the stage `projected`; other: the stage with the other matrix of the pair, if there is one.
  local function least(projected, other, absorb, merge)
    if not projected or projected.a.at ~= "input" then return list end -- attention reads inputs alone
    local best, merges = list, other and not shared(cfg)
    for _, rewrite in ipairs { absorb, merges and merge or nil } do
      local rewritten = rewrite(list, cfg, projected)
      if graph.macs(rewritten) < graph.macs(best) then best = rewritten end
    end
    return best
  end
  -- With rope or a norm, another matrix stands between Wq and Wk for each query and key.
  if #scores.changes == 0 and not attend.qk and keys_allowed(cfg) then
    list = least(graph.projection(list, attend.keys), graph.projection(list, attend.queries),
      rewrites.absorb_keys, rewrites.merge_keys)
  end
  return least(graph.projection(list, attend.values), graph.output(list), rewrites.absorb_values,
    rewrites.merge_values)
end

-- The share of a list's multiply-adds that remains.
function M.left(plan, list)
  if not M.applies(plan) then return 1.0 end
  return graph.macs(M.rewrite(setmetatable({ why = {} }, { __index = plan }), list)) / graph.macs(list)
end

-- The names of bits in mhagen.h (MHAGEN_FOLD_...) for a plan whose operands are rounded, because folding changes what
-- is rounded. Two more bits say how attention weights and packed weights are made.
function M.bits(plan)
  local bits, cfg, list, attend = {}, plan.cfg, plan.stages, plan.attend
  local function add(is, name) bits[#bits + 1] = is and "MHAGEN_FOLD_" .. name or nil end
  local rounds = plan.arrays.round
  for _, scheme in ipairs(graph.schemes(list)) do rounds = rounds or scheme.b ~= types.f32 end
  if not (rounds or plan.stored.quant) then return bits end
  local keys, values, output = matrices.projects(cfg, "k"), matrices.projects(cfg, "v"), graph.output(list)
  local projected, merged = graph.projection(list, attend.keys), graph.maker(list, attend.queries)
  merged = merged and merged.merged
  add(projected and not projected.bias, "BK")
  add(values and output and output.bias.terms[2], "BV")
  add(keys and not projected and not merged, "ABSORB_K")
  add(keys and not projected and merged, "MERGE_K")
  add(values and graph.maker(list, attend.context), "ABSORB_V")
  add(values and output and output.weights.b, "MERGE_V")
  add(plan.attend.scheme.powers, "POWERS")
  add(plan.stored ~= plan.weights, "WIDENED")
  add(plan.feeding ~= plan and plan.feeding.stored ~= plan.feeding.weights, "FFN_WIDENED")
  return bits
end

return M
