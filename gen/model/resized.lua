-- Positions of a square of patches for another number of them: each axis is interpolated by cubic pieces (Keys, Cubic
-- convolution interpolation, 1981), as PyTorch does it in `interpolate` with mode="bicubic", without aligned corners.
--
-- A function of (list, of) to the numbers of the rows of positions of all patches. of: { first = rows in front, which
-- stay, side = of the square, down, across = of the patches, width = of a row, smooth = whether all places that a patch
-- covers are weighed, where there are fewer patches }.

-- The cubic piece at a distance; a: its slope at 1.
local function cubic(x, a)
  x = math.abs(x)
  if x < 1 then return ((a + 2) * x - (a + 3)) * x * x + 1 end
  if x < 2 then return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a end
  return 0.0
end

-- The weights of places for place i of so many: { place = weight }. Those beyond the ends are those at the ends.
local function sharp(side, count, i)
  local at, weights = (i + 0.5) * side / count - 0.5, {}
  local first = math.floor(at)
  for place = first - 1, first + 2 do
    local inside = math.max(0, math.min(side - 1, place))
    weights[inside] = (weights[inside] or 0.0) + cubic(at - place, -0.75)
  end
  return weights
end

-- The same with weights of as many places as one of the others covers, which sum to one.
local function smooth(side, count, i)
  local scale = math.max(1.0, side / count)
  local at, reach, weights, total = (i + 0.5) * side / count, 2 * scale, {}, 0.0
  local first, last = math.max(0, math.floor(at - reach + 0.5)), math.min(side, math.floor(at + reach + 0.5)) - 1
  for place = first, last do
    weights[place] = cubic((place - at + 0.5) / scale, -0.5)
    total = total + weights[place]
  end
  for place = first, last do weights[place] = weights[place] / total end
  return weights
end

-- Weighs rows of numbers: those of a place begin at place * step. Adds them to `to`.
local function add_weighed(list, weights, from, step, width, to)
  local sums = {}
  for i = 1, width do sums[i] = 0.0 end
  for place, weight in pairs(weights) do
    local at = from + place * step
    for i = 1, width do sums[i] = sums[i] + weight * list[at + i] end
  end
  table.move(sums, 1, width, #to + 1, to)
end

return function(list, of)
  local weigh, width, side = of.smooth and smooth or sharp, of.width, of.side
  local front, lines, all = of.first * width, {}, {}
  for y = 0, side - 1 do
    for x = 0, of.across - 1 do
      add_weighed(list, weigh(side, of.across, x), front + y * side * width, width, width, lines)
    end
  end
  table.move(list, 1, front, 1, all)
  for y = 0, of.down - 1 do
    local weights = weigh(side, of.down, y)
    for x = 0, of.across - 1 do add_weighed(lines, weights, x * width, of.across * width, width, all) end
  end
  return all
end
