-- Parts of tensors that make the weights of a layer: features of linear maps, and what is around attention.

local M = {}

-- Some features of a linear map with `all` features and `width` inputs: `blocks` times `count` of them, each block
-- `step` behind the one before, from `first` on. in_out: they are columns.
function M.features(name, all, width, part)
  return { name = name, features = all, width = width, blocks = part and part.blocks or 1,
           count = part and part.count or all, first = part and part.first or 0, step = part and part.step or all }
end

-- Whether a map has a bias. of: true, false, or the flag that says so and its default; nil is true. Where it has none,
-- the layer gets the reason by the name of its tensor: the model leaves that out, if it is there.
function M.has_bias(layer, of, name)
  local c = layer.fields
  if of == nil or of == true or of and c:flag(of[1], of[2]) then return true end
  layer.without[name] = of and ("%s = false leaves it out"):format(c:full(of[1])) or "models of this type have none"
  return false
end

-- The part of a linear map with `count` features that { its name, number, of } says: the one of that number, from 0 on,
-- of so many that are one map in the file. A name alone is a whole map.
local function part_of(map, count)
  if type(map) == "string" then return map, count end
  local name, number, of = table.unpack(map)
  return name, of * count, { blocks = 1, count = count, first = number * count, step = of * count }
end

-- Adds those of what is around attention, as a row of gen/model/whole_families.lua has it.
function M.add_around(layer, whole, sizes, all)
  local maps = whole.maps
  if type(maps) == "function" then maps = maps(layer.fields) end
  for number, map in pairs(maps) do
    local size = sizes["w" .. number]
    local name, count, part = part_of(map, size[2])
    local bias = layer.around .. name .. ".bias"
    local weight = M.features(layer.around .. name .. ".weight", count, size[1], part)
    weight.in_out = layer.in_out
    all["w" .. number] = weight
    all["b" .. number] = M.has_bias(layer, whole.biases, bias) and M.features(bias, count, nil, part) or nil
  end
  for number, name in pairs(whole.norms) do
    local gains, biases = "norm" .. number, ("norm%s_bias"):format(number)
    if sizes[gains] then
      local bias = layer.around .. name .. ".bias"
      all[gains] = M.features(layer.around .. name .. ".weight", sizes[gains][2])
      all[gains].change = whole.change
      all[biases] = sizes[biases] and M.has_bias(layer, whole.norm_biases, bias)
        and M.features(bias, sizes[biases][2]) or nil
    end
  end
  for gain, name in pairs(whole.gains or {}) do all[gain] = M.features(layer.around .. name, sizes[gain][2]) end
end

return M
