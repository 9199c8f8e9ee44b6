-- The part of a model of texts and images that --only names, as a model of its own.

local families = require "model.families"
local family_rows = require "model.family_rows"

local M = {}

-- Of the row of a model with parts, the only one that has the text in what stands before the names of its tensors, or
-- nil; and the names of all.
local function find(row, text)
  local found, names = {}, {}
  for i, part in ipairs(row.parts) do
    if type(part.before) ~= "string" then return nil end
    names[i] = part.before:gsub("%.$", "")
    if text and names[i]:find(text, 1, true) then found[#found + 1] = part end
  end
  return not found[2] and found[1] or nil, names
end

-- Leaves in the model what is of the part: its type, its fields and its tensors; model.apart has the other modules.
function M.take(model, text)
  local row = model.rows == families.rows and family_rows.find(families.rows, model.type)
  local part, names = nil, nil
  if row and row.parts then part, names = find(row, text) end
  if not names and text then
    error({ message = ("%s: --only is not made with --whole for type %s"):format(model.path, model.type) }, 0)
  end
  if not names then return end
  if not part then
    error({ message = ("%s: --whole takes a part of type %s: --only %s"):format(model.path, model.type,
      table.concat(names, ", or --only ")) }, 0)
  end
  local fields, tensors, apart = family_rows.fields_of(part, model.fields), {}, {}
  for name, tensor in pairs(model.tensors) do
    if name:sub(1, #part.before) == part.before then tensors[name] = tensor
    else apart[name:match "^[^.]*"] = true end
  end
  model.fields, model.type, model.tensors, model.apart = fields, fields:word("model_type", part.of), tensors, apart
end

return M
