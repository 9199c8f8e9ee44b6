-- Scores of all ids of the vocabulary, of a row: a kernel without attention, whose Wo has the rows of some of the ids,
-- and a layer of it for each such part, since a kernel has only so many columns. The last ones may be in two parts.
--
--   add(kernels, given, of) -> the kernel, with ids = those of a layer, and parts
--     of    { count of ids, width of a row, norm = of gen/command/whole_product.lua or nil, weights = function of the
--           first id and how many there are -> the weights of a layer }
--   of_tensors(model, names, count, width) -> such a function, of names = { weight, bias or nil } of tensors

local host = require "host"
local layers = require "model.layers"
local options = require "options.init"
local whole_product = require "command.whole_product"

local M = {}

local OF_IDS = 64 -- a part has a multiple of so many ids, so that tiles are full

function M.add(kernels, given, of)
  local parts, all = -(-of.count // options.list.y_width.max), {}
  local ids = math.min(of.count, -(-of.count // parts // OF_IDS) * OF_IDS)
  for i = 1, parts do
    local first = math.min((i - 1) * ids, of.count - ids)
    all[i] = { name = ("head of ids %d to %d"):format(first, first + ids - 1), weights = of.weights(first, ids) }
  end
  local entry = whole_product.add(kernels, given, { rows = 1, depth = of.width, width = ids, norm = of.norm }, all)
  entry.ids, entry.parts = ids, parts
  return entry
end

function M.of_tensors(model, names, count, width)
  return function(first, ids)
    local function part(name, columns)
      return layers.part(model, name, count, columns, host.type_size, { first = first, count = ids })
    end
    return { wo = part(names[1], width), bo = names[2] and part(names[2]) }
  end
end

return M
