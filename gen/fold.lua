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
-- The least flops win. The terms with bk are the same for all keys of a query, so softmax drops them;
-- each row of P sums to one, so bv becomes bv Wo in the output's bias; where a row may see no key, its P is
-- zero, and bv stays. Where heads share keys and values, matrices of one are not merged with those of another,
-- and bv stays as well.

local choices = require "choices"
local graph = require "graph"

local M = {}

-- An infinite key gives, by the formula, dk products of either sign, and so a score of NaN, but for one
-- case in 2^(dk - 1): a score of -inf, a weight of zero. A score made from the key itself is -inf in
-- half of the cases. In self-attention the value, infinite as well, makes up for it, but not in `probs`;
-- with keys of their own, scores are tested, and the rare case is not left out where it is frequent.
local function keys_allowed(cfg)
  if cfg.probs then return false end
  return cfg.attention == "self" or cfg.dk >= 16
end

local function shared(cfg) return cfg.h_kv < cfg.h end

local function drop_biases(list, cfg, scores)
  local values, output = graph.find(list, "values"), graph.find(list, "output")
  if #scores.changes == 0 then -- softmax drops what is added to all scores of a query
    list = graph.edited(list, { keys = { graph.with(graph.find(list, "keys"), { bias = false }) } })
  end
  if scores.keyless or shared(cfg) then return list end
  local bias = { text = "bo + bv wo", terms = { { a = "bo" }, { a = "bv", b = "wo", inner = cfg.h * cfg.dv } } }
  return graph.edited(list, { values = { graph.with(values, { bias = false }) },
                              output = { graph.with(output, { bias = bias }) } })
end

-- Attention that reads an input in the place of the keys or values that were projected of it, and what is done instead.
local function reading(list, name, instead, fields)
  local attend = graph.find(list, "attend")
  fields.instead = graph.with(attend.instead, { [name] = instead })
  return graph.with(attend, fields)
end

local rewrites = {}

function rewrites.absorb_keys(list, cfg)
  local keys = graph.find(list, "keys")
  local query = graph.product {
    name = "key_query", kind = "apply", per = "head", letter = "k", rows = cfg.seq, steps = cfg.dk, cols = keys.steps,
    heads = cfg.h, weights = { text = "wk^T", a = "wk", a_flipped = true, along = "row", width = cfg.dk,
                heads = cfg.h_kv },
  }
  local attend = reading(list, "keys", "Wk is applied to the queries", {
    keys = keys.a, depth = keys.steps, test_scores = cfg.attention == "cross" })
  return graph.edited(list, { keys = {}, attend = { query, attend } })
end

function rewrites.merge_keys(list, cfg)
  local keys = graph.find(list, "keys")
  local function times_wk(a)
    return { text = a .. " wk^T", a = a, b = "wk", b_flipped = true, inner = cfg.dk, along = "first", width = cfg.dk,
             heads = cfg.h }
  end
  local queries = graph.with(graph.find(list, "queries"), {
    cols = keys.steps, weights = times_wk "wq", bias = times_wk "bq", merged = true })
  local attend = reading(list, "keys", "the queries' weights are Wq Wk^T", {
    keys = keys.a, depth = keys.steps, test_scores = cfg.attention == "cross" })
  return graph.edited(list, { queries = { queries }, keys = {}, attend = { attend } })
end

function rewrites.absorb_values(list, cfg)
  local values = graph.find(list, "values")
  local context = graph.product {
    name = "value_context", kind = "apply", per = "head", letter = "v", rows = cfg.seq, steps = values.steps,
    cols = cfg.dv, heads = cfg.h, weights = values.weights, bias = values.bias,
  }
  local attend = reading(list, "values", "Wv is applied to the context", { values = values.a, breadth = values.steps })
  return graph.edited(list, { values = {}, attend = { attend, context } })
end

function rewrites.merge_values(list, cfg)
  local values = graph.find(list, "values")
  local d = values.steps
  local output = graph.with(graph.find(list, "output"), {
    steps = cfg.h * d, weights = { text = "wv wo", a = "wv", b = "wo", inner = cfg.dv, steps = d } })
  local attend = reading(list, "values", "the output's weights are Wv Wo", { values = values.a, breadth = d, out = d })
  return graph.edited(list, { values = {}, output = { output }, attend = { attend } })
end

-- The list with the least flops. Of equals the first.
function M.rewrite(list, plan)
  local cfg, scores, why = plan.cfg, plan.scores, plan.why
  if cfg.fold ~= "auto" then return list end
  choices.add(why, "fold")
  list = drop_biases(list, cfg, scores)
  -- Behind a mask keys stand in a buffer with a margin, which inputs do not have.
  if scores.masked then return list end
  local function least(absorb, merge)
    local best = list
    for _, rewrite in ipairs { absorb, not shared(cfg) and merge or nil } do
      local other = rewrite(list, cfg)
      if graph.macs(other) < graph.macs(best) then best = other end
    end
    return best
  end
  if #scores.changes == 0 and keys_allowed(cfg) then list = least(rewrites.absorb_keys, rewrites.merge_keys) end
  return least(rewrites.absorb_values, rewrites.merge_values)
end

return M
