-- Y = O Wo + bo, one product over the context of all heads: panels of Wo by blocks of groups of queries.

local choices = require "base.choices"
local cut = require "schedule.cut"
local fetch = require "schedule.fetch"
local product_of = require "emit.product"
local quantize = require "emit.quantize"
local memory = require "schedule.memory"
local tiles = require "schedule.tiles"
local ways = require "way.init"
local wording = require "base.wording"

local M = { phase = "output", title = "output" }

local keys = { rows = "out_rows", vectors = "out_vectors" }

-- ---- the plan ----

-- Blocks of groups for the output product: as many groups as the second-level cache holds the context
-- of, so that each panel of Wo is read from farther away once a block. { count, first, pieces } each, a
-- piece being `count` groups of a kind from number `first` of the kind on; in the i-th of several
-- equal blocks from first + i * count on.
local function output_blocks(plan, stage)
  local queries = plan.cpu.cached // (memory.BYTES * stage.steps)
  local most = math.max(1, queries // plan.groups[1].width)
  local blocks, total = {}, 0
  for _, run in ipairs(cut.balanced(plan.group_count, most)) do
    for i = 0, run.count - 1 do
      local from, pieces = run.at + i * run.size, {}
      for kind, group in ipairs(plan.groups) do
        local first = math.max(from, group.first)
        local count = math.min(from + run.size, group.first + group.count) - first
        if count > 0 then
          pieces[#pieces + 1] = { kind = kind, first = first - group.first, count = count }
        end
      end
      local last = blocks[#blocks]
      if last and #pieces == 1 and #last.pieces == 1 and pieces[1].kind == last.pieces[1].kind
        and pieces[1].count == last.pieces[1].count then
        last.count = last.count + 1
      else
        blocks[#blocks + 1] = { count = 1, first = total, pieces = pieces }
      end
      total = total + 1
    end
  end
  return blocks, total
end

function M.plan(plan, stage)
  local sets = {}
  for i, group in ipairs(plan.groups) do
    sets[i] = { rows = group.used, count = group.count, even = ways.interleave(plan.scheme) > 1 }
  end
  local product, cost = tiles.columns(plan.weights, keys, sets, stage.cols,
    { steps = tiles.words(plan.scheme, stage.steps), order = "columns", rounded = plan.arrays.round })
  local blocks, block_count = output_blocks(plan, stage)
  return cost, { product = product, blocks = blocks, block_count = block_count,
                 packed = plan.widens and tiles.packed(product, plan.stored.scheme, stage.steps) or product }
end

function M.sections(plan, stage, add)
  add("packed", { name = stage.weights.section, doc = "Wo", count = stage.packed.floats,
                  type = stage.packed.scheme.packed })
  add("packed", { name = stage.bias.section, doc = "bias", count = stage.product.ld })
  if not plan.cfg.q_len then return end
  local rows = 0
  for _, runs in ipairs(stage.product.runs) do
    for _, run in ipairs(runs) do rows = math.max(rows, run.size) end
  end
  add("entry", { name = "tail", doc = "a tile of Y", cols = stage.cols, count = rows * stage.cols })
end

function M.axes(plan, stage)
  local function queries(part) -- equal blocks have one piece
    local piece = part.pieces[1]
    local group = plan.groups[piece.kind]
    return piece.first * group.used + group.q0, piece.count * group.used
  end
  return { { var = "part", items = stage.blocks, total = stage.block_count, queries = queries },
           { var = "panel", items = stage.product.panel_runs, total = stage.product.panels } }
end

-- ---- the work ----

-- Copies the first rows of a panel of a tile of `size` rows.
local function copy(K, stage, panels, size, tile)
  local t, d = K.t, stage.cols
  local function row(r, p)
    for c, v in ipairs(panels.vecs) do
      local at, name = r * d + (c - 1) * K.plan.isa.lanes, "row_c" .. c - 1
      t:write(v.w, p.to:at(at), t:read("load", v.w, name, p.from:at(at), v.used), v.used)
    end
  end
  K:part(("copy_%d"):format(panels.used), ("Copies rows of %d columns."):format(panels.used),
    { { "from", "in", tile.from }, { "to", "out", tile.to }, { "rows", "int", tile.rows } }, function(p)
    if not K.full then return t:loop("row", p.rows, function(r) row(r, p) end) end
    for r = 0, size - 2 do t:when(r, p.rows, function() row(r, p) end) end
  end)
end

-- Whether the scales of a context in int8 lie query by query, not group by group.
local function scaled_rows(stage) return stage.a.scaled == "rows" end

-- Scales from group to group.
local function scales_of(own, group)
  if scaled_rows(own.stage) then return group.used end
  return group.width * quantize.scales_of_row(own.stage.product.scheme, own.stage.product.steps)
end

-- The function of a panel as text and parameters: its name, doc and params. own as `record` has it.
local function signature(own)
  local names, queries, params = {}, 0, { { "panel", "in", own.panel }, { "bias", "in", own.bias } }
  if own.next then params[3] = { "next", "in", own.next } end
  for i, piece in ipairs(own.pieces) do
    names[i] = piece.count .. "x" .. piece.group.name
    queries = queries + piece.count * piece.group.used
    params[#params + 1] = { "o" .. i, "in", piece.o }
    if piece.scales then params[#params + 1] = { "scales" .. i, "in", piece.scales } end
    params[#params + 1] = { "y" .. i, "out", piece.y }
    if piece.asked then params[#params + 1] = { "asked" .. i, "int", piece.asked } end
  end
  if own.pieces.tail then params[#params + 1] = { "tail", "out", own.pieces.tail } end
  return ("output_%s_%d"):format(table.concat(names, "_"), own.panels.used),
    ("%d columns of Y for %d queries, from the context of all heads."):format(own.panels.used, queries), params
end

-- `count` tiles of a piece from `number` of all on, of which the i-th is at(i): the number of its group and its first
-- row there, and where it goes.
local function tiles_of(own, i, run, number, count, at)
  local K, stage, panels, p, plan = own.K, own.stage, own.panels, own.p, own.K.plan
  local product, piece = stage.product, own.pieces[i]
  local group, in_rows = piece.group, stage.a.at == "rows"
  local order = in_rows and { row = stage.a.row, k_stride = stage.a.k_stride or 1 }
    or { row = ways.interleave(plan.scheme), k_stride = group.width }
  local function next(n)
    return p.next and fetch.part(plan.fetch, product, p.next, panels.width, number + n, own.total)
  end
  local _, _, first = at(0)
  product_of.each_tile(K, product, panels, run.size, count, {
    label = "output_" .. (first.type ~= p["y" .. i].type and "tail_" or "") .. group.name,
    alone = true, bias = p.bias,
    a = function(n, k0)
      local g, row = at(n)
      local all = piece.scales and p["scales" .. i]:at(g * scales_of(own, group) + row)
      local count = scaled_rows(stage) and plan.cfg.seq or group.width
      local scales, sums = product_of.of_rows(product.scheme, all, count, k0)
      local o = p["o" .. i]:at(g * (in_rows and group.used * stage.a.row or product.steps * group.width))
      return { p = o:at(row * order.row + k0 * order.k_stride), row = order.row, k_stride = order.k_stride,
               streamed = tiles.streamed(plan.cpu, stage.a, panels.width * product.depth),
               scales = scales, sums = sums }
    end,
    b = function(n, k0) return product_of.operand(product, panels, p.panel, k0, next(n)) end,
    c = function(n)
      local _, _, to = at(n)
      return { p = to, row = stage.cols, exact = true }
    end,
  })
end

-- A tile of so many rows at y, of which `left` are asked for: one with fewer goes by way of the tail.
local function asked_tile(own, size, y, left, tile)
  if not left then return tile(y) end
  own.K.t:when(size - 1, left, function() tile(y) end, size > 1 and function()
    own.K.t:when(0, left, function()
      tile(own.p.tail)
      copy(own.K, own.stage, own.panels, size, { from = own.p.tail, to = y, rows = left })
    end)
  end)
end

-- The rows of piece i, which has `before` tiles before its own.
local function piece_of(own, i, before)
  local K, d, product, piece = own.K, own.stage.cols, own.stage.product, own.pieces[i]
  local group, runs = piece.group, product.runs[piece.kind]
  local function y_of(g, row) return own.p["y" .. i]:at(g * (group.used * d)):at(row * d) end
  if ways.of(product.scheme).buffered and #runs == 1 and runs[1].count == 1 and not piece.asked then
    local function at(g) return g, runs[1].at, y_of(g, runs[1].at) end
    return tiles_of(own, i, runs[1], before, piece.count, at)
  end
  K:each("g", piece.count, function(g)
    local number = g * tiles.count(product, piece.kind) + before
    for _, run in ipairs(runs) do
      K:each("tile", run.count, function(j)
        local row = j * run.size + run.at
        local function tile(to) tiles_of(own, i, run, number + j, 1, function() return g, row, to end) end
        local left = piece.asked and own.p["asked" .. i] - g * group.used - row
        asked_tile(own, run.size, y_of(g, row), left, tile)
      end)
      number = number + run.count
    end
  end)
end

-- A panel of Y, all rows of a block of groups, from the context of all heads. own: K, stage, block, panel, bias; next,
-- what is fetched meanwhile; pieces: { group, kind, count of equal groups, o, y } each. Where rows are asked for, asked
-- = so many from the first one of the piece on; the tile with the last one goes by way of the tail if it has more.
local function record(own)
  local name, doc, params = signature(own)
  local product = own.stage.product
  own.total = 0
  for _, piece in ipairs(own.pieces) do own.total = own.total + piece.count * tiles.count(product, piece.kind) end
  own.K:part(name, doc, params, function(p)
    own.p = p
    local before = 0 -- tiles of other pieces
    for i, piece in ipairs(own.pieces) do
      piece_of(own, i, before)
      before = before + piece.count * tiles.count(product, piece.kind)
    end
  end)
end

-- The panel of columns j of a block of equal panels, for the i-th of a block of equal output blocks.
function M.emit(K, place, stage, ...)
  local out_block, i, panels, j = ...
  local plan, d = K.plan, stage.cols
  choices.add(K.t.why, "output_order")
  local column = j * panels.width + panels.at
  local pieces = { tail = place.rows and plan.memory:at(place, "tail"):at(column) }
  local panel, wo = tiles.panel_at(stage.product, panels, j), plan.memory:at(place, stage.wide or stage.weights.section)
  local next = plan.fetch and wo:at((fetch.next(plan.fetch, stage.product, panels, panel, 0)))
  for n, piece in ipairs(out_block.pieces) do
    local group = plan.groups[piece.kind]
    local first = i * piece.count + piece.first
    local row = first * group.used + group.q0
    pieces[n] = {
      group = group, kind = piece.kind, count = piece.count,
      o = stage.a.at == "rows" and plan.memory:tensor(place, stage.a):at(row * stage.a.row)
        or plan.memory:of_group(place, stage.a.name, group, first), y = place.y:at(row * d + column),
      asked = place.rows and place.rows - row,
      scales = stage.a.scales and (scaled_rows(stage) and plan.memory:at(place, stage.a.scales):at(row)
        or plan.memory:of_group(place, stage.a.scales, group, first)),
    }
  end
  record { K = K, stage = stage, pieces = pieces, panels = panels, panel = wo:at(panel), next = next or nil,
           bias = plan.memory:at(place, stage.bias.section):at(column) }
end

-- ---- in words, and packed ----

function M.statements(count, plan, stage)
  for i, group in ipairs(plan.groups) do count:columns(stage.product, stage.product.runs[i], group.count) end
end

function M.describe(_, stage)
  return { { "output", ("tiles %s, %s"):format(wording.column_tiles(stage.product),
    wording.chain(stage.product.chunks)) } }
end

function M.fills(pack, stage)
  local weights, bias, product, h = stage.weights, stage.bias, stage.packed, pack.plan.cfg.h
  pack:panels(product, pack:at(weights.section), function(panels, to, round)
    local words = tiles.words(product.scheme, weights.steps)
    local heads = weights.along and { count = weights.heads, to = words * panels.width, row = weights.steps }
      or weights.b and { count = h, to = weights.steps * panels.width, first = weights.inner }
    pack:add(weights.text, pack:of_weights { to = to, steps = weights.steps, used = panels.used, width = panels.width,
      scale = stage.scale, terms = { pack.term(weights, panels.at) }, rounds = { heads or round, heads and round },
      quant = product.scheme.quant })
  end)
  pack:add(bias.text, { to = pack:at(bias.section), steps = 1, used = stage.cols, width = product.ld,
    scale = stage.scale, terms = bias.terms, rounds = {} })
end

return M
