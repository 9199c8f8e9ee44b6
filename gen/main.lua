-- The command line. A command is a file of gen/command: its options, and what it does. These files
-- alone talk to the host: they read configs, write results and run compilers; all other modules are
-- functions from values to values.

local argparse = require "argparse"
local host = require "host"
local config = require "options.config"
local errors = require "command.errors"
local version = require "base.version"
local WIDTH = require("base.wording").WIDTH

-- In groups, as help shows them.
local groups = {
  { title = "Kernels", "gen", "explain", "check" },
  { title = "Models", "model", "pack" },
  { title = "Speed", "bench", "tune", "sweep", "sweep-step", "sweep-shard", "report" },
  { title = "Lists", "isas", "schema" },
}

-- What other tools call commands.
local elsewhere = {
  gen = "generate codegen compile build emit", model = "convert import export quantize",
  isas = "doctor info env devices", bench = "benchmark perf time", check = "test verify validate",
  tune = "autotune search optimize", explain = "plan show inspect",
}

local function file_of(name) return require("command." .. name:gsub("-", "_")) end

local ALL = { schema = true } -- commands that tell of all others

-- The name of the only command that is needed, or nil: a third of a start is the reading of the others.
local function only_one(first)
  for _, group in ipairs(groups) do
    for _, name in ipairs(group) do
      if name == first and not ALL[name] then return name end
    end
  end
end

-- With the options of that command alone, or of all.
local function build_parser(only)
  local parser = argparse("mhagen", "Writes specialized C for multi-head attention.")
  parser:command_target("command"):help_max_width(WIDTH)
  parser:flag("--version"):description("Print the version and exit."):action(function()
    errors.must(host.print("mhagen " .. version .. "\n"))
    error({ status = 0 }, 0)
  end)
  parser.error = function(_, message)
    local told, tip = message:match("^(.*)\nDid you(.*)$")
    local key = not told and config.meant(message:match("^unknown option '%-+([%w_-]+)") or "")
    local other = message:match("^unknown command '(%l+)'$")
    for name, words in pairs(elsewhere) do
      if other and (" " .. words .. " "):find(" " .. other .. " ", 1, true) then
        tip = (" mean '%s'?"):format(name)
      end
    end
    tip = tip and ", did you" .. tip or key and ("; a key has no dashes, did you mean %s=VALUE?"):format(key)
    error({ message = (told or message) .. (tip or "; see --help") }, 0)
  end
  local parsers = {}
  for _, group in ipairs(groups) do
    local members = {}
    for i, name in ipairs(group) do
      local cmd = parser:command(name)
      members[i], parsers[name] = cmd, cmd
      local command = (not only or name == only) and file_of(name)
      if command and command.summary then
        cmd:summary(command.summary):description(command.summary .. "\n" .. command.about)
      end
      if command then command.options(cmd) end
    end
    parser:group(group.title, table.unpack(members))
  end
  return parser, parsers
end

-- Joins an option whose value is options too to that, which may then begin with a dash; but not to an
-- option of the command itself, for then the value has been forgotten.
local function joined(arguments, command)
  local words, option, own = {}, nil, {}
  for _, one in ipairs(command and command._options or {}) do
    for _, name in ipairs(one._aliases) do own[name] = true end
  end
  for _, argument in ipairs(arguments) do
    if option and not own[argument:match("^[^=]*")] then
      words[#words], option = option .. "=" .. argument, nil
    else
      words[#words + 1], option = argument, argument == "--slurm" and argument or nil
    end
  end
  return words
end

local function run(arguments)
  for _, argument in ipairs(arguments) do -- suggestions for long texts take long
    if #argument > 4096 then
      error({ message = errors.show(argument) .. ": argument longer than 4096 characters" }, 0)
    end
  end
  local parser, parsers = build_parser(only_one(arguments[1]))
  local args = parser:parse(joined(arguments, parsers[arguments[1]]))
  return file_of(args.command).run(args, parser)
end

-- The arguments -> exit status, and the error message if there is one.
return function(arguments)
  local ok, status, message = xpcall(run, errors.on_error, arguments)
  if ok then return status, message end
  local e = type(status) == "table" and status or { message = status } -- a text where memory ran out
  if e.status and not e.message then return e.status end
  return e.status or 2, e.internal or errors.one_line(e)
end
