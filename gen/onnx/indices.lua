-- Indices of elements in row-major order, from 0, by the axes of a value.
--
--   count(shape, first, last)       elements; those of some axes alone, if first or last is given
--   steps_of(shape)                 from one index of each axis to the next one
--   strided(shape, steps, base)     a function of an index in `shape`
--   broadcast(from, shape)          that of an operand which is broadcast, or nil
--   broadcast_steps(from, shape), joined(a, b)    its steps, or nil; the axes of what two operands make, or nil
--   edges(count)                    indices that represent all of such axes, whatever is split, joined and transposed
--   all_are(list, x)                whether all numbers of a list are x; one that is missing has none
--   axis_of(node, default, rank)    the attribute axis, from 1; nil where there is none
--   attempt(read, ...)              what read returns; nil and why where a node is not as its operator must be

local M = {}

-- The steps from one index of an axis to the next one.
function M.steps_of(shape)
  local steps, step = {}, 1
  for a = #shape, 1, -1 do
    steps[a] = step
    step = step * shape[a]
  end
  return steps
end

function M.count(shape, first, last)
  local count = 1
  for a = first or 1, last or #shape do count = count * shape[a] end
  return count
end

function M.same(i) return i end

-- A function of an index in `shape` whose axes have these steps in another value, from `base` on.
function M.strided(shape, steps, base)
  local sizes, by, plain, step = {}, {}, base == 0, 1
  for a = #shape, 1, -1 do
    plain = plain and (shape[a] == 1 or steps[a] == step)
    step = step * shape[a]
    local last = #sizes
    if shape[a] == 1 then -- its index is 0
    elseif last > 0 and steps[a] == by[last] * sizes[last] then
      sizes[last] = sizes[last] * shape[a]
    else
      sizes[last + 1], by[last + 1] = shape[a], steps[a]
    end
  end
  if plain then return M.same end
  local axes = #sizes
  return function(i)
    local to = base
    for a = 1, axes do
      local size = sizes[a]
      to = to + i % size * by[a]
      i = i // size
    end
    return to
  end
end

-- The axes of what two operands with these make, or nil.
function M.joined(a, b)
  if not a or not b then return nil end
  local shape = {}
  for i = 1, math.max(#a, #b) do
    local x, y = a[#a - i + 1] or 1, b[#b - i + 1] or 1
    if x ~= y and x ~= 1 and y ~= 1 then return nil end
    table.insert(shape, 1, x == 1 and y or x)
  end
  return shape
end

-- The steps of an operand which is broadcast to `shape`, or nil.
function M.broadcast_steps(from, shape)
  local steps, all = M.steps_of(from), {}
  for a = 1, #shape do
    local b = a + #from - #shape
    if b < 1 or from[b] == 1 then all[a] = 0
    elseif from[b] == shape[a] then all[a] = steps[b]
    else return nil end
  end
  return all
end

-- The function of an index in `shape` for such an operand, or nil.
function M.broadcast(from, shape)
  local steps = M.broadcast_steps(from, shape)
  return steps and M.strided(shape, steps, 0)
end

-- 0, the step of each axis that these may be split into, and the last one.
function M.edges(count)
  local list, high = { 0 }, {}
  for step = 1, math.tointeger(math.floor(math.sqrt(count))) do
    if count % step == 0 and step < count then
      list[#list + 1] = step
      if step > 1 and step * step < count then table.insert(high, 1, count // step) end
    end
  end
  table.move(high, 1, #high, #list + 1, list)
  if count > 2 then list[#list + 1] = count - 1 end
  return list
end

function M.all_are(list, x)
  for _, value in ipairs(list or {}) do
    if value ~= x then return false end
  end
  return true
end

function M.axis_of(node, default, rank)
  local axis = node.attributes.axis or default
  if axis < 0 then axis = axis + rank end
  return axis >= 0 and axis < rank and axis + 1 or nil
end

-- Lua's own errors, such as of an attribute of another kind, get words for the user, beside the place by which we find
-- them. Refusals are texts without a place. Others go on.
function M.attempt(read, ...)
  local results = table.pack(pcall(read, ...))
  if results[1] then return table.unpack(results, 2, results.n) end
  local e = results[2]
  if type(e) ~= "string" or e:find("not enough memory", 1, true) then error(e, 0) end
  local place = e:match "^%S+%.lua:%d+: "
  return nil, place and ("a node or a constant of it is not as an operator has it (%s)"):format(e) or e
end

return M
