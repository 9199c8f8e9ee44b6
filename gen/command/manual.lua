-- The manual page and the completions of shells, made of the parsers and of the rows of the options.

local options = require "options.init"
local show = require "options.show"
local template = require "base.template"
local version = require "base.version"

local M = {}

-- The commands that people give.
local function shown(parser)
  local list = {}
  for _, command in ipairs(parser._commands) do
    if not command._hidden then list[#list + 1] = command end
  end
  return list
end

local function takes_config(command)
  for _, argument in ipairs(command._arguments) do
    if argument._name == "config" then return true end
  end
  return false
end

-- The options of a command as lists { names, description, value }, value being what help calls its value.
local function options_of(command)
  local list = {}
  for i, option in ipairs(command._options) do
    list[i] = { names = option._aliases, text = option:_get_description():gsub("%s+", " "),
                value = option._maxargs ~= 0 and (option._argname or "<VALUE>") or nil, choices = option._choices }
  end
  return list
end

-- Every value of a key, where they are few; else none.
local function values_of(row)
  if row.kind == "flag" then return { "true", "false" } end
  local values = table.move(row.choices or {}, 1, #(row.choices or {}), 1, {})
  for _, group in ipairs(row.groups or {}) do values[#values + 1] = group[1] end
  values[#values + 1] = row.native and "native"
  return values
end

-- ---- the manual ----

local function roff(text)
  text = text:gsub("\\", "\\e"):gsub("%-", "\\-"):gsub("\n([.'])", "\n\\&%1")
  return (text:gsub("^([.'])", "\\&%1"))
end

local function paragraph(lines, head, text)
  lines[#lines + 1] = ".TP\n" .. head .. "\n" .. roff(text)
end

local function option_head(option)
  local names = {}
  for i, name in ipairs(option.names) do names[i] = "\\fB" .. roff(name) .. "\\fR" end
  local value = option.value and " \\fI" .. roff(tostring(option.value):gsub("[<>]", "")) .. "\\fR" or ""
  return table.concat(names, ", ") .. value
end

-- The page of the program, in troff's man macros.
function M.page(parser)
  local commands, keys = {}, {}
  for _, command in ipairs(shown(parser)) do
    commands[#commands + 1] = (".SS mhagen %s\n%s"):format(command._name, roff(command._description))
    commands[#commands + 1] = ".PP\n.nf\n" .. roff(command:get_usage()) .. "\n.fi"
    for _, option in ipairs(options_of(command)) do
      paragraph(commands, option_head(option), option.text)
    end
    if not takes_config(command) and command._epilog then -- of a config the page has the keys once
      commands[#commands + 1] = ".PP\n" .. roff(command._epilog)
    end
  end
  for _, row in ipairs(options.list) do
    local note = show.default_note(row)
    paragraph(keys, ("\\fB%s\\fR=\\fI%s\\fR%s"):format(row.key, roff(options.values(row)), note and " (" .. roff(note)
      .. ")" or ""), row.doc)
  end
  return template.file("mhagen.1.in", { version = version, summary = roff(parser._description),
    commands = table.concat(commands, "\n"), keys = table.concat(keys, "\n") })
end

-- ---- completions ----

-- What a shell offers after a command: its options, and of a config the keys and their values.
local function words_of(command)
  local words = {}
  for _, option in ipairs(options_of(command)) do table.move(option.names, 1, #option.names, #words + 1, words) end
  return words
end

local function case(name, words) return ("    %s) %s ;;"):format(name, words) end

-- The template of a shell, filled with what `write` makes of commands and keys: command, key, and what to offer
-- behind them, words and values; between: what stands between two of a list.
local function completion(parser, path, write)
  local names, of_commands, configs, of_keys, keys = {}, {}, {}, {}, {}
  for i, command in ipairs(shown(parser)) do
    names[i] = write.command(command)
    of_commands[i] = case(command._name, write.words(command))
    if takes_config(command) then configs[#configs + 1] = command._name end
  end
  for i, row in ipairs(options.list) do
    keys[i] = write.key(row)
    local values = values_of(row)
    if #values > 0 then of_keys[#of_keys + 1] = case(row.key, write.values(table.concat(values, " "))) end
  end
  return template.file(path, { names = table.concat(names, write.between), configs = table.concat(configs, "|"),
    of_commands = table.concat(of_commands, "\n"), of_keys = table.concat(of_keys, "\n"),
    keys = table.concat(keys, write.between) })
end

-- For bash, which splits key=value at the sign.
function M.bash(parser)
  local function offered(words) return ('words="%s"'):format(words) end
  return completion(parser, "complete.bash.in", {
    between = " ", values = offered,
    command = function(command) return command._name end,
    words = function(command) return offered(table.concat(words_of(command), " ")) end,
    key = function(row) return row.key .. "=" end,
  })
end

-- A word with what it means, in single quotes, for zsh and fish.
local function quoted(text) return "'" .. text:gsub("'", "'\\''") .. "'" end
local function described(word, text) return quoted(word:gsub(":", "\\:") .. ":" .. text) end

function M.zsh(parser)
  return completion(parser, "complete.zsh.in", {
    between = "\n",
    command = function(command) return "    " .. described(command._name, command._summary) end,
    words = function(command)
      local words = {}
      for _, option in ipairs(options_of(command)) do
        for _, name in ipairs(option.names) do words[#words + 1] = described(name, option.text) end
      end
      return ("words_=(%s)"):format(table.concat(words, " "))
    end,
    key = function(row) return "    " .. described(row.key, row.doc) end,
    values = function(values) return "compadd -- " .. values end,
  })
end

function M.fish(parser)
  local lines, configs = {}, {}
  for _, command in ipairs(shown(parser)) do
    lines[#lines + 1] = ("complete -c mhagen -n __fish_use_subcommand -f -a %s -d %s"):format(command._name,
      quoted(command._summary))
    local seen = quoted("__fish_seen_subcommand_from " .. command._name)
    for _, option in ipairs(options_of(command)) do
      local words = { "complete -c mhagen -n", seen }
      for _, name in ipairs(option.names) do
        words[#words + 1] = (name:find("^%-%-") and "-l " or "-s ") .. name:gsub("^%-+", "")
      end
      words[#words + 1] = (option.value and "-r " or "") .. "-d " .. quoted(option.text)
      lines[#lines + 1] = table.concat(words, " ")
    end
    if takes_config(command) then configs[#configs + 1] = command._name end
  end
  local seen = quoted("__fish_seen_subcommand_from " .. table.concat(configs, " "))
  for _, row in ipairs(options.list) do
    local words, values = {}, values_of(row)
    for i, value in ipairs(#values > 0 and values or { "" }) do words[i] = row.key .. "=" .. value end
    lines[#lines + 1] = ("complete -c mhagen -n %s -a %s -d %s"):format(seen, quoted(table.concat(words, " ")),
      quoted(row.doc))
  end
  return template.file("complete.fish.in", { lines = table.concat(lines, "\n") })
end

return M
