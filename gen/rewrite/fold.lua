-- Algebra on the weights, exact in real arithmetic: which products are made of which matrices.
--
-- For a head, S = (X Wq + bq) (Xk Wk + bk)^T and Y = P (Xv Wv + bv) Wo, summed over the heads. Either
-- pair of matrices can meet in three ways:
--
--   project  K = Xk Wk, V = Xv Wv: a row for every key, as the formula says
--   absorb   S = ((X Wq + bq) Wk^T) Xk^T and Y = ((P Xv) Wv) Wo: few queries, many keys
--   merge    S = (X (Wq Wk^T) + bq Wk^T) Xk^T and Y = (P Xv) (Wv Wo): the products of weights are made
--            once, when packing; pays where d_model is below 2 dk, with one wide head above all
--
-- The least flops win. Biases:
--
--   bk   its terms are the same for all keys of a query, so softmax drops them; with rope they differ by key, and Wq
--        and Wk cannot be multiplied
--   bv   each row of P sums to one, so it becomes bv Wo in the output's bias. It stays where a row may see no key,
--        since its P is zero, and where heads share keys and values. Matrices of these are not merged
--
-- With a sink, or where scores are an output, neither holds, and the formula is kept.

local choices = require "base.choices"
local graph = require "graph.init"
local matrices = require "graph.matrices"
local tensors = require "graph.tensor"
local types = require "machine.types"

local M = {}

-- By the formula an infinite key gives dk products of either sign, and so a score of NaN. In one case of 2^(dk - 1) it
-- is -inf, a weight of zero. A score made from the key itself is -inf in half of the cases. In self-attention the
-- value, infinite as well, makes up for it, but not in `probs`; with keys of their own, scores are tested, and the rare
-- case is not left out where it is frequent.
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

-- Attention that reads an input in the place of the keys or values that were projected of it, and what is done instead.
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

-- A cache holds keys and values as the formula has them.
function M.applies(plan)
  local cfg, scores = plan.cfg, plan.scores
  return cfg.fold == "auto" and cfg.cache == "none" and #scores.extras == 0 and not scores.shown
end

-- The list with the least flops. Of equals the first.
function M.rewrite(plan, list)
  local cfg, scores, why = plan.cfg, plan.scores, plan.why
  list = drop_biases(list, cfg, scores, why)
  -- Behind a mask keys stand in a buffer with a margin, which inputs do not have.
  if #list > 1 then choices.add(why, scores.masked and "masked_unfolded" or "fold") end
  if plan.stored.quant then
    choices.say(why, "no products of weights", plan.stored.scheme.scales and "their integers have scales of their own"
      or "those would be rounded, in place of the weights")
  end
  local attend, own = graph.attend(list), graph.scheme(list)
  if scores.masked or plan.stored.quant or not own or own.group > 1 or attend.scheme.group > 1 then return list end
  -- `projected`, its matrix met by that of the stage `other`, if there is one.
  local function least(projected, other, absorb, merge)
    if not projected then return list end
    local best, merges = list, other and not shared(cfg)
    for _, rewrite in ipairs { absorb, merges and merge or nil } do
      local rewritten = rewrite(list, cfg, projected)
      if graph.macs(rewritten) < graph.macs(best) then best = rewritten end
    end
    return best
  end
  -- What stands between Wq and Wk is another matrix for each query and key.
  if #scores.changes == 0 and not attend.qk and keys_allowed(cfg) then
    list = least(graph.projection(list, attend.keys), graph.projection(list, attend.queries),
      rewrites.absorb_keys, rewrites.merge_keys)
  end
  return least(graph.projection(list, attend.values), graph.output(list), rewrites.absorb_values,
    rewrites.merge_values)
end

-- The share of the multiply-adds that it leaves of a list.
function M.left(plan, list)
  if not M.applies(plan) then return 1.0 end
  return graph.macs(M.rewrite(setmetatable({ why = {} }, { __index = plan }), list)) / graph.macs(list)
end

-- What of it is in a plan whose operands are rounded, by the names of its bits in mhagen.h: it changes what is rounded;
-- and how weights of attention are.
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
  add(plan.widens, "WIDENED")
  return bits
end

return M
