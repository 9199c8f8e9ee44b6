-- The files of a config and of the runtime -> one header and one source, each part in place of its #include.
--
--   files     of kernel/bundle.lua, those of the config first
--   runtime   { header = text of mhagen.h, source = text of mhagen.c }
--
-- All functions of the runtime get the kernel's name as a prefix, so that several such files link together. Types are
-- shared: the include guard of mhagen.h stays.

local template = require "base.template"

-- The functions that mhagen.h declares.
local function exported(header)
  local names = {}
  for name in header:gmatch("\nMHAGEN_API[^;(]-([%w_]+)%(") do names[#names + 1] = name end
  return names
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
    return part(member, expanded(text_of[member .. ".c"], function(included)
      if included ~= member then return member_of(included) end
      return expanded(text_of[member .. ".h"], { mhagen = "" })
    end))
  end
  local source = expanded(text_of[name .. ".c"], function(included)
    if included ~= name then return member_of(included) end
    return include(name) .. part("mhagen.c", expanded(runtime.source, { mhagen = "" }))
  end)
  return { { name = name .. ".h", text = header }, { name = name .. ".c", text = source } }
end
