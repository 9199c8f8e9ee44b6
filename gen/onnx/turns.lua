-- Rotary embedding made of simple operators, recognized by the elements of rows before and after it.
--
--   read(cells, width, first, rows) -> turn; nil with a reason where it is no rotation
--     cells(row, i)    the cells of gen/onnx/operand.lua: one where a column is not turned, else two
--     width, rows      of a head; first: the place of row 0
--     turn             { columns = by i the cell before it, with `added` to it; pairs = { { i, j }, .. },
--                        factor of what is not turned, or of the first pair where all is,
--                        angle(k, place) -> angle, magnitude of pair k }
--   same_pairs(turn, other) -> whether columns are turned in the same pairs
--   sign(turn, first, rows) -> -1 where a head is negated beside the first one, else 1
--   frequencies(turn, first, rows) -> the angle of each pair per position; nil where there is none
--   order(turn, width) -> "half" or "interleaved" and the columns in the order that rope has them

local M = {}

local NEAR = 1e-5

local function near(x, y) return math.abs(x - y) <= NEAR * (1 + math.abs(x)) end

local function with_column(cells, column)
  for k, cell in ipairs(cells) do
    if cell.column == column then return cell, cells[3 - k] end
  end
end

-- Of outputs y_a = c x - s y and y_b = c y + s x the column x; nil and whether it may still be a rotation.
local function own_of(a, b)
  local function turns(x, y)
    local ax, ay, bx, by = with_column(a, x), with_column(a, y), with_column(b, x), with_column(b, y)
    return ax and ay and bx and by and near(ax.factor, by.factor) and near(ay.factor, -bx.factor)
  end
  local first, second = a[1].column, a[2].column
  local plain, crossed = turns(first, second), turns(second, first)
  if plain == crossed then return nil, plain end
  return plain and first or second, true
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
      if by[key] then by[key][#by[key] + 1] = i else
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

-- The cells of a pair before they were turned, and what was added to them then.
local function add_pair(turn, pair, cells, rows)
  for row = rows - 1, math.max(0, rows - 4), -1 do
    local a, b = cells(row, pair[1]), cells(row, pair[2])
    local own, good
    if a and b and #a == 2 and #b == 2 then own, good = own_of(a, b) end
    if not good then return nil, "elements of a head are mixed by what is no rotation" end
    if own then
      local x, y = with_column(a, own)
      local c, s = x.factor, -y.factor
      local square = c * c + s * s
      if square == 0 then return nil, "elements of a head are multiplied by 0" end
      local function before(cell, added)
        return { row = cell.row, column = cell.column, bias = cell.bias, element = cell.element, added = added }
      end
      turn.columns[pair[1]] = before(x, (c * a.constant + s * b.constant) / square)
      turn.columns[pair[2]] = before(y, (c * b.constant - s * a.constant) / square)
      turn.factor = turn.factor or math.sqrt(square)
      return true
    end
  end
  return nil, "a rotation of a head is not told from another one"
end

function M.read(cells, width, first, rows)
  local turn, why = { columns = {} }, nil
  turn.pairs, why = pairs_of(cells, rows - 1, width) -- the first rows may not be turned at all
  if not turn.pairs then return nil, why end
  for i = 0, width - 1 do
    local of = cells(rows - 1, i)
    if #of == 1 then
      local cell = of[1]
      if turn.factor and turn.factor ~= cell.factor or cell.factor == 0 then return nil, "its columns are mixed" end
      turn.factor = cell.factor
      cell.added = of.constant / cell.factor
      turn.columns[i] = cell
    end
  end
  for _, pair in ipairs(turn.pairs) do
    local good, reason = add_pair(turn, pair, cells, rows)
    if not good then return nil, reason end
  end
  function turn.angle(k, place)
    local of, pair = cells(place - first, turn.pairs[k][1]), turn.pairs[k]
    local own, other = with_column(of, turn.columns[pair[1]].column)
    if not other then return 0, own.factor end
    return math.atan(-other.factor, own.factor), math.sqrt(own.factor ^ 2 + other.factor ^ 2)
  end
  return turn
end

local TURN = 2 * math.pi

-- An angle between -pi and pi.
local function wrapped(angle) return angle - TURN * math.floor(angle / TURN + 0.5) end

function M.same_pairs(a, b)
  if #a.pairs ~= #b.pairs then return false end
  for k, pair in ipairs(a.pairs) do
    if pair[1] ~= b.pairs[k][1] or pair[2] ~= b.pairs[k][2] then return false end
  end
  return true
end

-- -1 where the last row of a head is negated beside that of the first head, else 1.
function M.sign(turn, first, rows)
  local off = turn.angle(1, rows - 1) - first.angle(1, rows - 1)
  return math.cos(off) < 0 and -1 or 1
end

-- What tables of float32 may be off at a place.
local function slack(place) return 1e-3 + 1e-5 * place end

-- The angle of pair k from place to place. The farther a place is, the more digits it has of it.
local function frequency(turn, k, first, last)
  local step = wrapped(turn.angle(k, math.min(first + 1, last)) - turn.angle(k, first))
  local far = 1
  repeat
    far = math.min(2 * far, last)
    if far > first then
      local angle, magnitude = turn.angle(k, far)
      local off = wrapped(angle - step * far)
      if math.abs(off) > slack(far) or not near(magnitude, turn.factor) then return nil end
      step = step + off / far
    end
  until far == last
  local angle, magnitude = turn.angle(k, first)
  local good = math.abs(wrapped(angle - step * first)) <= slack(first) and near(magnitude, turn.factor)
  return good and step or nil
end

function M.frequencies(turn, first, rows)
  local all = {}
  for k = 1, rows > 1 and #turn.pairs or 0 do
    all[k] = frequency(turn, k, first, first + rows - 1)
    if not all[k] then return nil end
  end
  return rows > 1 and all or nil
end

-- Pairs (i, i + n) or (2 i, 2 i + 1) stay where they are; others are put into halves, for Q and K alike.
function M.order(turn, width)
  local half, beside, count = true, true, #turn.pairs
  for k, pair in ipairs(turn.pairs) do
    half = half and pair[1] == k - 1 and pair[2] == k - 1 + count
    beside = beside and pair[1] == 2 * k - 2 and pair[2] == 2 * k - 1
  end
  local order, turned, at = {}, {}, 2 * count
  if half or beside then
    for i = 0, width - 1 do order[i] = i end
    return half and "half" or "interleaved", order
  end
  for k, pair in ipairs(turn.pairs) do
    order[k - 1], order[k - 1 + count] = pair[1], pair[2]
    turned[pair[1]], turned[pair[2]] = true, true
  end
  for i = 0, width - 1 do
    if not turned[i] then order[at], at = i, at + 1 end
  end
  return "half", order
end

return M
