-- Tensors of the graph: their place and their layout. All constructors are here.
--
--   field     meaning
--   name      of the section or the pointer
--   at        "input"; "wide", an input in float32; "workspace" or "cache", of a block of heads; "lanes", with lanes
--             over queries, group after group; "task", the same of the group and heads of a task; "rows", of all heads
--   operand   of attention that it has rows of, as it is made or copied: queries, keys or values
--   row       numbers from row to row; head, from head to head
--   heads     of an input or a cache that has heads, their number; width, that of a head
--   columns   its own columns, where rows also have columns of other tensors: those of the tensor with the name
--             `within`, from `column` on
--   grows     of a cache: runs add to it
--   exact     of a cache: it lies as an input does, and nothing may be read or written behind its rows
--   type      of a cache, where that is smaller than float32; scales, the section with those of rows
--   staged    rows that wait to be rounded into such a cache
--   pairs     along which operands lie in pairs, "columns" or "rows" (rewrite/paired.lua); in_place: they become pairs
--             where float32 was
--   held      rows are rounded to the type of attention's operands
--   scale     numbers are multiplied by it as they are stored
--   scaled    of integers: "rows" or "lanes", as their scales lie; scaled_rows: rows of all of these
--   words, k_stride, count, tile_words, rows   of rows of words (schedule/tiles.lua, layout)

local M = {}

-- A tensor with other fields.
function M.with(tensor, fields)
  local copy = {}
  for field, value in pairs(tensor) do copy[field] = value end
  for field, value in pairs(fields) do copy[field] = value end
  return copy
end

-- With fields of its own, or those of another tensor.
local function made(name, at, fields) return M.with(fields or {}, { name = name, at = at }) end

-- Rows of so many numbers that are read as they are given.
function M.input(name, width) return made(name, "input", { row = width, head = 0 }) end

-- The same with heads: side by side in a row, or each with rows of its own.
function M.input_of_heads(name, heads, width, rows, by_head)
  return made(name, "input", { heads = heads, width = width, row = by_head and width or heads * width,
                               head = by_head and rows * width or width })
end

-- Y, where rows of all heads become it.
function M.output() return made("y", "input") end

-- An input in float32.
function M.wide(input) return made("wide_" .. input.name, "wide", input) end

function M.workspace(name, fields) return made(name, "workspace", fields) end

function M.lanes(name, fields) return made(name, "lanes", fields) end

function M.rows(name, fields) return made(name, "rows", fields) end

function M.task(name) return made(name, "task") end

-- A tensor as so many columns of another one.
function M.columns(tensor, within, column, columns)
  return M.with(tensor, { within = within.name, column = column, columns = columns })
end

-- Keys or values that outlive a run: as tiles like them. exact: as others do, without any margin.
function M.cache(stage, grows, exact)
  return made(stage.name, "cache", M.with({ head = stage.cols, operand = stage.name, grows = grows },
    exact and { exact = true, heads = stage.heads, width = stage.cols, row = stage.cols } or {}))
end

-- The same of a smaller type, which has no margin in any case, for no tile reads it. side_by_side: heads are side by
-- side.
function M.small_cache(stage, grows, exact, type, side_by_side)
  return made("cached_" .. stage.name, "cache", M.with(M.cache(stage, grows, exact), {
    type = type, scales = type.scaled and stage.name .. "_scales" or nil, heads = stage.heads, width = stage.cols,
    row = side_by_side and stage.heads * stage.cols or stage.cols }))
end

return M
