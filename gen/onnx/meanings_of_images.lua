-- What operators on images and on grids of positions mean, for gen/onnx/evaluate.lua.
--
--   rows as in gen/onnx/meanings.lua

local indices = require "onnx.indices"
local values = require "onnx.values"

local count_of, steps_of = indices.count, indices.steps_of
local copied, joined, refuse, reshaped, value = values.copied, values.joined, values.refuse, values.reshaped,
  values.value

local rows = {}

-- ---- convolutions ----

-- Without padding, and of one group.
function rows.Conv(run, node, x, w, bias)
  local t, places = node.attributes, #x.shape - 2
  local auto = t.auto_pad or "NOTSET"
  if auto ~= "NOTSET" and auto ~= "VALID" or not indices.all_are(t.pads, 0) or (t.group or 1) ~= 1 then
    refuse("with padding, or of groups")
  end
  local own, extents, kernel, outer, inner = steps_of(x.shape), {}, {}, {}, {}
  for k = 1, places do
    local stride, apart, size = t.strides and t.strides[k] or 1, t.dilations and t.dilations[k] or 1, w.shape[k + 2]
    extents[k], kernel[k] = (x.shape[k + 2] - (size - 1) * apart - 1) // stride + 1, size
    outer[k], inner[k] = own[k + 2] * stride, own[k + 2] * apart
  end
  local cut = run:moved(x, joined({ x.shape[1] }, extents, { x.shape[2] }, kernel),
                        joined({ own[1] }, outer, { own[2] }, inner))
  local depth, columns = count_of(w.shape, 2), w.shape[1]
  local matrix = reshaped(run:transposed(reshaped(w, { columns, depth }), { 2, 1 }), { 1, depth, columns })
  local y = run:product(reshaped(cut, { x.shape[1], count_of(extents), depth }), matrix)
  y = bias and run:apply("add", y, bias) or y
  return reshaped(run:transposed(y, { 1, 3, 2 }), joined({ x.shape[1], columns }, extents))
end

-- ---- interpolation ----

-- Where number `i` of so many lies among those that it is made of.
local transforms = {
  half_pixel = function(i, scale) return (i + 0.5) / scale - 0.5 end,
  pytorch_half_pixel = function(i, scale, count) return count > 1 and (i + 0.5) / scale - 0.5 or 0.0 end,
  asymmetric = function(i, scale) return i / scale end,
  align_corners = function(i, _, count, from) return count > 1 and i * (from - 1) / (count - 1) or 0.0 end,
}

-- By how much numbers so far away count: Keys 1981, with the parameter a.
local function cubic(x, a)
  x = math.abs(x)
  if x < 1 then return ((a + 2) * x - (a + 3)) * x * x + 1 end
  return x < 2 and ((a * x - 5 * a) * x + 8 * a) * x - 4 * a or 0.0
end

local kernels = {
  linear = { 0, 1, function(x) return math.max(0.0, 1 - math.abs(x)) end },
  cubic = { -1, 2, cubic },
}

-- The matrix [from][count] that interpolates along an axis.
local function matrix_of(t, from, count, scale)
  local at = transforms[t.coordinate_transformation_mode or "half_pixel"] or refuse("of other coordinates")
  local kernel = kernels[t.mode] or refuse("of mode %s", t.mode or "nearest")
  local list = {}
  for i = 1, from * count do list[i] = 0.0 end
  for i = 0, count - 1 do
    local x = at(i, scale, count, from)
    local first = math.floor(x)
    for k = first + kernel[1], first + kernel[2] do
      local row = math.max(0, math.min(from - 1, k)) -- the first and the last one go on
      list[row * count + i + 1] = list[row * count + i + 1] + kernel[3](x - k, t.cubic_coeff_a or -0.75)
    end
  end
  return list
end

function rows.Resize(run, node, x, _, scales, sizes)
  local t = node.attributes
  if (t.antialias or 0) ~= 0 or (t.exclude_outside or 0) ~= 0 or t.axes or
      (t.keep_aspect_ratio_policy or "stretch") ~= "stretch" then
    refuse("with attributes that are not read")
  end
  local shape = run.shapes[node.outputs[1]]
  local by = scales and count_of(scales.shape) > 0 and run:ints(scales) or nil
  for a, size in ipairs(by and {} or run:ints(sizes)) do
    if size ~= shape[a] then refuse("of other sizes") end
  end
  for a = 1, #shape do
    local from, count = x.shape[a], shape[a]
    local scale = by and by[a] or count / from
    if from ~= count or scale ~= 1 then
      local matrix = value(run.arrays.numbers(matrix_of(t, from, count, scale)), { 1, from, count })
      local lead, behind = count_of(x.shape, 1, a - 1), count_of(x.shape, a + 1)
      local last = run:transposed(reshaped(x, { lead, from, behind }), { 1, 3, 2 })
      local made = run:transposed(run:product(last, matrix), { 1, 3, 2 })
      x = reshaped(made, joined(copied(x.shape, 1, a - 1), { count }, copied(x.shape, a + 1)))
    end
  end
  return x
end

return rows
