-- Templates: texts with ${name}. Other forms, such as ${name[0]}, are left for the shell.
--
--   fill(text, values, where)   the text with its values; `where` names the template in errors
--   file(name, values)          the same for templates/<name>
--   some(name, values)          the same with those of the values that it uses
--   ninja_path(path)            a path for a build line of Ninja
--
-- A name without a value is an error, and so is a value without a use.

local host = require "host"

local M = {}

-- values: name -> string. `where` names the template in errors.
function M.fill(text, values, where)
  local used = {}
  local filled = text:gsub("%${([%w_]+)}", function(name)
    local value = values[name]
    if type(value) ~= "string" then
      error(("%s: ${%s} has no value"):format(where, name), 0)
    end
    used[name] = true
    return value
  end)
  for name in pairs(values) do
    if not used[name] then error(("%s: ${%s} is not used"):format(where, name), 0) end
  end
  return filled
end

-- Fills templates/<name>.
function M.file(name, values)
  local text = host.embedded("templates/" .. name) or error("no template " .. name, 2)
  return M.fill(text, values, name)
end

-- Fills templates/<name> with some of the values, for several templates that share them.
function M.some(name, values)
  local text, own = host.embedded("templates/" .. name) or error("no template " .. name, 2), {}
  for used in text:gmatch "%${([%w_]+)}" do own[used] = values[used] end
  return M.fill(text, own, name)
end

-- A path in a build line of a file for Ninja.
function M.ninja_path(path) return (path:gsub("[$ :]", "$%0")) end

return M
