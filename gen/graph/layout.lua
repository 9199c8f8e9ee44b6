-- How the numbers of a tensor lie in memory, as values: fields of the tensor that its constructor sets
-- (graph/tensor.lua).
--
--   row, head   numbers from row to row, and from head to head
--   heads       of an input or a cache with heads: their number; width: that of a head
--   columns     the tensor's own columns, if its rows are shared with other tensors: columns of the tensor named
--               `within`, from `column` on
--   exact       of a cache: it is laid out as an input, and nothing may be read or written after its rows
--   pairs       the direction in which operands are packed into pairs, "columns" or "rows" (rewrite/paired.lua);
--               in_place: the pairs take the place of float32
--   held        numbers are rounded to the type of operands
--   scheme      of the products that have these operands: words, pairs and `held` follow it
--   scale       numbers are multiplied by it when they are stored
--   words, k_stride, count   of rows of words: words in a row, with padding; numbers from one K step to the next; all
--               numbers
--   tile_words  of tile registers: words in a row of a tile; a block has all `rows`, so a tile is contiguous
--
-- rows, heads and words make a layout; pairs, held and columns make another one from it. The other functions say where
-- numbers are.

local expr = require "base.expr"
local tiles = require "schedule.tiles"
local ways = require "way.init"

local M = {}

-- A copy of a layout with other fields.
function M.with(layout, fields)
  local copy = {}
  for field, value in pairs(layout) do copy[field] = value end
  for field, value in pairs(fields) do copy[field] = value end
  return copy
end

-- ---- makers ----

-- Rows of so many numbers.
function M.rows(width) return { row = width, head = 0 } end

-- Heads that are side by side in a row, or (by_head) each with rows of its own.
function M.heads(heads, width, rows, by_head)
  return { heads = heads, width = width, row = by_head and width or heads * width,
           head = by_head and rows * width or width }
end

-- Rows of words, as operand A.
function M.words(scheme, rows, words)
  local interleave, tile_words = ways.interleave(scheme), ways.of(scheme).tile_words(scheme)
  local height, padded = tiles.round_up(rows, interleave) + tiles.rows_behind(scheme), tiles.padded(scheme, words)
  return { words = padded, row = tile_words or padded, k_stride = tile_words and height or interleave,
           count = height * padded, tile_words = tile_words, rows = tile_words and rows, scheme = scheme }
end

-- Operands of a scheme in pairs: of the columns of a row, or of every two rows.
function M.pairs(layout, along, scheme)
  return M.with(layout, { pairs = along, scheme = scheme,
                          head = along == "columns" and tiles.words(scheme, layout.head) or layout.head })
end

-- Numbers that are rounded to the type of a scheme's operands.
function M.held(layout, scheme) return M.with(layout, { held = true, scheme = scheme }) end

-- So many columns of the rows of another tensor.
function M.columns(layout, within, column, columns)
  return M.with(layout, { within = within.name, column = column, columns = columns })
end

-- ---- where numbers are ----

-- Where a row begins, for a head or for all.
function M.at(layout, row, head) return head and head * layout.head + row * layout.row or row * layout.row end

-- Where a word of the first row is, in a layout of words.
function M.word_at(layout, word)
  if not layout.tile_words then return word * layout.k_stride end
  local block = expr.div(word, layout.tile_words)
  return block * (layout.tile_words * layout.k_stride) + (word - block * layout.tile_words)
end

-- Where a column of the first row is, also if columns are packed into words.
function M.column_at(layout, column)
  if not layout.words then return column end
  return M.word_at(layout, expr.share(column, M.stored(layout).across))
end

-- Whether heads of so many columns follow each other in a row.
function M.side_by_side(layout, columns) return layout.head == columns end

-- How the epilogue of a tile stores rows, as data.
--   round    the type that they are rounded to
--   pairs    the direction in which they are packed into pairs, of `scheme`; down, across: numbers of a column and of a
--            row in a word
--   scale    they are multiplied by it
--   exact    nothing is written after the columns
--   type     in memory, if it is not float32
function M.stored(layout)
  local along, scheme = not layout.in_place and layout.pairs, layout.scheme
  return { round = layout.held and scheme.b, pairs = along, scheme = scheme, down = along == "rows" and 2 or 1,
           across = along == "columns" and 2 or 1, scale = layout.scale, exact = layout.exact,
           type = (layout.held or along) and scheme.held }
end

-- How many numbers of a column a word has.
function M.rows_of_word(layout) return layout.pairs == "rows" and 2 or 1 end

-- Whether tile registers load such rows past L1, so that a panel of operand B stays there.
function M.streamed(cpu, layout, panel)
  return layout.tile_words ~= nil and 4 * (layout.count + panel) > 2 * cpu.near
end

-- The name of a function that does `what` with some rows of `cols` numbers. The distance of blocks of words depends on
-- the tensor's rows, so the name tells these too.
function M.label(what, layout, rows, cols)
  local apart = layout.tile_words and layout.rows ~= rows and "of" .. layout.rows or ""
  return ("%s_%d%sx%d"):format(what, rows, apart, cols)
end

return M
