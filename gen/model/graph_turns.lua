-- Rotary embedding that is written out: by the elements of rows before and behind it.
--
--   read(cells, width, first, rows) -> turn
--     cells(row, i)    the cells of gen/model/graph_operand.lua: one where a column is not turned, else two
--     width, rows      of a head; first: the place of row 0
--     turn             { columns = cells by i as they were before, pairs = { { i, j }, .. }, magnitude,
--                        angle(k, place) of pair k }; nil with a reason where it is no rotation
--   frequencies(turn, first, rows) -> the angle of each pair from place to place; nil where they are no such
--   order(turn, width) -> "half" or "interleaved" and the columns in the order that rope has them

local M = {}

local NEAR = 1e-5

local function near(x, y) return math.abs(x - y) <= NEAR * (1 + math.abs(x)) end

-- The two outputs that each pair of columns has, and the one of them that an output was before: for output i, column
-- k of its cells. Of a rotation of the first by the other one, y_i = c x_i - s x_j and y_j = c x_j + s x_i.
local function own_of(a, b)
  local function factor(cells, column)
    for _, cell in ipairs(cells) do
      if cell.column == column then return cell.factor end
    end
  end
  local first, second = a[1].column, a[2].column
  local function turns(x, y)
    local xx, xy, yx, yy = factor(a, x), factor(a, y), factor(b, x), factor(b, y)
    return xx and xy and yx and yy and near(xx, yy) and near(xy, -yx)
  end
  local plain, crossed = turns(first, second), turns(second, first)
  if plain == crossed then return nil, plain end
  return plain and first or second, true
end

local function with_column(cells, column)
  for k, cell in ipairs(cells) do
    if cell.column == column then return cell, cells[3 - k] end
  end
end

-- Outputs by the columns that they are made of.
local function pairs_of(cells, row, width)
  local by, all = {}, {}
  for i = 0, width - 1 do
    local of = cells(row, i)
    if not of or #of > 2 then return nil, "elements of a head are mixed" end
    if #of == 2 then
      local low, high = of[1].column, of[2].column
      local key = math.min(low, high) .. " " .. math.max(low, high)
      if by[key] then by[key][2] = i else
        by[key] = { i }
        all[#all + 1] = by[key]
      end
    end
  end
  for _, pair in ipairs(all) do
    if #pair ~= 2 then return nil, "elements of a head are no pairs" end
  end
  return all
end

function M.read(cells, width, first, rows)
  local turn = { columns = {} }
  local reason
  turn.pairs, reason = pairs_of(cells, 0, width)
  if not turn.pairs then return nil, reason end
  for i = 0, width - 1 do
    local of = cells(0, i)
    if #of == 1 then turn.columns[i] = of[1] end
  end
  for _, pair in ipairs(turn.pairs) do
    for row = 0, math.min(rows, 4) - 1 do
      local a, b = cells(row, pair[1]), cells(row, pair[2])
      local own, good = own_of(a, b)
      if not good then return nil, "elements of a head are mixed by what is no rotation" end
      if own then
        turn.columns[pair[1]] = with_column(a, own)
        _, turn.columns[pair[2]] = with_column(a, own)
        break
      end
    end
    if not turn.columns[pair[1]] then return nil, "a rotation of a head is not told from another one" end
  end
  function turn.angle(k, place)
    local of = cells(place - first, turn.pairs[k][1])
    local own, other = with_column(of, turn.columns[turn.pairs[k][1]].column)
    return math.atan(-other.factor, own.factor), math.sqrt(own.factor ^ 2 + other.factor ^ 2)
  end
  return turn
end

local TURN = 2 * math.pi

-- An angle between -pi and pi.
local function wrapped(angle) return angle - TURN * math.floor(angle / TURN + 0.5) end

-- Angles grow by the same from place to place. The farther a place is, the more digits the step has.
function M.frequencies(turn, first, rows)
  local all, last = {}, first + rows - 1
  for k = 1, #turn.pairs do
    local step = rows > 1 and wrapped(turn.angle(k, first + 1) - turn.angle(k, first)) or 0
    local start = first == 0 and 0 or turn.angle(k, first) - step * first
    if rows > 1 and math.abs(wrapped(start)) > 1e-3 + 1e-6 * first then return nil end
    local far = 2
    repeat
      local place = math.min(far, last)
      if place >= first and place > 0 then
        local angle, magnitude = turn.angle(k, place)
        local error = wrapped(angle - step * place)
        if math.abs(error) > 1e-3 + 1e-5 * place or not near(magnitude, 1) and not turn.magnitude then
          if math.abs(error) > 1e-3 + 1e-5 * place then return nil end
        end
        step = step + error / place
      end
      far = far * 2
    until place == last
    local _, magnitude = turn.angle(k, first)
    if turn.magnitude and not near(magnitude, turn.magnitude) then return nil end
    turn.magnitude = turn.magnitude or magnitude
    if math.abs(wrapped(turn.angle(k, first) - step * first)) > 1e-3 + 1e-5 * first then return nil end
    all[k] = step
  end
  return all
end

-- Pairs (i, i + n) or (2 i, 2 i + 1) stay where they are; others are put into halves, for Q and K alike.
function M.order(turn, width)
  local half, beside, count = true, true, #turn.pairs
  for k, pair in ipairs(turn.pairs) do
    half = half and pair[1] == k - 1 and pair[2] == k - 1 + count
    beside = beside and pair[1] == 2 * k - 2 and pair[2] == 2 * k - 1
  end
  local order, turned = {}, {}
  if half or beside then
    for i = 0, width - 1 do order[i] = i end
    return half and "half" or "interleaved", order
  end
  for k, pair in ipairs(turn.pairs) do
    order[k - 1], order[k - 1 + count] = pair[1], pair[2]
    turned[pair[1]], turned[pair[2]] = true, true
  end
  local at = 2 * count
  for i = 0, width - 1 do
    if not turned[i] then
      order[at] = i
      at = at + 1
    end
  end
  return "half", order
end

return M
