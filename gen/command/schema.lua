-- `schema`: the config keys.

local host = require "host"
local errors = require "command.errors"
local show = require "options.show"

local function run(args)
  errors.must(host.print(args.json and show.json() or args.markdown and show.markdown() or show.text()))
  return 0
end

local function options(cmd)
  cmd:mutex(cmd:flag("--json", "print one JSON object, for tools"),
            cmd:flag("--markdown", "print the tables of docs/config.md"))
end

return {
  name = "schema", run = run, options = options,
  summary = "Print the config keys, and all that is known of each.",
  about = "Its values and default, its part of a name, the pointers that it needs, what it excludes.",
}
