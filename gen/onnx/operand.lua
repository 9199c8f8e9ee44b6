-- An operand of attention, Q, K or V, in an ONNX graph: the projection that it comes from, and what lies between.
--
--   read(find, side) -> operand
--     find    { elements, norms }: of gen/onnx/elements.lua and gen/onnx/norms.lua
--     side    { value, at(l, row, i) = an index in it, leads, rows, width }; l from 1, the others from 0
--     operand:
--       side, base    as above; the value whose elements it has
--       factor        of these, or nil where they are not the same
--       rows          those that are computed here
--       past          { value, rows } of earlier runs, or nil
--       product       the projection, or nil
--       why           it is no projection, if it looks like one
--       norm          behind it, or nil
--       cell(l, row, i)   a list of { row, column, factor, bias, element }. `element` is an index in a row of the
--                         norm. The field `constant` of the list is added to their sum
--   An operand without a product is taken as it is.

local products = require "onnx.products"

local M = {}

-- The only value whose elements a form has, or nil.
local function base_of(form)
  if type(form) == "number" or #form == 0 then return nil end
  for k = 2, #form do
    if form[k][1] ~= form[1][1] then return nil end
  end
  return form[1][1]
end

-- The rows before the first one of the base, which lie in another value: of earlier runs.
local function past_of(elements, side, base)
  local function at(row) return base_of(elements:at(side.value, side.at(1, row, 0))) end
  local other = at(0)
  if other == base then return nil end
  local low, high = 0, side.rows - 1 -- the last one that is not, the first one that is of the base
  while high - low > 1 do
    local middle = (low + high) // 2
    if at(middle) == base then high = middle else low = middle end
  end
  return { value = other, rows = high }
end

-- The projection behind a value, and the norm between them.
local function product_of(find, base)
  local elements, norm = find.elements, find.norms[base]
  if norm then
    base = base_of(elements:at(norm.x, 0))
    if not base then return nil end
  end
  local product, why = products.by_constant(elements, elements.graph.makers[base])
  return product, norm, why
end

-- Where a term of a form comes from: { row, column, factor, bias, element }, or nil.
local function cell_of(find, operand, term)
  local elements, norm, product = find.elements, operand.norm, operand.product
  local index, bias, element = term[2], 0, nil
  if norm then
    local form = elements:at(norm.x, index)
    if type(form) == "number" or #form ~= 1 or form[1][3] ~= 1 then return nil end
    element, bias = index % norm.width, form.constant
    term, index = { form[1][1], form[1][2], term[3] }, form[1][2]
  end
  if term[1] ~= product.out then return nil end
  local row, column = product.cell(index)
  if product.bias then
    local x = elements:at(product.bias, column % (elements.shapes[product.bias][1] or 1))
    if type(x) ~= "number" then return nil end
    bias = bias + x
  end
  return { row = row, column = column, factor = term[3], bias = bias, element = element }
end

function M.read(find, side)
  local elements = find.elements
  local operand = { side = side, rows = side.rows }
  local last = elements:at(side.value, side.at(1, side.rows - 1, 0))
  operand.base = base_of(last)
  if not operand.base then return operand end
  operand.past = past_of(elements, side, operand.base)
  if operand.past then operand.rows = side.rows - operand.past.rows end
  operand.product, operand.norm, operand.why = product_of(find, operand.base)
  if not operand.product then return operand end
  function operand.cell(l, row, i)
    local form, cells = elements:at(side.value, side.at(l, row + side.rows - operand.rows, i)), {}
    if type(form) == "number" or operand.norm and form.constant ~= 0 then return nil end
    cells.constant = form.constant
    for k, term in ipairs(form) do
      local base = term[1] == operand.base and cell_of(find, operand, term)
      if not base then return nil end
      cells[k] = base
    end
    return cells[1] and cells
  end
  return operand
end

return M
