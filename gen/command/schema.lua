-- `schema`: the config keys, the manual page, and the completions of shells.

local host = require "host"
local errors = require "command.errors"
local manual = require "command.manual"
local matrices = require "graph.matrices"
local show = require "options.show"

local forms = {
  { "json", "print one JSON object, for tools", function() return show.json(matrices.told) end },
  { "markdown", "print the tables of docs/config.md", show.markdown },
  { "man", "print the manual page of mhagen", manual.page },
  { "bash", "print the completion for bash", manual.bash },
  { "zsh", "print the completion for zsh", manual.zsh },
  { "fish", "print the completion for fish", manual.fish },
}

local function run(args, parser)
  local print = show.text
  for _, form in ipairs(forms) do print = args[form[1]] and form[3] or print end
  errors.must(host.print(print(parser)))
  return 0
end

local function options(cmd)
  local flags = {}
  for i, form in ipairs(forms) do flags[i] = cmd:flag("--" .. form[1], form[2]) end
  cmd:mutex(table.unpack(flags))
end

return {
  name = "schema", run = run, options = options,
  summary = "Print the config keys with all their facts.",
  about = "Values and default, part of a name, required pointers, excluded keys.",
}
