-- An ISA with more instructions than another one: its attributes, those of the other one where it has none, and the
-- rows, products, helpers and attributes of widths of both.

local function copy(value)
  if type(value) ~= "table" then return value end
  local out = {}
  for key, inner in pairs(value) do
    if key ~= "isa" then out[key] = copy(inner) end -- of a width that is defined already
  end
  return out
end

local merged = { "rows", "products", "helpers" }

return function(base, more)
  local isa = copy(base)
  isa.extends = base.name
  for _, name in ipairs(merged) do
    for key, value in pairs(more[name] or {}) do isa[name][key] = value end
  end
  for i, width in ipairs(more.widths) do
    for key, value in pairs(width) do isa.widths[i][key] = value end
  end
  for key, value in pairs(more) do
    if type(value) ~= "table" then isa[key] = value end
  end
  return isa
end
