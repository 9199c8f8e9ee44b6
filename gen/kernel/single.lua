-- The files of a config and of the runtime -> one header and one source. Each part stands where it was included.
--
--   files     of kernel/bundle.lua, those of the config first
--   runtime   { header = text of mhagen.h, source = text of mhagen.c }
--
-- All functions of the runtime get the kernel's name as a prefix, so that several such files link together. Types are
-- shared: the include guard of mhagen.h stays. Kernels share one translation unit with the runtime and with other
-- members of a bundle, so their names follow their static names.

local template = require "base.template"

-- The functions that mhagen.h declares.
local function exported(header)
  local names = {}
  for name in header:gmatch("\nMHAGEN_API[^;(]-([%w_]+)%(") do names[#names + 1] = name end
  return names
end

-- Calls `change` with each stretch of code, and joins it with the comments and strings between.
local function in_code(text, change)
  local out, at = {}, 1
  while at <= #text do
    local first = text:find('["/]', at) or #text + 1
    out[#out + 1] = change(text:sub(at, first - 1))
    local _, last = text:find("^/%*.-%*/", first)
    if not last then _, last = text:find('^"[^"\n]*"', first) end
    last = last or first
    out[#out + 1] = text:sub(first, last)
    at = last + 1
  end
  return table.concat(out)
end

-- The names that only this file knows.
local function own_names(source)
  local names = {}
  for line in source:gmatch("[^\n]+") do
    if line:find "^static " or line:find "^typedef %w+ [%w_]+;" or line:find "^enum { " then
      local name = line:gsub("__attribute__%b()", ""):match("([%a_][%w_]*)%s*[%[%(=;]")
      if name then names[name] = true end
    end
  end
  return names
end

-- A source whose static names end with the kernel's; fields keep theirs.
local function renamed(source, kernel)
  local names = own_names(source)
  return in_code(source, function(code)
    return (code:gsub("([.>]?)%f[%w_]([%a_][%w_]*)", function(before, word)
      if before == "" and names[word] then return word .. "_" .. kernel end
    end))
  end)
end

local function include(name) return template.file("include.h.in", { name = name }) end

-- The text with the results of `replace`, for the name of a header, in the places of its own includes.
local function expanded(text, replace) return (text:gsub(include "([%w_]+)", replace)) end

local function part(name, text) return template.file("part.in", { name = name, text = text }) end

return function(name, files, runtime)
  local text_of, renames = {}, {}
  for _, file in ipairs(files) do text_of[file.name] = file.text end
  for i, one in ipairs(exported(runtime.header)) do
    renames[i] = template.file("rename.h.in", { name = one, prefix = name })
  end
  local header = expanded(text_of[name .. ".h"], { mhagen = template.file("single.h.in", {
    renames = table.concat(renames), runtime = part("mhagen.h", runtime.header) }) })

  -- A member with its header and its own members.
  local function member_of(member)
    return part(member, expanded(renamed(text_of[member .. ".c"], member), function(included)
      if included ~= member then return member_of(included) end
      return expanded(text_of[member .. ".h"], { mhagen = "" })
    end))
  end
  local source = expanded(renamed(text_of[name .. ".c"], name), function(included)
    if included ~= name then return member_of(included) end
    return include(name) .. part("mhagen.c", expanded(runtime.source, { mhagen = "" }))
  end)
  return { { name = name .. ".h", text = header }, { name = name .. ".c", text = source } }
end
