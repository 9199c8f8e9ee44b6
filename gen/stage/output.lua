-- Y = O Wo + bo, one product over the context of all heads: panels of Wo by blocks of groups of queries.

local choices = require "choices"
local product_of = require "emit.product"
local memory = require "memory"
local tiles = require "tiles"
local words = require "words"

local M = { phase = "output", title = "output" }

local keys = { rows = "out_rows", vectors = "out_vectors" }

-- ---- the plan ----

-- Blocks of groups for the output product: as many groups as the second-level cache holds the context
-- of, so that each panel of Wo is read from farther away once a block. { count, first, pieces } each, a
-- piece being `count` groups of a kind from number `first` of the kind on; in the i-th of several
-- equal blocks from first + i * count on.
local function output_blocks(plan, stage)
  local queries = plan.cfg.out_block or plan.cpu.cached // (memory.BYTES * stage.steps)
  local most = math.max(1, queries // plan.groups[1].width)
  local blocks, total = {}, 0
  for _, run in ipairs(tiles.balanced(plan.group_count, most)) do
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
  local sets, cost = {}, nil
  for i, group in ipairs(plan.groups) do sets[i] = { rows = group.used, count = group.count } end
  stage.product, cost = tiles.columns(plan, keys, sets, stage.cols, stage.steps, "columns")
  stage.blocks, stage.block_count = output_blocks(plan, stage)
  return cost
end

function M.sections(_, stage, add)
  add("packed", { name = "wo", doc = "Wo", count = stage.product.floats })
  add("packed", { name = "bo", doc = "bias", count = stage.product.ld })
end

function M.axes(_, stage)
  return { { var = "part", items = stage.blocks, total = stage.block_count },
           { var = "panel", items = stage.product.blocks, total = stage.product.panels } }
end

-- ---- the work ----

-- A panel of Y, all rows of a block of groups, from the context of all heads. pieces: { group, o, y }
-- each, with the number of equal groups in group.pieces.
local function record(K, stage, pieces, block, panel, bias)
  local plan, product = K.plan, stage.product
  local d, names, queries = stage.cols, {}, 0
  local params = { { "panel", "in", panel }, { "bias", "in", bias } }
  for i, piece in ipairs(pieces) do
    names[i] = piece.count .. "x" .. piece.group.name
    queries = queries + piece.count * piece.group.used
    params[#params + 1] = { "o" .. i, "in", piece.o }
    params[#params + 1] = { "y" .. i, "out", piece.y }
  end
  K:part(("output_%s_%d"):format(table.concat(names, "_"), block.used),
    ("%d columns of Y for %d queries, from the context of all heads."):format(block.used, queries),
    params, function(p)
    for i, piece in ipairs(pieces) do
      local group = piece.group
      K:each("g", piece.count, function(g)
        local o, y = p["o" .. i]:at(g * (stage.steps * group.width)), p["y" .. i]:at(g * (group.used * d))
        for _, run in ipairs(product.runs[piece.kind]) do
          K:each("tile", run.count, function(j)
            local row = j * run.size + run.at
            K:chunks(product.chunks, function(mode, k0, steps)
              product_of.column_tile(K, "output_" .. group.name, run.size, block, mode, steps,
                { p = o:at(row + k0 * group.width), row = 1, step = group.width },
                p.panel:at(k0 * block.width), p.bias, { p = y:at(row * d), row = d, exact = true })
            end)
          end)
        end
      end)
    end
  end)
end

-- The panel of columns j of a block of equal panels, for the i-th of a block of equal output blocks.
function M.emit(K, place, stage, out_block, i, block, j)
  local plan, d = K.plan, stage.cols
  choices.add(K.t.why, "output_order")
  local pieces = {}
  local column = j * block.width + block.at
  local panel = j * (block.width * stage.steps) + block.panel
  for n, piece in ipairs(out_block.pieces) do
    local group = plan.groups[piece.kind]
    local first = i * piece.count + piece.first
    pieces[n] = {
      group = group, kind = piece.kind, count = piece.count,
      o = plan.memory:of_group(place, "context", group, first),
      y = place.y:at((first * group.used + group.q0) * d + column),
    }
  end
  record(K, stage, pieces, block, plan.memory:at(place, "wo"):at(panel), plan.memory:at(place, "bo"):at(column))
end

-- ---- in words, and packed ----

function M.statements(count, plan, stage)
  for i, group in ipairs(plan.groups) do count:columns(stage.product, stage.product.runs[i], group.count) end
end

function M.describe(_, stage)
  return { { "output", ("tiles %s, %s"):format(words.column_tiles(stage.product), words.chain(stage.product.chunks)) } }
end

function M.fills(pack, stage)
  local weights, bias, product, h = stage.weights, stage.bias, stage.product, pack.plan.cfg.h
  pack:panels(product, pack:at "wo", function(block, to, round)
    local heads = weights.b and { count = h, to = weights.steps * block.width, first = weights.inner }
    pack:add(weights.text, { to = to, steps = weights.steps, used = block.used, width = block.width,
      scale = stage.scale, terms = { pack.term(weights, block.at) }, rounds = { heads or round, heads and round } })
  end)
  pack:add(bias.text, { to = pack:at "bo", steps = 1, used = stage.cols, width = product.ld, scale = stage.scale,
    terms = bias.terms, rounds = {} })
end

return M
