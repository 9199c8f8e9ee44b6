-- Rounds operands of a product once, where they are made, instead of at each read.

local context = require "emit.context"
local tiles = require "schedule.tiles"
local transpose = require "emit.transpose"

local M = {}

-- A matrix with lanes over queries; label: of the function. x: p, rows and scheme; with `scale`, numbers are multiplied
-- by it. Rows of pairs go to `to`, or to where the first rows were. Zeros follow them as far as tiles read.
function M.lanes(K, label, group, x)
  local t, round, by = K.t, x.scheme.b.round, x.scheme.group
  if not round and not x.scale then return end
  K:part(("%s_%dx%s"):format(label, x.rows, group.name),
    ("%d rows for a group of queries%s%s."):format(x.rows, x.scale and ", scaled" or "",
      by > 1 and ", in pairs" or round and ", rounded" or ""),
    x.to and { { "x", "in", x.p }, { "pairs", "out", x.to } } or { { "x", "out", x.p } }, function(p)
    local to = p.pairs or p.x
    local function read(v, name, at, scale)
      local value = t:op("load", v.w, "value" .. name, at)
      return scale and t:op("mul", v.w, "scaled" .. name, value, scale) or value
    end
    -- A word holds two neighbouring rows. If their number is odd, it holds two rows that are `words` apart, and the
    -- last word has a zero.
    local words = tiles.words(x.scheme, x.rows)
    local odd = x.rows % by > 0
    local step, distance = odd and 1 or by, odd and words or 1
    local function word(row, alone)
      t:scope(function()
        for c, v in ipairs(group.vecs) do
          local lane, name = (c - 1) * group.lanes, "_c" .. c - 1
          local at, result = p.x:at(row * (step * group.width) + lane), nil
          local scale = x.scale and t:op("set", v.w, "scale" .. name, x.scale)
          if by > 1 then
            local low = read(v, "0" .. name, at, scale)
            local high = alone and t:op("zero", v.w, "none" .. name)
              or read(v, "1" .. name, at:at(distance * group.width), scale)
            result = t:op(x.scheme.pair, v.w, "pair" .. name, low, high)
          else
            result = read(v, name, at, scale)
            if round then result = round(t, v.w, "rounded" .. name, result) end
          end
          t:op("store", v.w, nil, to:at(row * group.width + lane), result)
        end
      end)
    end
    K:each("row", x.rows // by, word)
    if odd then word(words - 1, true) end
    context.clear(K, group, to:at(words * group.width), tiles.padded(x.scheme, words) - words)
  end)
end

-- Interleaves rows of pairs of the context two by two, in place, as mmla reads them; see way/mmla.lua.
function M.blocks(K, group, p, rows)
  local t, width = K.t, group.width
  K:part(("context_blocks_%dx%s"):format(rows, group.name), ("%d rows of pairs, two side by side."):format(rows),
    { { "context", "out", p } }, function(q)
    K:each("row", rows // 2, function(row)
      t:scope(function()
        local list = {}
        for c, v in ipairs(group.vecs) do
          local at, name = q.context:at(row * (2 * width) + (c - 1) * group.lanes), "_c" .. c - 1
          list[c] = { t:op("load", v.w, "first" .. name, at), t:op("load", v.w, "second" .. name, at:at(width)) }
        end
        for c, v in ipairs(group.vecs) do
          local to = q.context:at(row * (2 * width) + 2 * (c - 1) * group.lanes)
          local low, high = transpose.side_by_side(t, v.w, "_c" .. c - 1, list[c][1], list[c][2])
          t:op("store", v.w, nil, to, low)
          t:op("store", v.w, nil, to:at(v.w.lanes), high)
        end
      end)
    end)
  end)
end

return M
