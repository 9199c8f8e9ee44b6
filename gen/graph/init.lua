-- The kernel as a list of stages over tensors, in the order of the formula. Rewrites turn it into other lists; stages
-- and tensors are values that never change once they are made. Q, K, V or Y without a projection has no stage:
-- attention then reads the input, or writes y.
--
-- Stages are found by the tensors that they read and make, starting at attention (M.attend): M.maker, M.projection,
-- M.output. graph/tensor.lua lists the fields of a tensor.
--
-- A stage:
--
--   name, kind      a kind is a file of stage/
--   macs            multiply-adds of a batch entry
--   behind          the name of the run-time integer with the rows that c already has (`past`)
--   fill            true: the stage fills a cache, and is no part of a run
--
--   packs           the name of the first matrix of a stage that packs matrices but multiplies by none
--
-- A product, C = A B + bias, has also:
--
--   scheme          how the ISA multiplies (isa/init.lua)
--   multiplied      the scheme of the weights as they are multiplied, which may be quantized
--   stored          the scheme of the packed weights, which a run may dequantize to those
--   feeds           true: it is one of the feed-forward's
--   apart           true: these have another scheme than the other products
--   nest            how its loops are nested (stage/product.lua)
--   a, c            tensors
--   rows, steps     of the product
--   heads, cols     heads, and the columns of each
--   weights, bias   matrices as they are packed
--   scale           of weights and bias
--   activate        the name of the activation function (tape/activation.lua); this and the next three are of the nest
--                   "groups" alone
--   times           a tensor. The rows of c are multiplied by its rows.
--   add             a tensor. Its rows are added to those of c.
--   doc             what a and c are, in words, { a, c }
--   qk              for keys: norm and rope of their rows (graph/qk.lua); attention has those of queries
--
-- A stage that only moves numbers may have `inputs`, which it converts (stage/convert.lua). Or it is `as_given`: it
-- reads an input in the type in which it is given.
--
-- A matrix as it is packed:
--
--   section                 of packed weights, with the name of the given matrix where there is one
--   text                    for comments
--   a, b                    a given matrix, or the product of two
--   a_flipped, b_flipped    whether they are transposed
--   inner                   columns of a in the product
--   along, width, heads     "column", "row" or "first" (of the sum): the coordinate that moves by `width` from head to
--                           head
--
-- Keys and values have h_kv heads. Each serves h / h_kv heads of queries. Attention has also:
--
--   scheme          of its products
--   queries, keys, values, context   tensors
--   passes          true: there is no attention, and the context is the input
--   touches         whether its tiles may touch rows after the last key
--   of_group(plan, group, stage)   the cost of a group of queries, and the fields of its tiles; if missing,
--                                  schedule/groups.lua computes them

local matrices = require "graph.matrices"
local options = require "options.init"
local score = require "score.init"
local tensors = require "graph.tensor"
local qk_of = require "graph.qk"
local types = require "machine.types"

local M = {}

local function macs(stage) return 1.0 * stage.heads * stage.rows * stage.cols * stage.steps end

-- The multiply-adds of a run, for a batch entry.
function M.macs(list)
  local sum = 0.0
  for _, stage in ipairs(list) do sum = sum + (stage.fill and 0.0 or stage:macs()) end
  return sum
end

-- A copy of a stage with other fields.
M.with = tensors.with

-- A product with weights; cols: the columns of a head.
function M.product(stage) return M.with({ kind = "product", nest = "rows", macs = macs, scale = 1.0 }, stage) end

local function no_macs() return 0.0 end

-- A stage that multiplies nothing. Its kind is its name, unless it has one.
function M.moving(stage) return M.with({ kind = stage.name, macs = no_macs }, stage) end

-- How many of the heads of a stage or matrix are in a block of heads.
function M.in_block(plan, of) return of.heads // plan.head_blocks end

-- The schemes of products with weights, each once, in their order.
function M.product_schemes(list)
  local schemes, known = {}, {}
  for _, stage in ipairs(list) do
    local scheme = stage.weights and stage.scheme
    if scheme and not known[scheme] then known[scheme], schemes[#schemes + 1] = true, scheme end
  end
  return schemes
end

-- The first of them, or nil if there are none.
function M.scheme(list) return M.product_schemes(list)[1] end

-- Whether a plan multiplies by a scheme in the feed-forward alone.
function M.only_feeds(plan, scheme) return plan.feeding ~= plan and plan.feeding.scheme == scheme end

-- What names of functions have behind them that make operands of such a scheme.
function M.suffix(plan, scheme) return M.only_feeds(plan, scheme) and "_" .. scheme.a.name or "" end

-- The schemes of all products of a list.
function M.schemes(list)
  local schemes = {}
  for _, stage in ipairs(list) do schemes[#schemes + 1] = stage.scheme end
  return schemes
end

-- The list with more fields in its products: those that products(stage) returns for products with weights, and those of
-- `attention`.
function M.multiplied(list, products, attention)
  local out = {}
  for i, stage in ipairs(list) do
    out[i] = M.with(stage, stage.weights and products(stage) or stage.context and attention or {})
  end
  return out
end

-- The list with some stages replaced: edits { [stage] = list }.
function M.edited(list, edits)
  local out = {}
  for _, stage in ipairs(list) do
    local there = edits[stage] or { stage }
    table.move(there, 1, #there, #out + 1, out)
  end
  return out
end

-- The list with a tensor replaced by another, wherever it is read or made.
function M.replaced(list, tensor, other)
  local out = {}
  for i, stage in ipairs(list) do
    local fields = {}
    for name, value in pairs(stage) do fields[name] = value == tensor and other or nil end
    fields.appends = stage.appends and M.replaced(stage.appends, tensor, other)
    out[i] = next(fields) and M.with(stage, fields) or stage
  end
  return out
end

-- The list with more fields for its i-th stage, which may include another tensor c.
function M.planned(list, i, fields)
  fields = fields or {}
  local out, c = M.edited(list, { [list[i]] = { M.with(list[i], fields) } }), list[i].c
  return fields.c and M.replaced(out, c, fields.c) or out
end

-- The stages that pack something, in the order of their matrices. Copied keys, which may need gains and tables of rope,
-- come where Wk would.
function M.by_matrix(list)
  local sorted = {}
  for _, name in ipairs(matrices.names) do
    for _, stage in ipairs(list) do
      local matrix = stage.weights and stage.weights.a or stage.of == "keys" and "wk" or stage.packs
      if matrix == name then sorted[#sorted + 1] = stage end
    end
  end
  return sorted
end

-- The attention stage.
function M.attend(list)
  for _, stage in ipairs(list) do
    if stage.context then return stage end
  end
end

-- The stage that makes a tensor, or nil.
function M.maker(list, tensor)
  for _, stage in ipairs(tensor and list or {}) do
    if stage.c == tensor then return stage end
  end
end

-- The stage from which rows of queries, keys or values come: a projection, or a copy of an input; or nil.
function M.origin(list, tensor)
  local stage = M.maker(list, tensor)
  if stage and stage.weights and stage.nest ~= "lanes" then return stage end
  local through = stage or M.maker(M.attend(list).appends or {}, tensor)
  return through and M.origin(list, through.a) or stage and stage.kind == "copy" and stage or nil
end

-- The projection that makes these rows, or nil.
function M.projection(list, tensor)
  local stage = M.origin(list, tensor)
  return stage and stage.weights and stage or nil
end

-- Whether epilogues multiply by a tensor or add it.
function M.is_beside(list, tensor)
  for _, stage in ipairs(list) do
    if stage.times == tensor or stage.add == tensor then return true end
  end
  return false
end

-- The index after the stages that prepare inputs: conversions, and the norm before the layer.
function M.behind_inputs(list)
  local place = 1
  while list[place].inputs or list[place].as_given do place = place + 1 end
  return place
end

-- The output projection, or nil.
function M.output(list)
  local function reader(tensor)
    for _, stage in ipairs(tensor and list or {}) do
      if stage.a == tensor then return stage.weights and stage or reader(stage.c) end
    end
  end
  return reader(M.attend(list).context)
end

-- How many numbers a row of q, k, v or y has, with all heads.
function M.row(cfg, name)
  if name == "q" then return matrices.projects(cfg, "q") and cfg.d_model or cfg.h * cfg.dk end
  return cfg[name .. "_width"]
end

-- The results with a number for each head, query and key.
function M.sheets(cfg)
  local list = {}
  if cfg.probs then list[1] = "probs" end
  if cfg.scores ~= "none" then list[#list + 1] = "scores" end
  return list
end

-- What replaces a projection that is not there: the pointer, the keys with its extents, and a text.
local INPUT, CONTEXT = "the inputs themselves; they are not projected", "the context itself; it is not projected"
local unprojected = {
  q = { name = "q", rows = "seq", heads = "h", width = "dk", instead = INPUT },
  k = { name = "k", rows = "seq_kv", heads = "h_kv", width = "dk", instead = INPUT },
  v = { name = "v", rows = "seq_kv", heads = "h_kv", width = "dv", instead = INPUT },
  o = { name = "y", rows = "seq", heads = "h", width = "dv", instead = CONTEXT },
}

-- The input, or y, in place of a projection (by its letter), laid out as the config says: heads side by side in a row,
-- or each with rows of its own. nil if there is the projection.
function M.unprojected(cfg, letter)
  if matrices.projects(cfg, letter) then return nil end
  local given = unprojected[letter]
  local heads, width = cfg[given.heads], cfg[given.width]
  local rows = given.rows == "seq" and cfg.seq or options.key_rows(cfg)
  return tensors.input_of_heads(given.name, heads, width, rows, cfg.layout == "bhsd")
end

-- The cache for keys or values.
local function cached(cfg, stage)
  local type, grows, exact = types.of_cache[cfg.cache_dtype], cfg.cache == "append", cfg.cache_layout == "bhsd"
  if type == types.f32 then return tensors.cache(stage, grows, exact) end
  local side_by_side = stage.qk and stage.qk.all or cfg.norm_span == "all"
  return tensors.small_cache(stage, grows, exact, type, side_by_side)
end

-- The stage that rounds rows of keys or values and appends them to a cache of a smaller type.
local function cache_append(stage, a, cache)
  return M.moving { name = cache.name, of = stage.name, kind = "cache_append", a = a, c = cache, rows = stage.rows,
                    cols = stage.cols, heads = stage.heads, fill = stage.fill, behind = stage.behind }
end

-- What a config makes of a projection: the tensor that attention reads, and perhaps the stage that makes its rows, the
-- stage that appends them to a cache, and a text for what is read instead.
local function placed(cfg, stage, letter)
  local given, cache = M.unprojected(cfg, letter), stage.fill ~= nil and cached(cfg, stage) or nil
  local small = cache and cache.type and cache -- rows are made in float32 first
  local c = small and tensors.workspace(stage.name, { head = stage.cols, operand = stage.name, staged = true })
    or cache or stage.c
  if given and (not cache or small and not stage.qk) then
    return { tensor = cache or given, append = small and cache_append(stage, given, cache),
             instead = unprojected[letter].instead }
  end
  local copied = given and M.moving {
    name = stage.name, of = stage.name, kind = "copy", a = given, c = c, rows = stage.rows, cols = stage.cols,
    heads = stage.heads, qk = stage.qk, fill = stage.fill, behind = stage.behind }
  return { tensor = cache or c, append = small and cache_append(stage, c, cache),
           stage = copied or M.with(stage, { c = c }) }
end

-- The factor of the products of queries and keys. It includes log2(e), so that weights are exp2 of scores.
local function scale_of(cfg)
  return cfg.scale and types.LOG2E * cfg.scale or types.LOG2E / math.sqrt(cfg.dk)
end

-- A given matrix as it is packed, and more fields.
function M.matrix(name, fields) return M.with({ section = name, text = name, a = name }, fields) end

-- The projection of Q, K or V, by its letter.
local function projection(cfg, name, letter, fields)
  local heads, width = letter == "q" and cfg.h or cfg.h_kv, letter == "v" and cfg.dv or cfg.dk
  local source = tensors.input(cfg.attention == "cross" and letter or "q", M.row(cfg, letter))
  return M.product(M.with({
    name = name, a = source, rows = letter == "q" and cfg.seq or options.key_rows(cfg), steps = source.row,
    cols = width, heads = heads, c = tensors.workspace(name, { head = width, operand = name }),
    weights = M.matrix("w" .. letter, { along = "column", width = width, heads = heads }),
    bias = M.matrix("b" .. letter, { along = "column", width = width, heads = heads }),
  }, fields))
end

-- Where the scale of scores is applied: `scale` goes into Wq and bq, or multiplies queries that are inputs. If weights
-- are rounded, they keep their given values, and `query_scale` multiplies the queries. With a norm, it is part of the
-- gains in `qk`.
local function scales(cfg)
  local scale, qk, quant = scale_of(cfg), qk_of.of(cfg), types.quants[cfg.weight_dtype]
  if qk and qk.norm then return { scale = 1.0, qk = M.with(qk, { scale = scale }) } end
  local rounded = types.by_name[cfg.dtype] ~= types.f32 or quant and quant.type
  return { scale = rounded and 1.0 or scale, query_scale = rounded and scale or nil, qk = qk }
end

-- The output's product.
local function output_of(cfg, context)
  return M.product {
    name = "output", nest = "groups", a = context, c = tensors.output(cfg.y_width),
    doc = { a = "the context of all heads", c = "Y" },
    rows = cfg.seq, steps = cfg.h * cfg.dv, cols = cfg.y_width, heads = 1,
    weights = M.matrix("wo", { steps = cfg.h * cfg.dv }),
    bias = { section = "bo", text = "bo", terms = { { a = "bo" } } },
  }
end

-- The list without attention: the context is the input, and a stage of attention that does nothing stands for it.
local function without_attention(cfg)
  local x = tensors.input("q", cfg.d_model)
  local pass = M.moving { name = "attend", kind = "pass", passes = true, context = x, queries = x, keys = x, values = x,
                          heads = 1, share = 1, depth = 1, breadth = 1, out = 0, touches = false, instead = {} }
  local output = output_of(cfg, x)
  return { pass, M.with(output, { activate = cfg.out_act ~= "none" and cfg.out_act or nil,
                                  doc = M.with(output.doc, { a = "the rows of the input" }) }) }
end

function M.of(cfg, scores)
  if cfg.attention == "none" then return without_attention(cfg) end
  local own, h, cached_rows = scales(cfg), cfg.h, {}
  if cfg.cache ~= "none" then
    cached_rows = { fill = cfg.cache == "fixed", behind = cfg.cache == "append" and "past" }
  end
  local queries = placed(cfg, projection(cfg, "queries", "q", { scale = own.scale }), "q")
  local keys = placed(cfg, projection(cfg, "keys", "k", M.with(cached_rows, { qk = own.qk })), "k")
  local values = placed(cfg, projection(cfg, "values", "v", cached_rows), "v")
  local context = M.unprojected(cfg, "o")
  local appends = {}
  for _, of in ipairs { keys, values } do appends[#appends + 1] = of.append or nil end
  local attend = {
    name = "attend", kind = "attend", heads = h, pairs = score.pairs_seen(scores), queries = queries.tensor,
    keys = keys.tensor, values = values.tensor, share = h // cfg.h_kv, depth = cfg.dk, breadth = cfg.dv, out = cfg.dv,
    context = context or tensors.lanes "context", query_scale = own.query_scale,
    scale = not own.query_scale and own.scale or nil, test_scores = false, qk = own.qk, touches = true,
    instead = { queries = queries.instead, keys = keys.instead, values = values.instead,
                output = context and unprojected.o.instead },
    macs = function(stage) return 1.0 * stage.heads * stage.pairs * (stage.depth + stage.breadth) end,
    appends = appends[1] and appends,
  }
  local output = not context and output_of(cfg, attend.context)
  local list = {}
  for _, stage in ipairs { queries.stage or false, keys.stage or false, values.stage or false, attend, output } do
    list[#list + 1] = stage or nil
  end
  return list
end

return M
