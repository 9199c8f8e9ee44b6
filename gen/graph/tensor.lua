-- Tensors of the graph: where they are, and their layout. All constructors are here.
--
--   field     meaning
--   name      of the section or the pointer
--   at        "input"; "wide", an input in float32; "workspace" or "cache", of a block of heads; "lanes", with queries
--             in the lanes, group by group; "task", the same for the group and heads of a task; "rows", of all heads
--   operand   which operand of attention its rows are, as made or copied: queries, keys or values
--   grows     of a cache: runs append to it
--   type      of a cache that is smaller than float32; scales: the section with the scales of its rows
--   staged    its rows wait to be rounded into such a cache
--   scaled    "rows" or "lanes": the layout of the scales of integers; scaled_rows: the rows that have scales
--   and those of graph/layout.lua: how its numbers lie

local layout = require "graph.layout"

local M = {}

-- A copy of a tensor with other fields.
M.with = layout.with

-- A tensor; fields: more fields, perhaps those of another tensor.
local function made(name, at, fields) return M.with(fields or {}, { name = name, at = at }) end

-- Rows of so many numbers that are read as they are given.
function M.input(name, width) return made(name, "input", layout.rows(width)) end

-- The same with heads: side by side in a row, or each with rows of its own.
function M.input_of_heads(name, heads, width, rows, by_head)
  return made(name, "input", layout.heads(heads, width, rows, by_head))
end

-- Y, as rows of `width` numbers.
function M.output(width) return made("y", "input", M.with(layout.rows(width), { exact = true })) end

-- An input in float32.
function M.wide(input) return made("wide_" .. input.name, "wide", input) end

function M.workspace(name, fields) return made(name, "workspace", fields) end

function M.lanes(name, fields) return made(name, "lanes", fields) end

function M.rows(name, fields) return made(name, "rows", fields) end

function M.task(name) return made(name, "task") end

-- The cache of keys or values. exact: laid out as inputs are, without any rows or columns for tiles to touch. Otherwise
-- as tiles prefer it.
function M.cache(stage, grows, exact)
  return made(stage.name, "cache", M.with({ head = stage.cols, operand = stage.name, grows = grows },
    exact and { exact = true, heads = stage.heads, width = stage.cols, row = stage.cols } or {}))
end

-- The same for a smaller type. It never has extra rows, because no tile reads it. side_by_side: heads are side by side
-- in a row.
function M.small_cache(stage, grows, exact, type, side_by_side)
  return made("cached_" .. stage.name, "cache", M.with(M.cache(stage, grows, exact), {
    type = type, scales = type.scaled and stage.name .. "_scales" or nil, heads = stage.heads, width = stage.cols,
    row = side_by_side and stage.heads * stage.cols or stage.cols }))
end

return M
