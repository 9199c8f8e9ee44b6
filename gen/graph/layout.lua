-- How the numbers of a tensor lie, as values: fields that its maker gives it (graph/tensor.lua).
--
--   row, head   numbers from row to row, and from head to head
--   heads       of an input or a cache that has heads, their number; width, that of a head
--   columns     its own columns, where rows also have columns of other tensors: those of the tensor with the name
--               `within`, from `column` on
--   exact       of a cache: it lies as an input does, and nothing may be read or written behind its rows
--   pairs       along which operands lie in pairs, "columns" or "rows" (rewrite/paired.lua); in_place: they become
--               pairs where float32 was
--   held        numbers are rounded to the type of operands
--   scheme      how the products multiply whose operands these are: of words, pairs, and what is held
--   scale       numbers are multiplied by it as they are stored
--   words, k_stride, count   of rows of words: words of a row, zeros among them; numbers from one K step to the next,
--               and of all
--   tile_words  of tile registers: words of a row of a tile; a block has all `rows`, so a tile is one piece of memory
--
-- rows, heads, words make one; pairs, held, columns another one of it. The other functions answer where numbers are.

local expr = require "base.expr"
local tiles = require "schedule.tiles"
local ways = require "way.init"

local M = {}

-- Fields with others.
function M.with(layout, fields)
  local copy = {}
  for field, value in pairs(layout) do copy[field] = value end
  for field, value in pairs(fields) do copy[field] = value end
  return copy
end

-- ---- makers ----

-- Rows of so many numbers.
function M.rows(width) return { row = width, head = 0 } end

-- Heads that are side by side in a row, or each with rows of its own.
function M.heads(heads, width, rows, by_head)
  return { heads = heads, width = width, row = by_head and width or heads * width,
           head = by_head and rows * width or width }
end

-- Rows of words that are operand A.
function M.words(scheme, rows, words)
  local interleave, tile_words = ways.interleave(scheme), ways.of(scheme).tile_words(scheme)
  local height, padded = tiles.round_up(rows, interleave) + tiles.rows_behind(scheme), tiles.padded(scheme, words)
  return { words = padded, row = tile_words or padded, k_stride = tile_words and height or interleave,
           count = height * padded, tile_words = tile_words, rows = tile_words and rows, scheme = scheme }
end

-- Numbers in pairs of operands of a scheme: of the columns of a row, or of each two rows.
function M.pairs(layout, along, scheme)
  return M.with(layout, { pairs = along, scheme = scheme,
                          head = along == "columns" and tiles.words(scheme, layout.head) or layout.head })
end

-- Numbers that are rounded to the type of operands of a scheme.
function M.held(layout, scheme) return M.with(layout, { held = true, scheme = scheme }) end

-- So many columns of the rows of another tensor.
function M.columns(layout, within, column, columns)
  return M.with(layout, { within = within.name, column = column, columns = columns })
end

-- ---- where numbers are ----

-- Where a row begins, of a head or of all.
function M.at(layout, row, head) return head and head * layout.head + row * layout.row or row * layout.row end

-- Where a word of the first row is, in rows of words.
function M.word_at(layout, word)
  if not layout.tile_words then return word * layout.k_stride end
  local block = expr.div(word, layout.tile_words)
  return block * (layout.tile_words * layout.k_stride) + (word - block * layout.tile_words)
end

-- Whether heads of so many columns are one behind the other in a row.
function M.side_by_side(layout, columns) return layout.head == columns end

-- How the end of a tile stores rows, as data.
--   round    the type that they are rounded to
--   pairs    along what they become pairs, of `scheme`; down, across: numbers of a column, and of a row, in a word then
--   scale    they are multiplied by it
--   exact    nothing is written behind the columns
--   type     in memory, if that is not float32
function M.stored(layout)
  local along, scheme = not layout.in_place and layout.pairs, layout.scheme
  return { round = layout.held and scheme.b, pairs = along, scheme = scheme, down = along == "rows" and 2 or 1,
           across = along == "columns" and 2 or 1, scale = layout.scale, exact = layout.exact,
           type = (layout.held or along) and scheme.held }
end

-- Numbers of a column that a word has.
function M.rows_of_word(layout) return layout.pairs == "rows" and 2 or 1 end

-- Whether tile registers read such rows past the nearest cache, so that a panel of operand B stays there.
function M.streamed(cpu, layout, panel)
  return layout.tile_words ~= nil and 4 * (layout.count + panel) > 2 * cpu.near
end

-- The name of a function that does `what` with some rows of as many numbers: blocks of words lie as far apart as the
-- tensor has rows.
function M.label(what, layout, rows, cols)
  local apart = layout.tile_words and layout.rows ~= rows and "of" .. layout.rows or ""
  return ("%s_%d%sx%d"):format(what, rows, apart, cols)
end

return M
