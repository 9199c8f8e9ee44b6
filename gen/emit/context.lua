-- The context of a head for one group of queries, O^T[dv][width] = V^T P, one block of keys at a time.

local cut = require "schedule.cut"
local epilogue = require "emit.epilogue"
local expr = require "base.expr"
local gemm = require "emit.gemm"
local score = require "score.init"
local softmax = require "emit.softmax"
local stat = require "emit.stats".at
local tiles = require "schedule.tiles"
local ways = require "way.init"

local M = {}

-- The largest divisor of n, at most 8, as the K steps of a block.
local function divisor(n)
  for d = 8, 1, -1 do
    if n % d == 0 then return d end
  end
end

local zeros = { { "zero_if" }, { "zero_low_if", "zero_high_if" } } -- the ops for the keys of a word

-- Replaces values of hidden keys by zero, since they may be NaN. tile: as softmax.hidden takes it; by: keys in a word.
local function filter(t, tile)
  return function(c, w, k, value, name)
    local ends = softmax.ends(t, tile.scores, tile.group, tile.stats, c, name)
    for i, zero in ipairs(zeros[tile.by]) do
      local of = tile.by > 1 and ("%s_key%d"):format(name, i - 1) or name
      for _, hidden in ipairs(softmax.hidden(t, tile, k * tile.by + (i - 1), c, ends, of)) do
        value = t:op(zero, w, "seen_" .. hidden[2], hidden[1], value)
      end
    end
    return value
  end
end

-- The tensor that is operand A: V, or its transpose with a row for each column where tile registers need it.
function M.operand(plan) return plan.attend.value_rows or plan.attend.values end

-- Numbers from one row of operand A to the next, and from one K step to the next.
function M.strides(plan)
  local a = M.operand(plan)
  return plan.attend.value_rows and a or { row = 1, k_stride = a.row }
end

-- One block of keys. With ptrs.context, the last block writes the result there, in pairs. Fields of `block`:
--   v_at, p_at   where its values and its weights start
--   steps        the number of keys, a literal; or tiles, the number of their tiles at run time
--   key          its first key
--   add          the block is added to what is there
--   final        it is the last block
--   filtered     values of hidden keys are kept out
function M.block(K, group, ptrs, block)
  local t, plan, operand = K.t, K.plan, M.strides(K.plan)
  local tile_steps = ways.of(plan.attend.scheme).tile_words(plan.attend.scheme)
  -- The filter runs only on the safe path, where speed does not matter, so it gets the smallest tiles.
  local least = ptrs.context and 2 or 1
  local runs = block.filtered and cut.rows_in(plan.attend.breadth, least, least > 1) or group.context
  for _, run in ipairs(runs) do
    K:each("tile", run.count, function(i)
      local row = i * run.size + run.at
      local context = block.final and ptrs.context
      local params = {
        { "v", "in", ptrs.v:at(block.v_at + row * operand.row) }, { "p", "in", ptrs.p:at(block.p_at) },
        { "stats", "out", ptrs.stats }, { "o", "out", ptrs.o:at(row * group.width) },
        { "context", "out", context and context:at(expr.share(row, 2) * group.width) },
        { "tiles", "int", block.tiles }, { "key", "int", block.filtered and block.key },
      }
      if block.filtered then score.add_head_params(plan.scores, params, ptrs.reads) end
      local name = ("context_%dx%s%s%s%s%s"):format(run.size, group.name,
        block.tiles and "" or "_k" .. block.steps, block.add and "_add" or "", block.final and "_final" or "",
        block.filtered and "_masked" or "")
      K:part(name, ("%d rows of O^T%s%s."):format(run.size,
        block.add and ", added to what is there" or "", block.final and ", divided by the sum" or ""), params,
        function(p)
        local unroll, blocks
        local steps = block.steps and tiles.words(plan.attend.scheme, block.steps)
        if p.tiles then -- the K loop runs over tiles of keys, in whole blocks
          unroll = tile_steps or block.filtered and 1 or divisor(group.keys.words)
          blocks = p.tiles * (group.keys.words // unroll)
        end
        local tile = {
          scheme = plan.attend.scheme, name = "context_sums", rows = run.size, vecs = group.vecs, steps = steps,
          blocks = blocks,
          unroll = unroll or K:unroll(steps),
          a = { p = p.v, row = operand.row, k_stride = operand.k_stride }, b = { p = p.p, k_stride = group.width },
          filter = p.key and filter(t, {
            scores = plan.scores, group = group, stats = p.stats, key = p.key, reads = p,
            by = plan.attend.scheme.group }),
        }
        local function row(name)
          return function(c) return stat(group, p.stats, name, c) end
        end
        local function inverse(c, v) return t:op("load", v.w, ("inverse_c%d"):format(c - 1), row "inverse"(c)) end
        local target, ends = { p = p.o, row = group.width, round = block.final and p.o.type.rounded }, {}
        local result = p.context and { p = p.context, row = group.width, rows = run.size, pairs = "rows",
                                       scheme = plan.attend.context.scheme } or target
        if block.add then ends[#ends + 1] = epilogue.add(t, target) end
        if block.final then ends[#ends + 1] = epilogue.scale(t, "o", inverse) end
        ends[#ends + 1] = epilogue.store_as(t, result)
        if block.final then ends[#ends + 1] = epilogue.finite(t, row "test") end
        epilogue.run(tile, gemm.tile(t, tile), ends)
      end)
    end)
  end
end

-- Writes zeros to rows with queries in the lanes, so that blocks can be added to them, or so that tiles can read them.
function M.clear(K, group, o, rows)
  local t = K.t
  K:each("row", rows, function(r)
    for c, v in ipairs(group.vecs) do
      t:scope(function()
        t:op("store", v.w, nil, o:at(r * group.width + (c - 1) * group.lanes), t:op("zero", v.w, "zero_c" .. c - 1))
      end)
    end
  end)
end

return M
