-- The nest `groups` of products (stage/product.lua): one product for all heads, such as Y = O Wo + bias. Its loops are
-- blocks of groups of queries and panels of weights. A lies group by group, with queries in the lanes or in rows, and C
-- in rows.

local asked = require "emit.asked"
local choices = require "base.choices"
local fetch = require "schedule.fetch"
local graph = require "graph.init"
local groups = require "schedule.groups"
local layouts = require "graph.layout"
local memory = require "schedule.memory"
local product_of = require "emit.product"
local packed = require "stage.product_packed"
local quantize = require "emit.quantize"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"
local ways = require "way.init"
local wording = require "base.wording"

local M = { phase = "output", title = "output", fills = packed.groups }

local KEYS = { rows = "out_rows", vectors = "out_vectors" }

function M.plan(plan, stage)
  local sets = {}
  for i, group in ipairs(plan.groups) do
    sets[i] = { rows = group.used, count = group.count, even = ways.interleave(stage.scheme) > 1 }
  end
  local product, cost = tiles.columns(tiles.target(plan, stage.multiplied), KEYS, sets, stage.cols,
    { steps = tiles.words(stage.scheme, stage.steps), order = "columns",
      rounded = stage.c.words or plan.arrays.round and stage.c.at == "input" })
  -- L2 holds the rows of A of a block, so that each panel is read from L3 or DRAM once a block.
  local queries = plan.cpu.cached // (memory.BYTES * stage.steps)
  local blocks, block_count = groups.blocks(plan, math.max(1, queries // plan.groups[1].width))
  return cost, { product = product, blocks = blocks, block_count = block_count,
                 c = not (stage.c.exact or stage.c.words) and tensors.with(stage.c, { row = product.ld }) or nil,
                 packed = packed.panels(stage, product) }
end

function M.sections(plan, stage, add)
  packed.sections(stage, "packed", (stage.weights.section:gsub("^w", "W")), add)
  local c = stage.c
  if c.at == "rows" then
    add("entry", { name = c.name, doc = stage.doc.c, cols = c.row, count = c.count or plan.cfg.seq * c.row,
                   type = c.words and c.scheme.held })
  end
  if not (plan.cfg.q_len and c.at == "input") then return end
  local rows = 0
  for _, runs in ipairs(stage.product.runs) do
    for _, run in ipairs(runs) do rows = math.max(rows, run.size) end
  end
  add("entry", { name = "tail", doc = "a tile of " .. stage.doc.c, cols = stage.cols, count = rows * stage.cols })
end

function M.axes(plan, stage)
  local function queries(part) -- a block that is repeated has only one piece
    local piece = part.pieces[1]
    local group = plan.groups[piece.kind]
    return piece.first * group.used + group.q0, piece.count * group.used
  end
  return { { var = "part", items = stage.blocks, total = stage.block_count, queries = queries },
           { var = "panel", items = stage.product.panel_runs, total = stage.product.panels } }
end

function M.statements(count, plan, stage)
  for i, group in ipairs(plan.groups) do count:columns(stage.product, stage.product.runs[i], group.count) end
end

function M.describe(_, stage) return { { stage.name, wording.product(stage.product) } } end

-- Whether an int8 context has its scales query by query, not group by group.
local function scaled_rows(stage) return stage.a.scaled == "rows" end

-- The distance of the scales of two groups.
local function scales_of(own, group)
  if scaled_rows(own.stage) then return group.used end
  return group.width * quantize.scales_of_row(own.stage.product.scheme, own.stage.product.steps)
end

-- Returns the name, the comment and the parameters of a panel's function. own: as in `emit`.
local function signature(own)
  local names, queries, params = {}, 0, { { "panel", "in", own.panel }, { "bias", "in", own.bias } }
  params[3] = { "next", "in", own.next }
  for i, piece in ipairs(own.pieces) do
    names[i] = piece.count .. "x" .. piece.group.name
    queries = queries + piece.count * piece.group.used
    params[#params + 1] = { "o" .. i, "in", piece.o }
    if piece.scales then params[#params + 1] = { "scales" .. i, "in", piece.scales } end
    params[#params + 1] = { "y" .. i, "out", piece.y }
    if piece.times then params[#params + 1] = { "f" .. i, "in", piece.times } end
    if piece.add then params[#params + 1] = { "x" .. i, "in", piece.add } end
    if piece.asked then params[#params + 1] = { "asked" .. i, "int", piece.asked } end
  end
  if own.tail then params[#params + 1] = { "tail", "out", own.tail } end
  local stage, columns = own.stage, own.panels.used
  return ("%s_%s_%d"):format(stage.name, table.concat(names, "_"), columns),
    ("%d columns of %s for %d queries, from %s."):format(columns, stage.doc.c, queries, stage.doc.a), params
end

-- `count` tiles of a piece, of which the first is number `number` of all. at(i): the i-th tile's group, its first row
-- in that group, and where it goes.
local function tiles_of(own, i, run, number, count, at)
  local K, stage, p, plan = own.K, own.stage, own.p, own.K.plan
  local product, piece = stage.product, own.pieces[i]
  local group, in_rows = piece.group, stage.a.at == "rows"
  local row, k_stride = ways.interleave(stage.scheme), group.width
  if in_rows then row, k_stride = stage.a.row, stage.a.k_stride or 1 end
  local tail = select(3, at(0)).type ~= p["y" .. i].type and "tail_" or ""
  -- The rows of another tensor beside those of a tile, by the field of the stage and the parameter.
  local function beside(field, param)
    local other = stage[field]
    return other and function(n)
      local g, from = at(n)
      local ld = other.row
      return { name = other.name, p = p[param .. i]:at(g * (group.used * ld)):at(from * ld), row = ld }
    end
  end
  product_of.each_tile(K, product, own.panels, run.size, count, {
    label = ("%s_%s%s"):format(stage.name, tail, group.name), alone = true, bias = p.bias,
    w = p.panel, a = stage.a, row = row, k_stride = k_stride, ends = layouts.stored(stage.c),
    all = scaled_rows(stage) and plan.cfg.seq or group.width,
    x = function(n)
      local g, from = at(n)
      return p["o" .. i]:at(g * (in_rows and group.used * row or product.steps * group.width)):at(from * row)
    end,
    scales = function(n)
      local g, from = at(n)
      return piece.scales and p["scales" .. i]:at(g * scales_of(own, group) + from)
    end,
    next = function(n)
      return p.next and fetch.part(own.fetched, p.next, own.panels.width, number + n)
    end,
    c = function(n) return select(3, at(n)), stage.c.row end,
    activate = stage.activate, times = beside("times", "f"), add = beside("add", "x"),
  })
end

-- The rows of piece i.
local function piece_of(own, i)
  local K, d, product, piece = own.K, own.stage.c.row, own.stage.product, own.pieces[i]
  local group, runs = piece.group, product.runs[piece.kind]
  local function y_of(g, row) return own.p["y" .. i]:at(g * (group.used * d)):at(row * d) end
  if ways.of(product.scheme).buffered and #runs == 1 and runs[1].count == 1 and not piece.asked then
    local function at(g) return g, runs[1].at, y_of(g, runs[1].at) end
    return tiles_of(own, i, runs[1], piece.before, piece.count, at)
  end
  K:each("g", piece.count, function(g)
    local number = g * tiles.count(product, piece.kind) + piece.before
    for _, run in ipairs(runs) do
      K:each("tile", run.count, function(j)
        local row = j * run.size + run.at
        local function tile(to) tiles_of(own, i, run, number + j, 1, function() return g, row, to end) end
        local left = piece.asked and own.p["asked" .. i] - g * group.used - row
        asked.tile(K, { size = run.size, left = left, to = y_of(g, row), tail = own.p.tail, row = d,
                         vecs = own.panels.vecs, used = own.panels.used }, tile)
      end)
      number = number + run.count
    end
  end)
end

-- The part of a block that has one kind of groups, from number own.first of the kind on: { group, kind, count of equal
-- groups, o, y, scales, times, add, before: number of tiles in other pieces }. asked: how many rows a run asks for from
-- the piece's first row on, if it says.
local function piece_at(K, place, stage, piece, own)
  local plan, memory, a = K.plan, K.plan.memory, stage.a
  local group = plan.groups[piece.kind]
  local row, column = own.first * group.used + group.q0, own.column
  local function of_group(name) return memory:of_group(place, name, group, own.first) end
  local function rows_of(tensor)
    return tensor and memory:tensor(place, tensor):at(layouts.at(tensor, row) + layouts.column_at(tensor, column))
  end
  return {
    before = own.before, group = group, kind = piece.kind, count = piece.count, asked = place.rows and place.rows - row,
    o = a.at == "rows" and memory:tensor(place, a):at(layouts.at(a, row)) or of_group(a.name),
    y = rows_of(stage.c), times = rows_of(stage.times), add = rows_of(stage.add),
    scales = a.scales and (scaled_rows(stage) and memory:at(place, a.scales):at(row) or of_group(a.scales)) }
end

-- Panel j of a block of equal panels, for all rows of the i-th of a block of equal blocks of groups.
function M.emit(K, place, stage, ...)
  local block, i, panels, j = ...
  local plan, product, total = K.plan, stage.product, 0
  choices.add(K.t.why, "output_order")
  local column, pieces = j * panels.width + panels.at, {}
  local panel, wo = tiles.panel_at(product, panels, j), plan.memory:at(place, stage.wide or stage.weights.section)
  for n, piece in ipairs(block.pieces) do
    local first = i * piece.count + piece.first
    pieces[n] = piece_at(K, place, stage, piece, { first = first, column = column, before = total })
    total = total + piece.count * tiles.count(product, piece.kind)
  end
  local fetched = { plan = plan, product = product, behind = 0, count = total }
  local own = { K = K, stage = stage, pieces = pieces, panels = panels, panel = wo:at(panel),
                fetched = fetched, next = plan.fetch and wo:at((fetch.next(fetched, panels, panel))) or nil,
                bias = plan.memory:at(place, stage.bias.section):at(column),
                tail = place.rows and stage.c.at == "input" and plan.memory:at(place, "tail"):at(column) }
  local name, doc, params = signature(own)
  K:part(name, doc, params, function(p)
    for n in ipairs(pieces) do piece_of(graph.with(own, { p = p }), n) end
  end)
end

return M
