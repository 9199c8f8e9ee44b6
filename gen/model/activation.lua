-- The name of an activation function in a config, as our key has it.

local options = require "options.init"

-- c, name, default: as M:word of gen/model/fields.lua has them.
return function(c, name, default)
  local value = c:word(name, default)
  local row = options.list.ffn_act
  for _, choice in ipairs(row.choices) do
    if choice == value then return choice end
    for _, other in ipairs(row.called[choice] or {}) do
      if other == value then return choice end
    end
  end
  c:fail(name, "%s is no activation function of a kernel: %s are", value, table.concat(row.choices, ", "))
end
