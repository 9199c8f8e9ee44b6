-- Compilers and programs: which ones an ISA needs, and how to call them.

local host = require "host"
local errors = require "command.errors"
local isas = require "isa.init"
local shell = require "base.shell"

local M = {}

-- How to compile and run code for another architecture, with Debian's cross compilers and emulators.
M.foreign = {
  aarch64 = { cc = "aarch64-linux-gnu-gcc",
              run = { "qemu-aarch64", "-L", "/usr/aarch64-linux-gnu" } },
  x86_64 = { cc = "x86_64-linux-gnu-gcc",
             run = { "qemu-x86_64", "-cpu", "max", "-L", "/usr/x86_64-linux-gnu" } },
}

function M.arch_of(cfg) return isas.list[cfg.isa].arch or host.arch end

-- How to compile and run the kernels of a config where they are for another architecture; else nil.
function M.emulated(cfg) return M.arch_of(cfg) ~= host.arch and M.foreign[M.arch_of(cfg)] or nil end

-- Why this machine cannot run an ISA's code itself, or nil if it can.
function M.obstacle(isa)
  if isa.arch and isa.arch ~= host.arch then return "it is code for " .. isa.arch end
  if not host.cpu_has(isa.cpu) then return "this CPU does not have it" end
end

function M.words_of(text)
  local words = {}
  for word in text:gmatch("%S+") do words[#words + 1] = word end
  return words
end

function M.joined(...)
  local all = {}
  for _, list in ipairs { ... } do table.move(list, 1, #list, #all + 1, all) end
  return all
end

-- Puts a text in the place of each {name} of a launcher or a stage.
function M.put(text, values) return (text:gsub("{(%w*)}", values)) end

-- The command of the shell that runs a program through a launcher, if there is one.
function M.launched(words, launcher)
  local text = shell.line(words)
  return launcher and M.put(launcher, { [""] = text }) or text
end

-- The words that start $CC or a cross compiler. -std=c11 and -O2 are added unless $CC names others.
function M.compiler(cc)
  return M.joined(M.words_of(cc), cc:find("%f[%S]%-std=") and {} or { "-std=c11" },
                  cc:find("%f[%S]%-O") and {} or { "-O2" })
end

-- Runs a program for at most so many seconds. keep: returns what it prints. Returns status, output and, if it
-- failed, how it ended; or nil and a message if it cannot be started.
function M.run(words, seconds, keep)
  local status, output, timed_out = host.run(words, keep and M.OUTPUT_BYTES or nil, tonumber(seconds))
  if not status then
    local is_compiler = words[1] == M.words_of(host.cc)[1]
    return nil, output .. (is_compiler and "; install a C compiler, or name yours in CC" or "")
  end
  local why = timed_out and ("%s timed out after %.0f s"):format(words[1], seconds)
    or status ~= 0 and ("%s ended with status %d"):format(words[1], status) or nil
  return status, output, why
end

local VERSION_SECONDS = 60

-- The first line of a program's --version; an error if it cannot be started.
function M.version_of(words)
  local status, output, why = M.run(M.joined(words, { "--version" }), VERSION_SECONDS, true)
  errors.must(status, output)
  if why then error({ message = why:gsub("^%S+", "%0 --version", 1) }, 0) end
  return output:match("^[^\n]*")
end

local function in_c(folder, names)
  local files = {}
  for i, name in ipairs(names) do files[i] = folder .. name end
  return files
end

-- The embedded files of programs: what checks kernels, what it compares them with, what times them.
M.CHECKER = in_c("tests/check/", {
  "checker.c", "checker.h", "checker_rooms.h", "checker_state.c", "checker_buffers.c", "checker_runs.c",
  "checker_data.c", "checker_numbers.c", "checker_bits.c", "checker_hidden.c", "checker_refusals.c",
  "checker_tables.c" })
M.REFERENCE = in_c("tests/check/", {
  "reference.c", "reference.h", "composition.c", "formula.h", "bounds.c", "bounds.h", "rounded.c", "rounded.h" })
-- A file with what all kernels include, whose reading takes a third of the time of a compiler.
M.HEADERS = "headers.h"
M.BENCH = in_c("bench/", { "bench.c", "bench.h" })
M.RUNTIME = in_c("runtime/", { "mhagen.c", "mhagen.h" })

-- Adds the embedded files of a command to those of a kernel.
function M.add_embedded(files, cfg, command, names)
  for _, name in ipairs(names) do
    local base = name:match("[^/]+$")
    if base:match("%w+") == cfg.name then
      error({ key = "name", value = cfg.name,
              rule = ("must not be the name of a file of the %s"):format(command) }, 0)
    end
    files[#files + 1] = { name = base, text = host.embedded(name) }
  end
end

-- The paths of the files in C and of the assembler that `wanted` accepts.
function M.sources(dir, files, wanted)
  local paths = {}
  for _, file in ipairs(files) do
    if file.name:match("%.[cS]$") and wanted(file.name) then
      paths[#paths + 1] = dir .. "/" .. file.name
    end
  end
  return paths
end

-- Calls work(dir, ...). Without a directory it makes a new one, and removes it afterwards.
function M.in_dir(dir, work, ...)
  local new = not dir and errors.must(host.temp_dir())
  local results = table.pack(xpcall(work, errors.on_error, dir or new, ...))
  if new then host.remove_dir(new) end
  if not results[1] then error(results[2], 0) end
  return table.unpack(results, 2, results.n)
end

M.OUTPUT_BYTES = 1 << 20 -- the most that is read of a program

-- The line of an output that says most about a failure.
function M.telling_line(output)
  local last = ""
  for line in output:gmatch("[^\n]+") do
    if line:find("error:", 1, true) or line:find("^FAIL ") then return line end
    last = line
  end
  return last
end

function M.seconds_since(start) return math.floor((host.clock() - start) * 1e3 + 0.5) / 1e3 end

return M
