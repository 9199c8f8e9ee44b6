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
-- zero, and bv stays.

local score = require "score.init"

local M = {}

-- Multiply-adds of the pair that meets over n queries and m keys, inner width `width` of a head, with
-- `pairs` scores a head.
local function counts(cfg, width, pairs)
  local n, m, d, h = cfg.seq, cfg.seq_kv, 1.0 * cfg.d_model, cfg.h
  return {
    project = h * (d * width * (n + m) + pairs * width),
    absorb = h * (2 * n * d * width + pairs * d),
    merge = h * (n * d * d + pairs * d),
  }
end

-- An infinite key gives, by the formula, dk products of either sign, and so a score of NaN, but for one
-- case in 2^(dk - 1): a score of -inf, a weight of zero. A score made from the key itself is -inf in
-- half of the cases. In self-attention the value, infinite as well, makes up for it, but not in `probs`;
-- with keys of their own, scores are tested, and the rare case is not left out where it is frequent.
local function keys_allowed(cfg)
  if cfg.probs then return false end
  return cfg.attention == "self" or cfg.dk >= 16
end

local ways = { "project", "absorb", "merge" } -- of equals the first

-- { qk =, vo = one of `ways` each; without = the biases that are folded away, by the letter of their matrix;
-- query = columns of a head's queries as they are projected; depth = K steps of a score, breadth = columns of a head's
-- context, out = those of its part of the output product; test_scores = whether scores that are not
-- finite must make their row NaN; flops = what is spent, a float }
function M.choose(cfg, scores)
  local auto = cfg.fold == "auto"
  local shifts = #scores.changes == 0 -- softmax drops what is added to all scores of a query
  local fold = { without = { k = auto and shifts, v = auto and not scores.keyless } }
  local pairs_seen, formula, spent = score.pairs_seen(scores), 0, 0
  local function choose(width, allowed)
    local count, best = counts(cfg, width, pairs_seen), "project"
    -- Behind a mask keys stand in a buffer with a margin, which inputs do not have.
    if auto and allowed and not scores.masked then
      for _, way in ipairs(ways) do
        if count[way] < count[best] then best = way end
      end
    end
    formula, spent = formula + count.project, spent + count[best]
    return best
  end
  local d = cfg.d_model
  fold.qk, fold.vo = choose(cfg.dk, shifts and keys_allowed(cfg)), choose(cfg.dv, true)
  fold.query = fold.qk == "merge" and d or cfg.dk
  fold.depth = fold.qk == "project" and cfg.dk or d
  fold.breadth = fold.vo == "project" and cfg.dv or d
  fold.test_scores = fold.qk ~= "project" and cfg.attention == "cross"
  fold.out = fold.vo == "merge" and d or cfg.dv
  fold.formula, fold.flops = 2.0 * formula * cfg.batch, 2.0 * spent * cfg.batch
  return fold
end

return M
