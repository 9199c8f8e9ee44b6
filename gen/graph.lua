-- The kernel as a list of stages over tensors, as the formula says it; rewrites and the plan change the list.
--
-- A tensor: name; at = "input", "workspace" (of a block of heads) or "lanes" (with lanes over queries, group after
-- group); row = numbers from row to row, head = from head to head, both of what scores and context read.
--
-- A stage: name; kind, whose file in stage/ has all about it; macs, its multiply-adds for a batch entry. A product
-- C = A B + bias also: letter of the matrix that it uses up; a, c; rows, steps, and cols of each of `heads` heads;
-- weights and bias, matrices as they are packed:
--   { text, a, b = a matrix or the product of two, a_flipped and b_flipped where they are transposed, inner = columns
--     of a in that product, along = "column", "row" or "first": what moves on by `width` from one of its `heads`
--     heads to the next },
-- and the scale of both. Keys and values have h_kv heads, each of which h / h_kv heads of queries share.

local score = require "score.init"

local M = {}

local function input(name, width) return { name = name, at = "input", row = width, head = 0 } end

local function macs(stage) return 1.0 * stage.heads * stage.rows * stage.cols * stage.steps end

-- The multiply-adds of a list.
function M.macs(list)
  local sum = 0.0
  for _, stage in ipairs(list) do sum = sum + stage:macs() end
  return sum
end

-- A product of `rows` rows, its matrix `width` columns wide for each head.
function M.product(stage)
  stage.kind, stage.macs, stage.scale = stage.kind or "project", macs, stage.scale or 1.0
  return stage
end

-- Of the heads of a stage or matrix, those in a block of heads.
function M.in_block(plan, of) return of.heads // plan.head_blocks end

-- A list with other stages in the place of some: edits { [name] = list }.
function M.edited(list, edits)
  local out = {}
  for _, stage in ipairs(list) do
    local there = edits[stage.name] or { stage }
    table.move(there, 1, #there, #out + 1, out)
  end
  return out
end

-- A stage with other fields.
function M.with(stage, fields)
  local copy = {}
  for key, value in pairs(stage) do copy[key] = value end
  for key, value in pairs(fields) do copy[key] = value end
  return copy
end

function M.find(list, name)
  for _, stage in ipairs(list) do
    if stage.name == name then return stage end
  end
end

-- log2(e) / sqrt(dk) goes into Wq and bq, so that the weights are exp2 of the plain scores.
function M.of(cfg, scores)
  local d, h = cfg.d_model, cfg.h
  local cross = cfg.attention == "cross"
  local widths = { q = d, k = cfg.k_width, v = cfg.v_width }
  local function projection(name, letter, rows, width)
    local heads = letter == "q" and h or cfg.h_kv
    local source = input(cross and letter or "q", widths[letter])
    return M.product {
      name = name, letter = letter, a = source, rows = rows, steps = source.row, cols = width, heads = heads,
      c = { name = name, at = "workspace", head = width },
      weights = { text = "w" .. letter, a = "w" .. letter, along = "column", width = width, heads = heads },
      bias = { text = "b" .. letter, a = "b" .. letter, along = "column", width = width, heads = heads },
    }
  end
  local queries = projection("queries", "q", cfg.seq, cfg.dk)
  local keys = projection("keys", "k", cfg.seq_kv, cfg.dk)
  local values = projection("values", "v", cfg.seq_kv, cfg.dv)
  queries.scale = 1.4426950408889634 / math.sqrt(cfg.dk)
  local context = { name = "context", at = "lanes" }
  local attend = {
    name = "attend", kind = "attend", heads = h, pairs = score.pairs_seen(scores), keys = keys.c, values = values.c,
    share = h // cfg.h_kv, depth = cfg.dk, breadth = cfg.dv, out = cfg.dv, test_scores = false, instead = {},
    macs = function(stage) return 1.0 * stage.heads * stage.pairs * (stage.depth + stage.breadth) end,
  }
  local output = M.product {
    name = "output", kind = "output", letter = "o", a = context, c = { name = "y", at = "input" },
    rows = cfg.seq, steps = h * cfg.dv, cols = cfg.y_width, heads = 1,
    weights = { text = "wo", a = "wo", steps = h * cfg.dv },
    bias = { text = "bo", terms = { { a = "bo" } } },
  }
  return { queries, keys, values, attend, output }
end

return M
