-- Y = O Wo + bo, one product over the context of all heads: panels of Wo by blocks of groups of queries.

local product = require "emit.product"

-- A panel of Y, all rows of a block of groups, from the context of all heads. pieces: { group, o, y }
-- each, with the number of equal groups in group.pieces.
local function output(K, pieces, block, panel, bias)
  local plan = K.plan
  local d, names, queries = plan.cfg.d_model, {}, 0
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
        local o, y = p["o" .. i]:at(g * group.o_floats), p["y" .. i]:at(g * (group.used * d))
        for _, run in ipairs(plan.out.runs[piece.kind]) do
          K:each("tile", run.count, function(j)
            local row = j * run.size + run.at
            K:chunks(plan.out.chunks, function(mode, k0, steps)
              product.column_tile(K, "output_" .. group.name, run.size, block, mode, steps,
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
local function emit(K, place, out_block, i, block, j)
  local plan, d = K.plan, K.plan.cfg.d_model
  local pieces = {}
  local column = j * block.width + block.at
  local panel = j * (block.width * plan.out.steps) + block.panel
  for n, piece in ipairs(out_block.pieces) do
    local group = plan.groups[piece.kind]
    local first = i * piece.count + piece.first
    pieces[n] = {
      group = group, kind = piece.kind, count = piece.count,
      o = place.ws:at(plan.entry.o + group.o + first * group.o_floats),
      y = place.y:at((first * group.used + group.q0) * d + column),
    }
  end
  output(K, pieces, block, place.packed:at(plan.packed.wo + panel), place.packed:at(plan.packed.bo + column))
end

return function(plan)
  return { {
    phase = "output", title = "output", emit = emit,
    axes = { { var = "part", items = plan.out_blocks, total = plan.out_block_count },
             { var = "panel", items = plan.out.blocks, total = plan.panel_count } },
    cycles = 2.0 * plan.cfg.seq * plan.cfg.d_model * plan.out.steps / plan.per_cycle,
  } }
end
