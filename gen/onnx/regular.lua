-- Whether a few numbers of a value tell all of them: the constants behind it must be regular.
--
--   is_regular(graph, value) -> whether the constants that its numbers come from are so
--
-- A constant is regular if it has few numbers, or numbers that grow by the same, or matrices that are all the same. In
-- these the rows are the same, or each is the one before, moved by one column.

local constants = require "onnx.constants"
local tensors = require "model.tensors"

local M = {}

local FEW, MOST = 64, 1 << 26 -- numbers; bytes that are compared

-- Whether numbers grow by the same.
local function is_line(tensor, count)
  local first, second = constants.of(tensor, 0), constants.of(tensor, 1)
  if type(first) ~= "number" or type(second) ~= "number" then return false end
  for i = 2, count - 1 do
    if constants.of(tensor, i) ~= first + i * (second - first) then return false end
  end
  return true
end

local function is_banded(tensor, count)
  local shape = tensor.shape
  local columns, rows = shape[#shape], shape[#shape - 1] or 1
  if #shape > 1 and columns == 1 then rows, columns = 1, rows end -- a column is one row
  local text = tensor.bytes <= MOST and tensor.bytes % count == 0 and tensor.file:bytes(tensor.at, tensor.bytes)
  if not text then return false end
  local each, size = tensor.bytes // count, tensor.bytes // count * columns
  if rows == 1 then return text == text:sub(1, each):rep(count) or is_line(tensor, count) end
  local matrix = rows * size
  for at = size, matrix - size, size do
    local before, row = text:sub(at - size + 1, at), text:sub(at + 1, at + size)
    if row ~= before and row:sub(each + 1) ~= before:sub(1, -each - 1) then return false end
  end
  return text == text:sub(1, matrix):rep(count // (rows * columns))
end

function M.is_regular(graph, value)
  local seen, waiting = {}, { value }
  while #waiting > 0 do
    local name = table.remove(waiting)
    local tensor, maker = graph.tensors[name], graph.makers[name]
    if seen[name] then maker = nil
    elseif tensor then
      local count = tensors.count(tensor)
      if count > FEW and not is_banded(tensor, count) then return false end
    end
    seen[name] = true
    local shape_alone = maker and (maker.op == "Shape" or maker.op == "Size")
    for _, input in ipairs(maker and not shape_alone and maker.inputs or {}) do
      if input ~= "" then waiting[#waiting + 1] = input end
    end
  end
  return true
end

return M
