-- How a tile of a product ends: the one place that makes the list of its epilogue (emit/epilogue.lua), in this order:
--
--   floats of the sums   converts integer sums and applies scales; adds the bias, or the sums of earlier chunks
--   activate             a function of each number, after the last chunk
--   times, add           multiplies by rows of another tensor, and adds those of one, after the last chunk
--   store                scales, rounds or packs into pairs, as the layout of C says (`stored` in graph/layout.lua)

local activations = require "tape.activation"
local epilogue = require "emit.epilogue"
local expr = require "base.expr"
local fetch = require "emit.fetch"
local gemm = require "emit.gemm"
local layouts = require "graph.layout"
local ways = require "way.init"

local M = {}

-- What is done with the rows of another tensor, by the field of the tile, in this order. name, text: what comes before
-- the tensor in a function's name and comment; step: that of the epilogue.
local BESIDE = {
  { field = "times", name = "_times_", text = ", times rows of ",
    step = function(t, given) return epilogue.times(t, given, "factor_") end },
  { field = "add", name = "_plus_", text = ", plus rows of ",
    step = function(t, given) return epilogue.add(t, given, "added_", "given_") end },
}

-- The tensors that a tile is multiplied by or added to, { of, rows } each, and its activation function. They belong to
-- the end of the last chunk.
local function beside(tile)
  local list = {}
  for _, of in ipairs(tile.last and BESIDE or {}) do
    if tile[of.field] then list[#list + 1] = { of = of, rows = tile[of.field] } end
  end
  return list
end

local function activation(tile, isa) return tile.last and activations.behind(tile.activate, tile.b.scheme, isa) end

-- Their parts of a function's name and of its comment.
function M.more(tile, isa)
  local activate, name, text = activation(tile, isa), "", ""
  if activate then name, text = "_" .. activate.exact, ", then " .. activate.exact end
  for _, other in ipairs(beside(tile)) do
    name, text = name .. other.of.name .. other.rows.name, text .. other.of.text .. other.rows.name
  end
  return name, text
end

-- Adds the parameters of an epilogue. `of` has those of its rows, as M.of_rows returns them.
function M.add_params(params, tile, of)
  for _, param in ipairs { { "row_scales", "in", of.row_scales }, { "row_sums", "in", tile.a.sums },
                           { "scales", "in", tile.b.scales }, { "next_scales", "in", tile.b.next_scales },
                           { "bias", "in", tile.mode ~= "next" and tile.bias } } do
    params[#params + 1] = param
  end
  for _, other in ipairs(beside(tile)) do
    params[#params + 1] = { other.of.field, "in", of[other.of.field] }
  end
  params[#params + 1] = { "c", "out", of.c }
  return params
end

-- The operands of an epilogue that depend on the rows of its tile.
function M.of_rows(tile)
  return { row_scales = tile.a.scales, c = tile.c.p, times = tile.times and tile.times.p,
           add = tile.add and tile.add.p }
end

local function fetch_scales(t, tile, p)
  if not p.next_scales then return end
  local hints = tile.b.fetched.hints
  fetch(t, tile.b.scheme.scales.bytes, #tile.vecs * t.isa.lanes, p.next_scales, hints[#hints].op)
end

-- Returns the initial values of the sums, or nil. Also returns a function of the target, which makes the step of the
-- epilogue that turns sums into floats, or nil.
local function of_floats(K, tile, p)
  local t, next_chunk = K.t, tile.mode == "next"
  -- The bias is added last if scales apply first, or if the sums are not in the order of columns.
  local bias_last = p.scales or ways.of(tile.b.scheme).finish
  return p.bias and not bias_last and tile.start(t, p.bias) or nil, function(target)
    fetch_scales(t, tile, p)
    local more = next_chunk and target or p.bias and { p = p.bias, row = 0 }
    return p.scales and epilogue.scaled(t, p.scales, more)
      or (next_chunk or bias_last and more) and epilogue.add(t, more) or nil
  end
end

-- The same for integer sums. b.scales are those of the columns, a.scales those of the rows. Initial values of the sums,
-- if there are any, lie after the scales of columns, or after those of rows (a.sums).
local function of_words(K, tile, p, base)
  local t, scheme = K.t, tile.b.scheme
  local init = scheme.unsigned and gemm.from_columns(t, p.scales:at(tile.b.k_stride), scheme)
    or p.row_sums and gemm.from_row(t, p.row_sums:at(base), scheme) or nil
  return init, function(target)
    local columns = {}
    for c, v in ipairs(tile.vecs) do
      local at = (c - 1) * t.isa.lanes
      columns[c] = { scale = t:op("load", v.w, "scale_c" .. c - 1, p.scales:at(at)),
                     bias = p.bias and t:op("load", v.w, "bias_c" .. c - 1, p.bias:at(at)) }
    end
    fetch_scales(t, tile, p)
    return epilogue.from_words(t, p.row_scales:at(base), columns, tile.mode == "next" and target)
  end
end

-- The target of an epilogue for `rows` rows of a tile from row `base` on.
local function target_of(tile, p, base, rows)
  local ends, row = tile.c.ends, tile.c.row
  return layouts.with(ends, { p = p.c:at(expr.share(base, layouts.rows_of_word(ends)) * row), row = row, rows = rows })
end

-- The end of `rows` rows of a tile from row `base` on, in the function whose parameters are p. init: as of_floats
-- returns it. steps(first, ...): the steps of the epilogue; a product kernel may pass first steps of its own, which
-- then replace the conversion to floats.
function M.of(K, tile, p, base, rows)
  local init, floats = (tile.b.scheme.integers and of_words or of_floats)(K, tile, p, base)
  return { init = init, steps = function(...)
    local target, list = target_of(tile, p, base, rows), { ... }
    if #list == 0 then list[1] = floats(target) end
    local activate = activation(tile, K.plan.isa)
    if activate then
      list[#list + 1] = { apply = function(value, at) return activate.apply(K.t, at.v.w, value, "_" .. at.name) end }
    end
    for _, other in ipairs(beside(tile)) do
      local row = other.rows.row
      list[#list + 1] = other.of.step(K.t, { p = p[other.of.field]:at(base * row), row = row, exact = true })
    end
    list[#list + 1] = epilogue.store_as(K.t, target)
    return list
  end }
end

return M
