-- What the options of several commands have in common.

local host = require "host"
local errors = require "command.errors"
local show = require "options.show"

local M = {}

-- Converts the value of an option that is a number; `what` says which ones the pattern matches.
function M.number(option, pattern, what)
  return function(text)
    if text:match(pattern) then return text end
    return nil, ("option '%s': '%s' is not %s"):format(option, errors.show(text), what)
  end
end

function M.count(option)
  return M.number(option, "^[1-9]%d?%d?%d?%d?%d?$", "a number from 1 to 999999")
end

function M.jobs(cmd)
  cmd:option("--jobs", "steps at a time, but for timing (default: Ninja's)"):argname("<N>")
    :convert(M.count("--jobs"))
end

function M.force(cmd) cmd:flag("--force", "replace files that mhagen has not made, too") end

function M.timeout(cmd)
  cmd:option("--timeout", "seconds that a compiler or a program may take", "600"):argname("<SECONDS>")
    :convert(M.count("--timeout"))
end

-- ---- files that a user may have made ----

-- What only a file of mhagen's begins with: its text up to the first word with mhagen in it.
local function mark_of(text) return text:match("^.-mhagen[%w_.]*") end

-- Whether a file begins with the mark, by default that of the text.
function M.made(path, text, mark)
  mark = mark or mark_of(text)
  return errors.must(host.head(path)):sub(1, #mark) == mark
end

-- Refuses to replace files { name =, text = and perhaps mark = } that somebody else has made, and those
-- of formats that have no room for a mark. What is empty may be replaced.
function M.refuse_foreign(dir, files, force)
  local foreign = {}
  for _, file in ipairs(force and {} or files) do
    local path = (dir:gsub("/*$", "/") .. file.name):gsub("^%./+", "")
    local made = (file.mark or file.text) and M.made(path, file.text, file.mark)
    if not made and errors.must(host.head(path)) ~= "" then
      foreign[#foreign + 1] = path
    end
  end
  if #foreign > 0 then
    error({ message = table.concat(foreign, ", ") .. ": not made by mhagen; --force replaces" }, 0)
  end
end

-- Writes files, but not over those that somebody else has made.
function M.write_files(dir, files, force)
  M.refuse_foreign(dir, files, force)
  errors.must(host.write_files(dir, files))
end

-- The directory and the name of the file that an option names.
function M.split(path)
  local dir, name = path:match("^(.-)([^/]*)$")
  errors.must(name ~= "" or nil, "output file: its name is empty")
  return dir == "" and "." or dir, name
end

-- Writes this one; mark: where the text has none.
function M.write_file(path, text, force, mark)
  local dir, name = M.split(path)
  M.write_files(dir, { { name = name, text = text, mark = mark } }, force)
end

-- The config of a command.
function M.config(cmd)
  cmd:argument("config", "CONFIG.lua (at most one) and key=value, which win over the file")
    :args("*"):argname("<CONFIG.lua or key=value>")
  cmd:epilog(show.help() .. "\n\n" .. [[
A CONFIG.lua is one table: return { h = 12, d_model = 384, dk = 32, seq = 128, isa = "avx2" }
Exit status: 0 done, 1 a check failed, 2 the command line or the config is wrong.]])
end

return M
