-- Values of gen/onnx/evaluate.lua: arrays of the host (gen/host/arrays.c) with their axes, and what operators are made
-- of.
--
--   Run                 what meanings get first: { arrays, shapes, opset, number }, and the methods below
--     :constant(x)      a value of one number
--     :ints(x)          its numbers as a list
--     :apply(op, ...)   an operation of the host on numbers of values, which are broadcast
--     :moved(x, shape, steps, base), :transposed(x, perm)    its numbers in other places
--     :reduced(how, x, axes), :mean(x, axes)    over { axis from 1 = true }, which stay as axes of 1
--     :product(a, b), :softmax(x, axes), :largest(x)
--     :taken(x, axis, index)    the numbers at places along an axis from 1
--     :tensor(tensor)   a constant; of a large table only those rows are read that are taken
--   value(at, shape, integer), reshaped(x, shape), copied(list, first, last), joined(...), common(shapes),
--   broadcast_steps(from, shape), refuse(format, ...)
--   mapped(x, integer, of)    of(x), a function of single numbers of x

local constants = require "onnx.constants"
local indices = require "onnx.indices"

local M = {}

local count_of, steps_of = indices.count, indices.steps_of

local Run = {}
Run.__index = Run

local function copied(list, first, last) return table.move(list, first or 1, last or #list, 1, {}) end

local function joined(...)
  local all = {}
  for _, list in ipairs { ... } do table.move(list, 1, #list, #all + 1, all) end
  return all
end

local function refuse(...) error(string.format(...), 0) end

local function value(at, shape, integer) return { at = at, shape = shape, integer = integer or false } end

function Run:constant(x) return value(self.arrays.numbers(1, x), {}, math.type(x) == "integer") end

function Run:ints(x) return self.arrays.list(x.at, 0, count_of(x.shape)) end

local MISFITS = "operands have axes that do not fit"

-- The steps of a value that is broadcast to axes.
local function broadcast_steps(from, shape)
  return #from <= #shape and indices.broadcast_steps(from, shape) or refuse(MISFITS)
end

local function common(shapes)
  local shape = {}
  for _, own in ipairs(shapes) do shape = indices.joined(shape, own) or refuse(MISFITS) end
  return shape
end

-- An operation on numbers, with operands that are broadcast.
function Run:apply(op, ...)
  local operands, shapes, list = { ... }, {}, {}
  for i, x in ipairs(operands) do shapes[i] = x.shape end
  local shape = common(shapes)
  for _, x in ipairs(operands) do
    list[#list + 1], list[#list + 2] = x.at, broadcast_steps(x.shape, shape)
  end
  return value(self.arrays.applied(op, shape, table.unpack(list)), shape, operands[1].integer)
end

-- A value whose numbers are those of x, by steps of each axis from a first one.
function Run:moved(x, shape, steps, base)
  local at = self.arrays.numbers(count_of(shape), 0)
  self.arrays.copy(shape, at, 0, steps_of(shape), x.at, base or 0, steps)
  return value(at, shape, x.integer)
end

function Run:transposed(x, perm)
  local steps, shape, all = steps_of(x.shape), {}, {}
  for a, axis in ipairs(perm) do shape[a], all[a] = x.shape[axis], steps[axis] end
  return self:moved(x, shape, all)
end

local function reshaped(x, shape)
  if count_of(shape) ~= count_of(x.shape) then refuse("a value of %d numbers has axes of others", count_of(x.shape)) end
  return value(x.at, shape, x.integer)
end

-- Sums, ... over some axes (from 1, { axis = true }); they stay as axes of 1.
function Run:reduced(how, x, axes)
  local shape, at = x.shape, x.at
  for a = 1, #shape do
    if axes[a] then
      at = self.arrays.reduced(how, at, count_of(shape, 1, a - 1), shape[a], count_of(shape, a + 1))
      shape = joined(copied(shape, 1, a - 1), { 1 }, copied(shape, a + 1))
    end
  end
  return value(at, shape, x.integer)
end

function Run:mean(x, axes)
  local sum = self:reduced("sum", x, axes)
  return self:apply("div", sum, self:constant(count_of(x.shape) / math.max(1, count_of(sum.shape))))
end

-- The largest number, whatever its sign.
function Run:largest(x)
  return self.arrays.difference(x.at, self.arrays.numbers(count_of(x.shape), 0.0))
end

-- Matrices [.., rows, inner] by [.., inner, columns].
function Run:product(a, b)
  local lead_a, lead_b = copied(a.shape, 1, #a.shape - 2), copied(b.shape, 1, #b.shape - 2)
  local lead = common { lead_a, lead_b }
  local rows, inner, columns = a.shape[#a.shape - 1], a.shape[#a.shape], b.shape[#b.shape]
  if b.shape[#b.shape - 1] ~= inner then refuse("a product of %d columns and %d rows", inner, b.shape[#b.shape - 1]) end
  local function steps(own, size)
    local all = broadcast_steps(own, lead)
    for k = 1, #all do all[k] = all[k] * size end
    return all
  end
  local at = self.arrays.product(a.at, b.at, lead, steps(lead_a, rows * inner), steps(lead_b, inner * columns), rows,
                                 inner, columns)
  return value(at, joined(lead, { rows, columns }))
end

function Run:softmax(x, axes)
  local e = self:apply("exp", self:apply("sub", x, self:reduced("max", x, axes)))
  return self:apply("div", e, self:reduced("sum", e, axes))
end

-- ---- numbers that are read when they are asked for ----

-- read(): all of them; read(places): the rows at a list of places along the first axis.
local unread = { __index = function(x, key)
  if key ~= "at" then return nil end
  x.at = x.read().at
  return x.at
end }

local function later(shape, integer, read)
  return setmetatable({ shape = shape, integer = integer, read = read }, unread)
end

-- What a function of single numbers, of(x), makes of a value: where that is not read, of so much of it as is asked for.
local function mapped(x, integer, of)
  return x.read and later(x.shape, integer, function(places) return of(x.read(places)) end) or of(x)
end

-- The numbers at places along an axis.
function Run:taken(x, axis, index)
  local outer, inner = count_of(x.shape, 1, axis - 1), count_of(x.shape, axis + 1)
  local at = axis == 1 and x.read and not rawget(x, "at") and x.read(self:ints(index)).at
  return value(at or self.arrays.taken(x.at, outer, x.shape[axis], inner, index.at),
               joined(copied(x.shape, 1, axis - 1), index.shape, copied(x.shape, axis + 1)), x.integer)
end

-- ---- constants ----

local MOST_TENSOR = 1 << 27 -- bytes that are read at once

-- So many numbers of a constant from a byte on, in double.
local function decoded(run, tensor, bytes, count)
  local at = bytes and run.arrays.decoded(bytes, tensor.type, count)
  return at or refuse("constant %s of type %s is not read", tensor.name, tensor.type)
end

local function bytes_of(tensor, first, bytes)
  if bytes > MOST_TENSOR then refuse("constant %s is too large", tensor.name) end
  return bytes > 0 and tensor.file:bytes(tensor.at + first, bytes) or bytes == 0 and "" or nil
end

-- Rows of a constant, which have so many bytes. What is at several places is read once.
local function rows_of(run, tensor, bytes, places)
  local read, number, at, all = {}, {}, {}, tensor.shape[1]
  for i, place in ipairs(places) do
    local row = place < 0 and place + all or place
    if row < 0 or row >= all then refuse("place %d of %d rows", place, all) end
    if not number[row] then
      number[row] = #read
      read[#read + 1] = bytes_of(tensor, row * bytes, bytes) or refuse("constant %s is not read", tensor.name)
    end
    at[i] = number[row]
  end
  local shape = joined({ #places }, copied(tensor.shape, 2))
  local inner = count_of(shape, 2)
  local own = decoded(run, tensor, table.concat(read), #read * inner)
  return value(run.arrays.taken(own, 1, #read, inner, run.arrays.numbers(at)), shape)
end

-- The numbers of a constant. Those of a matrix are read when they are asked for.
function Run:tensor(tensor)
  local count, kind = count_of(tensor.shape), tensor.type
  local listed = kind:match "^(%w+) in int%d+_data$"
  local integer = not (listed or kind):find "F%d"
  if listed then
    local list = {}
    for i = 1, count do list[i] = self.number(tensor, i - 1) or refuse("constant %s is not read", tensor.name) end
    return value(self.arrays.numbers(list), tensor.shape, integer)
  end
  local row = #tensor.shape > 1 and count > 0 and constants.bytes(kind, count_of(tensor.shape, 2))
  local bytes = row and row * tensor.shape[1] or tensor.bytes
  local function all() return value(decoded(self, tensor, bytes_of(tensor, 0, bytes), count), tensor.shape, integer) end
  if not row then return all() end
  return later(tensor.shape, integer, function(places)
    return places and rows_of(self, tensor, row, places) or all()
  end)
end

M.Run, M.value, M.reshaped, M.copied, M.joined, M.refuse = Run, value, reshaped, copied, joined, refuse
M.broadcast_steps, M.common, M.mapped = broadcast_steps, common, mapped

return M
