-- The kernel as a list of stages over tensors, in the order of the formula. Rewrites change the list. Q, K, V or Y
-- without a projection has no stage: then attention reads the input, or writes y.
--
-- graph/tensor.lua has the fields of a tensor.
--
-- A stage:
--
--   name, kind      a kind is a file of stage/
--   macs            multiply-adds of a batch entry
--   behind          the name of an integer of a place: rows of c before those of this run
--   fill            true: the stage fills a cache, and is no part of a run
--
-- A product, C = A B + bias, has also:
--
--   a, c            tensors
--   rows, steps     of the product
--   heads, cols     heads, and the columns of each
--   weights, bias   matrices as they are packed
--   scale           of weights and bias
--   qk              of keys: the norm and rope of their rows (graph/qk.lua); attention has those of queries
--
-- A matrix as it is packed:
--
--   section                 of packed weights, with the name of the given matrix where there is one
--   text                    for comments
--   a, b                    a given matrix, or the product of two
--   a_flipped, b_flipped    whether they are transposed
--   inner                   columns of a in the product
--   along, width, heads     "column", "row" or "first": what moves by `width` from one of the heads to the next
--
-- Keys and values have h_kv heads. Each serves h / h_kv heads of queries. Attention has also:
--
--   touches         whether its tiles may touch rows behind the last key
--   of_group(plan, group, stage)   fills in the tiles of a group of queries, and returns their cost; if it is
--                                  missing, schedule/groups.lua does

local matrices = require "graph.matrices"
local options = require "options.init"
local score = require "score.init"
local tensors = require "graph.tensor"
local qk_of = require "graph.qk"
local types = require "machine.types"

local M = {}

local function macs(stage) return 1.0 * stage.heads * stage.rows * stage.cols * stage.steps end

-- The multiply-adds of a run.
function M.macs(list)
  local sum = 0.0
  for _, stage in ipairs(list) do sum = sum + (stage.fill and 0.0 or stage:macs()) end
  return sum
end

-- A product of `rows` rows, its matrix `width` columns wide for each head.
function M.product(stage)
  stage.kind, stage.macs, stage.scale = stage.kind or "project", macs, stage.scale or 1.0
  return stage
end

local function no_macs() return 0.0 end

-- A stage that multiplies nothing; its kind is its name, if it says none.
function M.moving(stage)
  stage.kind, stage.macs = stage.kind or stage.name, no_macs
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

-- The stages that pack something, in the order of the matrices that they multiply by. Copied keys, which may have gains
-- and tables of rope, stand where Wk would.
function M.by_matrix(list)
  local sorted = {}
  for _, name in ipairs(matrices.names) do
    for _, stage in ipairs(list) do
      local matrix = stage.weights and stage.weights.a or stage.of == "keys" and "wk"
      if matrix == name then sorted[#sorted + 1] = stage end
    end
  end
  return sorted
end

-- The same list of stages and tensors of its own: what a plan fills in leaves the given list as it is.
function M.copy(list)
  local copies = {}
  local function copy(value)
    if type(value) ~= "table" then return value end
    if copies[value] then return copies[value] end
    local own = {}
    copies[value] = own
    for key, inner in pairs(value) do own[key] = key == "type" and inner or copy(inner) end
    return own
  end
  return copy(list)
end

function M.find(list, name)
  for _, stage in ipairs(list) do
    if stage.name == name then return stage end
  end
end

-- The stage of that name if it projects, or nil.
function M.projection(list, name)
  local stage = M.find(list, name)
  return stage and stage.kind ~= "copy" and stage or nil
end

-- Numbers in a row of q, k, v or y, of all heads.
function M.row(cfg, name)
  if name == "q" then return matrices.projects(cfg, "q") and cfg.d_model or cfg.h * cfg.dk end
  return cfg[name .. "_width"]
end

-- The results that have a number for each head, query and key.
function M.sheets(cfg)
  local list = {}
  if cfg.probs then list[1] = "probs" end
  if cfg.scores ~= "none" then list[#list + 1] = "scores" end
  return list
end

-- Of what is not projected: the pointer, what it is in attention, the keys with its extents, and in words.
local INPUT, CONTEXT = "the inputs themselves; they are not projected", "the context itself; it is not projected"
local unprojected = {
  q = { name = "q", as = "queries", rows = "seq", heads = "h", width = "dk", instead = INPUT },
  k = { name = "k", as = "keys", rows = "seq_kv", heads = "h_kv", width = "dk", instead = INPUT },
  v = { name = "v", as = "values", rows = "seq_kv", heads = "h_kv", width = "dv", instead = INPUT },
  o = { name = "y", as = "context", rows = "seq", heads = "h", width = "dv", instead = CONTEXT },
}

-- The input, or y, in the place of the projection with a letter, as the config lays it out: the heads of a row side by
-- side, or the rows of a head. Or nil.
function M.unprojected(cfg, letter)
  if matrices.projects(cfg, letter) then return nil end
  local given = unprojected[letter]
  local heads, width = cfg[given.heads], cfg[given.width]
  local rows = given.rows == "seq" and cfg.seq or options.key_rows(cfg)
  return tensors.input_of_heads(given.name, heads, width, rows, cfg.layout == "bhsd")
end

-- Where keys or values outlive a run.
local function cached(cfg, stage)
  local type, grows, exact = types.of_cache[cfg.cache_dtype], cfg.cache == "append", cfg.cache_layout == "bhsd"
  if type == types.f32 then return tensors.cache(stage, grows, exact) end
  local side_by_side = stage.qk and stage.qk.all or cfg.norm_span == "all"
  return tensors.small_cache(stage, grows, exact, type, side_by_side)
end

-- What rounds rows of keys or values and keeps them, where the cache is of a smaller type.
local function cache_append(stage, a, cache)
  return M.moving { name = cache.name, of = stage.name, kind = "cache_append", a = a, c = cache, rows = stage.rows,
                    cols = stage.cols, heads = stage.heads, fill = stage.fill, behind = stage.behind }
end

-- What products of queries and keys are multiplied by, times log2(e): so the weights are exp2 of the plain scores.
local function scale_of(cfg)
  return cfg.scale and types.LOG2E * cfg.scale or types.LOG2E / math.sqrt(cfg.dk)
end

-- A given matrix as it is packed, with more of its fields.
function M.matrix(name, fields) return M.with({ section = name, text = name, a = name }, fields) end

-- The projection of Q, K or V, by its letter.
local function projection(cfg, name, letter, rows, width)
  local heads = letter == "q" and cfg.h or cfg.h_kv
  local source = tensors.input(cfg.attention == "cross" and letter or "q", M.row(cfg, letter))
  return M.product {
    name = name, a = source, rows = rows, steps = source.row, cols = width, heads = heads,
    c = tensors.workspace(name, { head = width, operand = name }),
    weights = M.matrix("w" .. letter, { along = "column", width = width, heads = heads }),
    bias = M.matrix("b" .. letter, { along = "column", width = width, heads = heads }),
  }
end

local LETTERS = { "q", "k", "v", false, "o" } -- of the stages, with attention between the projections

-- The scale of scores goes into Wq and bq, or into the queries where these are inputs. Where weights are rounded,
-- they are so as they are given, and the scale is `query_scale`: queries are multiplied by it.
function M.of(cfg, scores)
  local h = cfg.h
  local scale, appends = scale_of(cfg), {}
  local queries = projection(cfg, "queries", "q", cfg.seq, cfg.dk)
  local keys = projection(cfg, "keys", "k", options.key_rows(cfg), cfg.dk)
  local values = projection(cfg, "values", "v", options.key_rows(cfg), cfg.dv)
  if cfg.cache ~= "none" then
    for _, stage in ipairs { keys, values } do
      stage.c = cached(cfg, stage)
      stage.fill, stage.behind = cfg.cache == "fixed", cfg.cache == "append" and "past"
    end
  end
  keys.qk = qk_of.of(cfg)
  local normed = keys.qk and keys.qk.norm
  if normed then keys.qk.scale, scale = scale, 1.0 end -- behind the norm, with its gains
  local query_scale, quant = nil, types.quants[cfg.weight_dtype]
  local rounded = types.by_name[cfg.dtype] ~= types.f32 or quant and quant.type
  if rounded and not normed then query_scale, scale = scale, 1.0 end
  queries.scale = scale
  local context = tensors.lanes "context"
  local attend = {
    name = "attend", kind = "attend", heads = h, pairs = score.pairs_seen(scores), keys = keys.c, values = values.c,
    share = h // cfg.h_kv, depth = cfg.dk, breadth = cfg.dv, out = cfg.dv, context = context, query_scale = query_scale,
    scale = not query_scale and scale or nil, test_scores = false, instead = {}, qk = keys.qk, touches = true,
    macs = function(stage) return 1.0 * stage.heads * stage.pairs * (stage.depth + stage.breadth) end,
  }
  local output = M.product {
    name = "output", kind = "output", a = context, c = tensors.output(),
    rows = cfg.seq, steps = h * cfg.dv, cols = cfg.y_width, heads = 1,
    weights = M.matrix("wo", { steps = h * cfg.dv }),
    bias = { section = "bo", text = "bo", terms = { { a = "bo" } } },
  }
  local list = {}
  for i, stage in ipairs { queries, keys, values, attend, output } do
    local letter = LETTERS[i]
    local given, tensor = unprojected[letter], letter and M.unprojected(cfg, letter)
    local cache = stage.c and stage.c.type and stage.c
    if cache then -- rows are made in float32 before
      stage.c = tensors.workspace(stage.name, { head = stage.cols, operand = stage.name, staged = true })
      appends[#appends + 1] = cache_append(stage, tensor and not stage.qk and tensor or stage.c, cache)
    end
    if cache and tensor and not stage.qk then
      attend.instead[stage.name] = given.instead
    elseif tensor and (cache or stage.c.at == "cache") then
      list[#list + 1] = M.moving { name = stage.name, of = stage.name, kind = "copy", a = tensor, c = stage.c,
                                   rows = stage.rows, cols = stage.cols, heads = stage.heads,
                                   qk = stage.qk, fill = stage.fill, behind = stage.behind }
    elseif tensor then
      attend[given.as], attend.instead[stage.name] = tensor, given.instead
    else
      list[#list + 1] = stage
    end
  end
  attend.appends = appends[1] and appends
  return list
end

return M
