-- The masks of scores in an ONNX graph: causal masks and windows become keys of the config, others stay inputs.
--
--   read(find, scores, heads) -> keys, masks
--     scores   of gen/onnx/scores.lua
--     heads    { batch = of lead l, head = of lead l, from 0 }
--     keys     causal, causal_align, window_left, window_right
--     masks    those that are left: { value, kind, hidden, axes = letters of "bhqk", node that adds it,
--              at(b, h, q, k) = the index in it }

local constants = require "onnx.constants"
local edges = require "onnx.indices".edges
local evaluate = require "onnx.evaluate"
local scores_of = require "onnx.scores"

local M = {}

local function evaluated(find, value)
  local plan = evaluate.plan(find.graph, find.elements.shapes, { value }, {})
  if not plan or plan.inputs[1] or plan.numbers > evaluate.MOST_NUMBERS then return nil end
  local made = evaluate.run(plan, find.graph.tools.arrays, {}, constants.of, true)
  return made and made[value].at
end

-- The numbers of a mask that depends on no input, which are evaluated once; else nil.
local function numbers_of(find, mask)
  if mask.numbers == nil then mask.numbers = evaluated(find, mask.value) or false end
  return mask.numbers or nil
end

-- Element i of a mask: a number, or what is known of it. Where elements are not known one by one, all of a mask that
-- depends on no input are evaluated.
local function element(find, mask, i)
  local x = find.elements:at(mask.value, i)
  if type(x) == "number" or x.constant == -math.huge then return x end
  local numbers = numbers_of(find, mask)
  return numbers and find.graph.tools.arrays.list(numbers, i, 1)[1] or x
end

-- What a mask says of a key for a query: "hidden", "seen", "bias" for another number, "open" where inputs say it. What
-- is added to -inf hides no less.
local function say(find, mask, index)
  local x = element(find, mask, mask.at(index))
  if type(x) ~= "number" then return mask.kind == "add" and x.constant == -math.huge and "hidden" or "open" end
  if mask.kind == "bool" then return (x ~= 0) == mask.hidden and "hidden" or "seen" end
  return x <= scores_of.ADDED and "hidden" or x == 0 and "seen" or "bias"
end

-- Numbers from 0 to count - 1: the first ones, some between, the last ones.
local function samples(count)
  local list, seen = {}, {}
  local function add(i)
    if i >= 0 and i < count and not seen[i] then list[#list + 1], seen[i] = i, true end
  end
  for i = 0, 2 do add(i) end
  for i = 1, 3 do add(i * count // 4) end
  for i = count - 2, count - 1 do add(i) end
  return list
end

-- The keys that some queries of the first head may see, each { row, first, last }; nil where those are not all between.
-- The proof of a layer says whether all queries see such keys.
local function ranges_of(state, index, rows, columns)
  local ranges = {}
  for _, row in ipairs(samples(rows)) do
    local range, count = { row = row }, 0
    for column = 0, columns - 1 do
      local what = state(index(1, row, column))
      if what ~= "hidden" then range.first, range.last, count = range.first or column, column, count + 1 end
    end
    if count == 0 or count ~= range.last - range.first + 1 then return nil end
    ranges[#ranges + 1] = range
  end
  return ranges
end

-- How far to one side queries see, whose own keys are `offset` behind their numbers; false: to the end; nil: neither.
local function reach(ranges, name, offset, stop, sign)
  local far
  for _, range in ipairs(ranges) do
    if range[name] ~= stop then
      local own = sign * (range[name] - range.row - offset)
      if own < 0 or far and own ~= far then return nil end
      far = own
    end
  end
  for _, range in ipairs(ranges) do -- those that see to the end must reach it
    if far and range[name] == stop and sign * (range.row + offset + sign * far - stop) < 0 then return nil end
  end
  return far or false
end

-- Along which axes the index in a mask moves: { b, h, q, k = true }.
local function moves_of(mask, product, heads, index)
  local own, first = {}, mask.at(index(1, 0, 0))
  for _, row in ipairs(edges(product.rows)) do own.q = own.q or mask.at(index(1, row, 0)) ~= first end
  for _, column in ipairs(edges(product.columns)) do own.k = own.k or mask.at(index(1, 0, column)) ~= first end
  for lead = 1, product.leads do
    local at = mask.at(index(lead, 0, 0))
    if at ~= first then
      own.b = own.b or heads.head[lead] == heads.head[1]
      own.h = own.h or heads.batch[lead] == heads.batch[1]
    end
  end
  return own
end

-- { left, right, offset } of a mask that hides what is far from a query; nil if it is none.
local function band_of(state, index, rows, columns)
  local ranges = ranges_of(state, index, rows, columns)
  for _, offset in ipairs(ranges and (rows == columns and { 0 } or { columns - rows, 0 }) or {}) do
    local left = reach(ranges, "first", offset, 0, -1)
    local right = reach(ranges, "last", offset, columns - 1, 1)
    if left ~= nil and right ~= nil then return { left = left, right = right, offset = offset } end
  end
end

local ROWS = 256 -- of a mask of constants that are compared, of each head

-- Numbers of a mask, of those of all its elements: the columns of a row, whose indices `at` says.
local function row_of(find, numbers, at, columns)
  local list = find.graph.tools.arrays.list
  if columns == 1 or at(columns - 1) - at(0) == columns - 1 then return list(numbers, at(0), columns) end
  local all = {}
  for column = 0, columns - 1 do all[column + 1] = list(numbers, at(column), 1)[1] end
  return all
end

-- Whether a mask of constants does what a band does, in many rows of all heads: of one that is `left` besides, whether
-- it hides this. True of masks that inputs change.
local function is_band(find, mask, product, index, band, left)
  local numbers, known = numbers_of(find, mask), {}
  for lead = 1, numbers and product.leads or 0 do
    local first = mask.at(index(lead, 0, 0))
    for row = 0, known[first] and -1 or product.rows - 1, math.max(1, product.rows // ROWS) do
      local own = row + band.offset
      local from, to = band.left and own - band.left or 0, band.right and own + band.right or product.columns
      local function at(column) return mask.at(index(lead, row, column)) end
      for k, x in ipairs(row_of(find, numbers, at, product.columns)) do
        local hidden = x <= scores_of.ADDED
        if mask.kind == "bool" then hidden = (x ~= 0) == mask.hidden end
        if hidden ~= (k - 1 < from or k - 1 > to) then return false end
        if not left and not hidden and mask.kind == "add" and x ~= 0 then return false end
      end
    end
    known[first] = true
  end
  return true
end

-- The letters of the axes that a mask has.
local function axes_of(own)
  local letters = {}
  for letter in ("bhqk"):gmatch "." do
    if own[letter] or letter == "k" then letters[#letters + 1] = letter end
  end
  return table.concat(letters)
end

-- What one mask says, by value: layers share masks, and the answer takes long.
local function read_mask(find, mask, product, heads, index, as_they_are)
  local known = find.masks[mask.value]
  local of = { as_they_are or false, mask.kind, mask.hidden or false, product.rows, product.columns, product.leads }
  for i, word in ipairs(of) do of[i] = tostring(word) end
  local how = table.concat(of, " ")
  if known and known.how == how then return known end
  local counts = { hidden = 0, seen = 0, bias = 0, open = 0 }
  local function state(i)
    local what = say(find, mask, i)
    counts[what] = counts[what] + 1
    return what
  end
  local band = not as_they_are and band_of(state, index, product.rows, product.columns) or nil
  local left = counts.bias + counts.open > 0
  if band and not is_band(find, mask, product, index, band, left) then band = nil end
  known = { how = how, band = band, left = not band or left,
            axes = axes_of(moves_of(mask, product, heads, index)) }
  find.masks[mask.value] = known
  return known
end

local function add_band(keys, band, product)
  local right = band.right or nil
  if band.left and (not keys.window_left or band.left < keys.window_left) then keys.window_left = band.left end
  if right == 0 then keys.causal = true
  elseif right and (not keys.window_right or right < keys.window_right) then keys.window_right = right end
  if (right or band.left) and product.rows ~= product.columns then
    keys.causal_align = band.offset == 0 and "top_left" or "bottom_right"
  end
end

function M.read(find, scores, heads, as_they_are)
  local keys, masks, product = {}, {}, scores.product
  local function index(lead, row, column) return ((lead - 1) * product.rows + row) * product.columns + column end
  for _, mask in ipairs(scores.masks) do
    local known = read_mask(find, mask, product, heads, index, as_they_are)
    if known.band then add_band(keys, known.band, product) end
    if known.left then
      local function at(b, h, row, column)
        local lead = 1
        while heads.batch[lead] ~= b or heads.head[lead] ~= h do lead = lead + 1 end
        return mask.at(index(lead, row, column))
      end
      masks[#masks + 1] = { value = mask.value, kind = mask.kind, hidden = mask.hidden, axes = known.axes,
                           node = mask.node, at = at }
    end
  end
  return keys, masks
end

return M
