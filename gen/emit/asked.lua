-- Tiles of rows where a run may ask for only the first rows (q_len).

local M = {}

-- Copies the rows that are asked for from the tail to the place of the tile. of: see M.tile.
local function copy(K, of)
  local t = K.t
  local function row(r, p)
    for c, v in ipairs(of.vecs) do
      local at, name = r * of.row + (c - 1) * K.plan.isa.lanes, "row_c" .. c - 1
      t:write(v.w, p.to:at(at), t:read("load", v.w, name, p.from:at(at), v.used), v.used)
    end
  end
  K:part(("copy_%d"):format(of.used), ("Copies rows of %d columns."):format(of.used),
    { { "from", "in", of.tail }, { "to", "out", of.to }, { "rows", "int", of.left } }, function(p)
    if not K.full then return t:loop("row", p.rows, function(r) row(r, p) end) end
    for r = 0, of.size - 2 do t:when(r, p.rows, function() row(r, p) end) end
  end)
end

-- Records build(to) for a tile of `size` rows, of which a run asks for the first `left`, or for all if there is no
-- `left`. A tile that is not asked for in full is computed into the buffer `tail`, and only the rows asked for are
-- copied, so that the other rows of Y keep their values. Without a tail it is written whole. of: also `to`, where the
-- tile goes; tail; row, numbers from row to row; used, the columns in the vectors vecs.
function M.tile(K, of, build)
  if not of.left then return build(of.to) end
  if not of.tail then return K.t:when(0, of.left, function() build(of.to) end) end
  K.t:when(of.size - 1, of.left, function() build(of.to) end, of.size > 1 and function()
    K.t:when(0, of.left, function()
      build(of.tail)
      copy(K, of)
    end)
  end)
end

return M
