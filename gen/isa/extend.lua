-- An ISA with more instructions than another: function(base, more).
--
--   of the result                                   comes from
--   attributes                                      `more`, or `base` where `more` has none; `asks` is never merged
--   rows, products, helpers, attributes of widths   both, except those that `more` sets to false
--   extends                                         that of `base`, or its name

local function copy(what)
  if type(what) ~= "table" then return what end
  local out = {}
  for name, inner in pairs(what) do
    if name ~= "isa" then out[name] = copy(inner) end -- of a width that is defined already
  end
  return out
end

local merged = { "rows", "products", "helpers" }

return function(base, more)
  local isa = copy(base)
  isa.extends = base.extends or base.name
  for _, list in ipairs(merged) do
    for name, row in pairs(more[list] or {}) do isa[list][name] = row or nil end
  end
  for i, width in ipairs(more.widths) do
    for name, text in pairs(width) do isa.widths[i][name] = text end
  end
  for name, attribute in pairs(more) do
    if type(attribute) ~= "table" or name == "asks" then isa[name] = attribute end
  end
  return isa
end
