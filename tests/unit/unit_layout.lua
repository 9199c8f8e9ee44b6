-- Where rows, heads and words lie, and the stages that tensors lead to.

local config = require "options.config"
local graph = require "graph.init"
local isas = require "isa.init"
local layouts = require "graph.layout"
local score = require "score.init"
local types = require "machine.types"

return function(check, same)
  local side, apart = layouts.heads(2, 4, 3, false), layouts.heads(2, 4, 3, true)
  same(layouts.at(side, 1, 1), 12, "row 1 of head 1, side by side")
  same(layouts.at(apart, 1, 1), 16, "row 1 of head 1 with rows of its own")
  same(layouts.at(apart, 2), 8, "row 2 of all heads")
  check(layouts.side_by_side(side, 4) and not layouts.side_by_side(apart, 4), "heads side by side")

  local isa = isas.list.avx512_bf16
  local scheme = isas.paired(isa, types.by_name.bf16)
  local keys, values = layouts.pairs(side, "columns", scheme), layouts.pairs(side, "rows", scheme)
  same(keys.head, 2, "words from head to head")
  same(values.head, 4, "numbers from head to head")
  same(layouts.stored(keys).across, 2, "numbers of a row in a word")
  same(layouts.stored(values).down, 2, "numbers of a column in a word")
  same(layouts.stored(layouts.with(values, { in_place = true })).down, 1, "float32 that become pairs later")
  same(layouts.stored(layouts.held(side, scheme)).round, types.by_name.bf16, "rows that are held")
  same(side.pairs, nil, "a layout that another one was made of")
  local tiles = layouts.words(isas.paired(isas.list.amx, types.by_name.bf16), 20, 40)
  same(layouts.word_at(tiles, 17), 16 * tiles.k_stride + 1, "a word in the second block")

  local cfg = config.load(nil, { "h=2", "d_model=8", "dk=4", "seq=5", "isa=scalar" })
  local list = graph.of(cfg, score.of(cfg))
  local attend = graph.attend(list)
  same(graph.projection(list, attend.keys).weights.a, "wk", "the projection of keys")
  same(graph.output(list).weights.a, "wo", "the projection of the context")
  local other = graph.replaced(list, attend.keys, layouts.held(attend.keys, attend.scheme))
  check(graph.projection(other, graph.attend(other).keys).c.held, "a tensor that another one replaces")
  check(graph.projection(list, attend.keys).c == attend.keys and not attend.keys.held, "the list as it was")
end
