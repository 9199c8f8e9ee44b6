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
local tiles = require "schedule.tiles"
local ways = require "way.init"
local wording = require "base.wording"

local M = { phase = "output", title = "output", fills = packed.fills }

local KEYS = { rows = "out_rows", vectors = "out_vectors" }

-- The tiles for these groups, and their cost.
local function columns(plan, stage, of)
  local sets = {}
  for i, group in ipairs(of) do
    sets[i] = { rows = group.used, count = group.count, even = ways.interleave(stage.scheme) > 1 }
  end
  return tiles.columns(tiles.target(plan, stage.multiplied), KEYS, sets, stage.cols,
    { steps = tiles.words(stage.scheme, stage.steps), order = "columns",
      rounded = layouts.stored(stage.c).pairs or plan.arrays.round and stage.c.at == "input" })
end

-- The cost of one of these groups.
function M.cost(plan, stage, group)
  local _, cost = columns(plan, stage, { graph.with(group, { count = 1 }) })
  return cost
end

function M.plan(plan, stage)
  local product, cost = columns(plan, stage, plan.groups)
  -- L2 holds the rows of A of a block, so that each panel is read from L3 or DRAM once a block.
  local queries = plan.cpu.cached // (memory.BYTES * stage.steps)
  local blocks, block_count = groups.blocks(plan, math.max(1, queries // plan.groups[1].width))
  return cost, { product = product, blocks = blocks, block_count = block_count, packed = packed.panels(stage, product) }
end

function M.sections(plan, stage, add)
  packed.sections(stage, stage.packed, "packed", (stage.weights.section:gsub("^w", "W")), add)
  local c = stage.c
  if c.at == "rows" then
    add("entry", { name = c.name, doc = stage.doc.c, cols = c.row, count = c.count or plan.cfg.seq * c.row,
                   type = layouts.stored(c).type })
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

-- The parameters of a panel's function for each piece: the piece's field, the name that a number follows, and the kind.
local OF_PIECE = { { "a", "o", "in" }, { "scales", "scales", "in" }, { "c", "y", "out" }, { "times", "f", "in" },
                   { "add", "x", "in" }, { "asked", "asked", "int" } }

-- Returns the name, the comment and the parameters of a panel's function. own: as in `emit`.
local function signature(own)
  local names, queries, stage, columns = {}, 0, own.stage, own.panels.used
  local params = { { "panel", "in", own.panel }, { "bias", "in", own.bias }, { "next", "in", own.next } }
  for i, piece in ipairs(own.pieces) do
    names[i] = piece.count .. "x" .. piece.group.name
    queries = queries + piece.count * piece.group.used
    for _, param in ipairs(OF_PIECE) do params[#params + 1] = { param[2] .. i, param[3], piece[param[1]] } end
  end
  params[#params + 1] = { "tail", "out", own.tail }
  return ("%s_%s_%d"):format(stage.name, table.concat(names, "_"), columns),
    ("%d columns of %s for %d queries, from %s."):format(columns, stage.doc.c, queries, stage.doc.a), params
end

-- Piece i in the function whose parameters are p.
local function inside(piece, p, i)
  local values = {}
  for _, param in ipairs(OF_PIECE) do values[param[1]] = p[param[2] .. i] end
  return graph.with(piece, values)
end

-- Rows of a tensor at p, from row `row` of group g of a piece on.
local function rows_at(piece, p, tensor, g, row)
  return p:at(g * (piece.group.used * tensor.row)):at(row * tensor.row)
end

-- `count` tiles of a piece, of which the first is number `number` of all. at(i): the i-th tile's group, its first row
-- in that group, and where it goes.
local function tiles_of(own, piece, run, number, count, at)
  local stage, group, p = own.stage, piece.group, own.p
  local a, product, by_query = stage.a, stage.product, stage.a.scaled == "rows"
  local words = product.steps * group.width -- of a group with queries in the lanes
  local row, k_stride, scales = a.row, a.k_stride or 1, group.used
  if a.at == "lanes" then row, k_stride = ways.interleave(stage.scheme), group.width end
  if a.scales and not by_query then scales = group.width * quantize.scales_of_row(product.scheme, product.steps) end
  -- The rows of another tensor beside those of a tile.
  local function beside(field, g, from)
    local other = stage[field]
    return other and { name = other.name, p = rows_at(piece, piece[field], other, g, from), row = other.row }
  end
  local _, _, first = at(0)
  local tail = first.type ~= piece.c.type and "tail_" or ""
  product_of.each_tile(own.K, product, own.panels, run.size, count, {
    label = ("%s_%s%s"):format(stage.name, tail, group.name), alone = true, bias = p.bias, w = p.panel, a = a,
    row = row, k_stride = k_stride, all = by_query and own.K.plan.cfg.seq or group.width,
    ends = layouts.stored(stage.c), activate = stage.activate,
    tile = function(n)
      local g, from, to = at(n)
      return { x = a.at == "lanes" and piece.a:at(g * words):at(from * row) or rows_at(piece, piece.a, a, g, from),
               scales = piece.scales and piece.scales:at(g * scales + from),
               next = p.next and fetch.part(own.fetched, p.next, own.panels.width, number + n),
               c = to, row = stage.c.row, times = beside("times", g, from), add = beside("add", g, from) }
    end })
end

-- The rows of a piece.
local function piece_of(own, piece)
  local K, c, product, group = own.K, own.stage.c, own.stage.product, piece.group
  local runs = product.runs[piece.kind]
  if ways.of(product.scheme).buffered and #runs == 1 and runs[1].count == 1 and not piece.asked then
    local row = runs[1].at
    return tiles_of(own, piece, runs[1], piece.before, piece.count, function(g)
      return g, row, rows_at(piece, piece.c, c, g, row)
    end)
  end
  K:each("g", piece.count, function(g)
    for _, run in ipairs(runs) do
      K:each("tile", run.count, function(j)
        local row, number = j * run.size + run.at, g * tiles.count(product, piece.kind) + piece.before + run.first + j
        asked.tile(K, { size = run.size, left = piece.asked and piece.asked - g * group.used - row,
                        to = rows_at(piece, piece.c, c, g, row), tail = own.p.tail, row = c.row,
                        vecs = own.panels.vecs, used = own.panels.used },
          function(to) tiles_of(own, piece, run, number, 1, function() return g, row, to end) end)
      end)
    end
  end)
end

-- The part of a block that has `count` groups of one kind, from number `first` of the kind on, after so many tiles of
-- other pieces: { group, kind, count, before }, and fields of OF_PIECE. asked: how many rows a run asks for from the
-- piece's first row on, if it says.
local function piece_at(own, place, piece, first, before)
  local plan, stage, memory = own.K.plan, own.stage, own.K.plan.memory
  local group, a = plan.groups[piece.kind], stage.a
  local row = first * group.used + group.q0
  local function of_group(name) return memory:of_group(place, name, group, first) end
  local function rows_of(tensor, column)
    return tensor and memory:tensor(place, tensor):at(layouts.at(tensor, row) + layouts.column_at(tensor, column))
  end
  local scales = a.scales and (a.scaled == "rows" and memory:at(place, a.scales):at(row) or of_group(a.scales))
  return { group = group, kind = piece.kind, count = piece.count, before = before, scales = scales,
           a = a.at == "lanes" and of_group(a.name) or rows_of(a, 0), c = rows_of(stage.c, own.column),
           times = rows_of(stage.times, own.column), add = rows_of(stage.add, own.column),
           asked = place.rows and place.rows - row }
end

-- Panel j of a block of equal panels, for all rows of the i-th of a block of equal blocks of groups.
function M.emit(K, place, stage, ...)
  local block, i, panels, j = ...
  local plan, product, column = K.plan, stage.product, j * panels.width + panels.at
  choices.add(K.t.why, "output_order")
  local fetched, sets = { plan = plan, product = product, behind = 0, count = 0 }, {}
  local panel, wo = tiles.panel_at(product, panels, j), plan.memory:at(place, stage.wide or stage.weights.section)
  local own = { K = K, stage = stage, pieces = {}, panels = panels, column = column, panel = wo:at(panel),
                fetched = fetched, next = plan.fetch and wo:at((fetch.next(fetched, panels, panel))),
                bias = plan.memory:at(place, stage.bias.section):at(column),
                tail = place.rows and stage.c.at == "input" and plan.memory:at(place, "tail"):at(column) }
  for n, piece in ipairs(block.pieces) do
    own.pieces[n] = piece_at(own, place, piece, i * piece.count + piece.first, fetched.count)
    fetched.count = fetched.count + piece.count * tiles.count(product, piece.kind)
    sets[n] = { runs = product.runs[piece.kind], count = piece.count, size = plan.groups[piece.kind].used }
  end
  local name, doc, params = signature(own)
  K:part(name, doc, params, function(p)
    local asked = inside(own.pieces[1], p, 1).asked
    fetched.shares = asked and p.next and fetch.shares(K, fetched, asked, sets, { panels })
    for n, piece in ipairs(own.pieces) do piece_of(graph.with(own, { p = p }), inside(piece, p, n)) end
  end)
end

return M
