-- Attention in the files of a model that is none of its layers, such as that of a vision tower whose rope has two
-- dimensions. A summary names it, because it would otherwise be left out silently.
--
--   M.of(model, layers)   a list of { name, why }, one for all that differ in numbers alone

local M = {}

-- How modules call what makes queries, keys, or queries, keys and values at once. Names of norms have no such end.
local ENDS = { "q%.weight", "q_proj%.weight", "k_proj%.weight", "q_proj%.linear%.weight", "q_lin%.weight",
               "query%.weight", "q_content_proj%.weight", "[a-z_]*query_content_proj%.weight",
               "query_proj%.weight", "to_q%.weight",
               "wq%.weight", "qkv%.weight", "qkv_proj%.weight", "Wqkv%.weight", "in_proj_weight",
               "query_key_value%.weight", "c_attn%.weight", "attn_q%.weight", "attn_qkv%.weight" }

-- The module of such a tensor, or nil.
local function module_of(name)
  for _, ending in ipairs(ENDS) do
    local module = name:match("^(.+)%." .. ending .. "$")
    if module then return (module:gsub("%.self$", "")) end
  end
end

local function is_within(layers, name)
  for dot in name:gmatch "()%." do
    if layers[name:sub(1, dot)] then return true end
  end
  return false
end

function M.of(model, all)
  local layers, kinds, list, seen = {}, {}, {}, {}
  for _, layer in ipairs(all) do layers[layer.at] = true end
  for name in pairs(model.tensors) do
    local module = module_of(name)
    if module and not seen[module] and not is_within(layers, name) then
      local kind = module:gsub("%d+", "N")
      seen[module] = true
      kinds[kind] = kinds[kind] or {}
      table.insert(kinds[kind], module)
    end
  end
  for _, modules in pairs(kinds) do
    table.sort(modules, function(a, b) return #a < #b or #a == #b and a < b end)
    local more = #modules > 1 and (", and %d more like it"):format(#modules - 1) or ""
    list[#list + 1] = { name = modules[1], why = "is attention that is not read" .. more }
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

return M
