-- Errors of commands.
--
--   raised                    meaning
--   { key, value, rule }      a mistake in a config
--   { message }               any other mistake of the user
--   { status }                end with that status
--   a text                    a mistake in the generator, shown with its traceback
--
-- `more` is a list of further errors. `command`, beside a message, has the words of a command that ends it: a file may
-- have any name, so they are quoted. A command that does not fit is left out, because a part of it would be a different
-- command.

local host = require "host"
local shell = require "base.shell"
local wording = require "base.wording"

local M = {}

function M.must(result, message)
  if result == nil then error({ message = message }, 0) end
  return result
end

M.NO_MEMORY = "not enough memory" -- Lua's own words, raised as a text

function M.on_error(e)
  if e == M.NO_MEMORY then return { message = e } end
  return type(e) == "table" and e or { internal = "internal error: " .. host.traceback(e) }
end

M.show = wording.short

local LONGEST = 480 -- characters of a message: what is longer is not read in a terminal

local function text_of(e)
  local text = e.message
  if e.rule then
    local value = e.value ~= nil and " = " .. M.show(e.value) or ""
    text = ("config: %s%s: %s"):format(M.show(e.key), value, e.rule)
  end
  if #text > 400 then text = text:sub(1, 200) .. "..." .. text:sub(-197) end
  local command = e.command and ": " .. shell.line(e.command) or ""
  return ((#text + #command <= LONGEST and text .. command or text):gsub("%c", "?"))
end

-- The mistakes that the longest message has room for.
function M.one_line(e)
  local line = text_of(e)
  for _, other in ipairs(e.more or {}) do
    local text = M.one_line(other)
    if #line + #text > LONGEST then return line .. "; ..." end
    line = line .. "; " .. text
  end
  return line
end

return M
