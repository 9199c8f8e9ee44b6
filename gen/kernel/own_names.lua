-- Several kernels in one translation unit: macros give the static names of a file the kernel's name as a prefix. They
-- are undefined at its end, as are the file's own macros. So the text has short names, and a debugger long ones.

local template = require "base.template"

local LAST_INCLUDE = "\n#include <string.h>\n"

-- The functions, tables and constants of a source, and its macros, in their order.
local function names_of(source)
  local names, macros, known = {}, {}, {}
  local function add(list, name)
    if name and not known[name] then list[#list + 1], known[name] = name, true end
  end
  for line in source:gmatch("[^\n]+") do
    if line:find "^static " or line:find "^typedef %w+ [%w_]+;" or line:find "^enum { " then
      add(names, line:gsub("__attribute__%b()", ""):match("([%a_][%w_]*)%s*[%[%(=;]"))
    end
    add(macros, line:match "^%s*#define ([%w_]+)")
  end
  return names, macros
end

-- A source with these macros.
return function(source, kernel)
  local names, macros = names_of(source)
  local defined, undefined = {}, {}
  for i, name in ipairs(names) do defined[i] = template.file("rename.h.in", { name = name, prefix = kernel }) end
  for i, name in ipairs(table.move(macros, 1, #macros, #names + 1, names)) do
    undefined[i] = template.file("undefine.h.in", { name = name })
  end
  local _, last = source:find(LAST_INCLUDE, 1, true)
  if not last then return source end
  return source:sub(1, last) .. template.file("own_names.h.in", { text = table.concat(defined) }) ..
    source:sub(last + 1) .. "\n" .. table.concat(undefined)
end
