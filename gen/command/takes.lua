-- Options that several commands have.

local host = require "host"
local errors = require "command.errors"
local show = require "options.show"

local M = {}

-- Checks that the value of an option is a number that the pattern matches; `what` says which these are.
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
  cmd:option("--jobs", "steps that run at a time, at most one of them timing (default: Ninja's)"):argname("<N>")
    :convert(M.count("--jobs"))
end

function M.samples(cmd)
  cmd:option("--samples", "number of timed samples (default: as many as fit a second, 5 to 400)"):argname("<N>")
    :convert(M.count("--samples"))
end

-- An option of several numbers of threads, as a list; `text` says what is done with them.
function M.threads(cmd, text)
  cmd:option("--threads", text):argname("<N,..>"):convert(function(words)
    local list = {}
    for word in (words .. ","):gmatch("([^,]*),") do
      if not word:match "^[1-9]%d?%d?%d?$" then
        return nil, ("option '--threads': '%s' is not a list of numbers from 1 to 9999, such as 1,2,4")
          :format(errors.show(words))
      end
      list[#list + 1] = tonumber(word)
    end
    return list
  end)
end

function M.quiet(cmd) cmd:flag("--quiet", "print only errors") end

function M.embed(cmd)
  cmd:flag("--embed", "also write NAME_packed.S and NAME_packed.h, which link the packed weights")
end

function M.cxx(cmd) cmd:flag("--cxx", "also write mhagen.hpp, the interface for C++17") end

function M.force(cmd) cmd:flag("--force", "also replace files that mhagen has not made") end

-- An option of cmd: the command of the shell in which {} stands for a program and its arguments.
function M.launcher(cmd)
  return cmd:option("--launcher", "shell command that runs a program; the program's path replaces {}, or follows: " ..
    "'taskset -c 1', 'ssh board {}'"):argname("<CMD>")
    :convert(function(text) return text:find("{}", 1, true) and text or text .. " {}" end)
end

function M.timeout(cmd)
  cmd:option("--timeout", "seconds after which a compiler or a program is ended", "600"):argname("<SECONDS>")
    :convert(M.count("--timeout"))
end

-- ---- files that a user may have made ----

-- The mark with which only files of mhagen begin: the text up to the first word with mhagen in it.
local function mark_of(text) return text:match("^.-mhagen[%w_.]*") end

-- Whether a file begins with the mark, which is that of the text if it is not given.
function M.made(path, text, mark)
  mark = mark or mark_of(text)
  return errors.must(host.head(path)):sub(1, #mark) == mark
end

-- Refuses to replace files { name =, text =, mark = or nil, also = another mark or nil } that somebody else has made.
-- So it does with files of a format that has no room for a mark. Empty files may be replaced. Two files may not have
-- one name.
function M.refuse_foreign(dir, files, force)
  local foreign, seen = {}, {}
  for _, file in ipairs(files) do
    if seen[file.name] then
      error({ message = ("%s: two files would have this name; --name takes another one"):format(file.name) }, 0)
    end
    seen[file.name] = true
  end
  for _, file in ipairs(force and {} or files) do
    local path = (dir:gsub("/*$", "/") .. file.name):gsub("^%./+", "")
    local made = (file.mark or file.text) and M.made(path, file.text, file.mark)
      or file.also and M.made(path, nil, file.also)
    if not made and errors.must(host.head(path)) ~= "" then
      foreign[#foreign + 1] = path
    end
  end
  if #foreign > 0 then
    error({ message = table.concat(foreign, ", ") .. ": not made by mhagen; --force replaces" }, 0)
  end
end

-- Writes files, unless one would replace a file that somebody else has made.
function M.write_files(dir, files, force)
  M.refuse_foreign(dir, files, force)
  errors.must(host.write_files(dir, files))
end

-- The directory and the name of the file that an option names.
function M.split(path)
  local dir, name = path:match("^(.-)([^/]*)$")
  errors.must(name ~= "" or nil, "output file: its name is empty")
  return dir == "" and "." or dir:gsub("(.)/+$", "%1"), name
end

-- Writes one file; mark: for a text that has none.
function M.write_file(path, text, force, mark)
  local dir, name = M.split(path)
  M.write_files(dir, { { name = name, text = text, mark = mark } }, force)
end

-- Help on the keys of a config: the required keys but the model's own, then `more`; all keys with --help-keys.
function M.help_keys(cmd, more, own)
  cmd:flag("--help-keys", "show all config keys and exit"):action(function()
    errors.must(host.print(show.help()))
    error({ status = 0 }, 0)
  end)
  cmd:epilog(show.short_help(own) .. (more and "\n\n" .. more or ""))
end

-- The config of a command.
function M.config(cmd)
  cmd:argument("config", "at most one CONFIG.lua, and any number of key=value, which win over it")
    :args("*"):argname("<CONFIG.lua or key=value>")
  M.help_keys(cmd, [[
A CONFIG.lua is one table: return { h = 12, d_model = 384, dk = 32, seq = 128, isa = "avx2" }
Exit status: 0 done, 1 a check failed, 2 the command line or the config is wrong.]])
end

return M
