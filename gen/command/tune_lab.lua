-- Builds and times candidates for `tune` in a directory, and keeps the measurements in log.jsonl.
--
--   new(dir, args)   the object `lab` that lab/tune.lua asks. It has more fields:
--     trace          the paired runs
--     machine()      the measured facts of this machine
--     least          the budget that would have been enough
--   bug(candidate, what, ...)      prints a bug of mhagen, which the user is asked to report
--   output_of(words, seconds)      runs a command

local host = require "host"
local bench = require "lab.bench"
local build = require "command.build"
local errors = require "command.errors"
local isas = require "isa.init"
local json = require "base.json"
local shell = require "base.shell"
local template = require "base.template"
local tune = require "lab.tune"
local version = require "base.version"

local must = errors.must

local shared_files = build.joined(build.RUNTIME, build.BENCH, build.REFERENCE)
local MOST = 63 -- candidates of a generation: mhagen_compare_main takes the default and so many
local MOST_BYTES = 4 << 30 -- of the buffers of all of them
-- Parts of the budget: for the search and the winner's check, for one generation at most, for a paired run.
local SEARCH, GENERATION, PAIR = 0.8, 0.3, 0.015
local TIMED = 0.1 -- what a candidate's first measurement may take, of what building it takes
-- A search ends with the budget, and all of it when that is over by this part, or so many seconds if these are more.
local SLACK, LEAST_SLACK = 0.25, 10

local M = {}

-- Prints a bug of mhagen, which the user is asked to report.
function M.bug(candidate, what, ...)
  error({ status = 1, message = ("tune: a schedule failed, please report it as a bug: %s; mhagen check %s")
    :format(what:format(...):sub(1, 120), table.concat(candidate.arguments, " ")) }, 0)
end

-- Runs a command for at most so many seconds. Returns its output, or how it failed, and the output.
local function output_of(words, seconds)
  local status, output, why = build.run(words, seconds, true)
  must(status, output)
  if (status == 128 + 2 or status == 128 + 15) and not why:find("timed out", 1, true) then
    error({ message = "tune: interrupted; the same command goes on" }, 0)
  end
  if not why then return output end
  return nil, why, output
end
M.output_of = output_of

-- The rows of a log by their key, its lines, and the seconds that were spent; nothing, if it begins with
-- something else than `first`: another generator, compiler or shape.
local function read_log(path, first)
  local rows, lines, seconds = {}, { first }, 0
  local text = host.read_file(path) or ""
  if text:match("^[^\n]*") ~= first then return rows, lines, 0 end
  for line in text:gmatch("[^\n]+", #first + 2) do
    local row = json.decode(line)
    rows[row.key], seconds = row, row.seconds
    lines[#lines + 1] = line
  end
  return rows, lines, seconds
end

-- The text of a generation's build.ninja; shared, kernels: paths of C files; header: of what all kernels include.
local function ninja_file(shared, kernels, header, program, compiler)
  local objects, inputs = {}, {}
  header = template.ninja_path(header)
  local function add(paths, more)
    for _, path in ipairs(paths) do
      local base = template.ninja_path(path:match("^(.*)%.c$"))
      objects[#objects + 1] = ("build %s.o: compile %s.c%s\n"):format(base, base, more)
      inputs[#inputs + 1] = base .. ".o"
    end
  end
  add(shared, "")
  add(kernels, (" || %s.log\n  include = -include %s"):format(header, header))
  return template.file("tune.ninja.in", { version = version, cc = (compiler:gsub("%$", "$$")), header = header,
    program = template.ninja_path(program), dir = (program:match("^(.*)/"):gsub("%$", "$$")),
    objects = table.concat(objects), inputs = table.concat(inputs, " ") })
end

-- The program of a generation.
local function main_file(candidates)
  local includes, entries = {}, {}
  for i, candidate in ipairs(candidates) do
    local id = candidate.cfg.name
    includes[i] = ('#include "%s.h"\n'):format(id)
    entries[i] = ('      {"%s", &%s_kernel},\n'):format(id, id)
  end
  return template.file("tune.c.in", { includes = table.concat(includes), entries = table.concat(entries),
                                      flops = ("%.17g"):format(candidates[1].flops) })
end

local Lab = {}
Lab.__index = Lab

-- ---- time, and the log ----

function Lab:seconds() return self.before + host.clock() - self.start end

-- Seconds that a command may take, and whether that is less than `most`.
function Lab:allowed(most)
  local left = self.ends - self:seconds()
  if left <= 0 then error({ out_of_time = true }, 0) end
  return math.min(left, most), left < most
end

-- As output_of; raises an error where it is the budget that ended the command.
function Lab:output_in_time(words, most)
  local seconds, short = self:allowed(most)
  local output, how, told = output_of(words, seconds)
  if not output and short and how:find("timed out", 1, true) then error({ out_of_time = true }, 0) end
  return output, how, told
end

function Lab:say(...)
  if not self.args.quiet then must(host.print(("%6.1f s  %s\n"):format(self:seconds(), string.format(...)))) end
end

function Lab:note(row)
  row.seconds = self:seconds()
  self.log[row.key] = row
  self.lines[#self.lines + 1] = json.encode(row)
  must(host.write_files(self.dir, { { name = "log.jsonl", text = table.concat(self.lines, "\n") .. "\n" } }))
end

-- ---- programs ----

-- Tells that a generation does not compile: of the default by an error of the command, else as a bug of a candidate.
function Lab:refuse_build(list, why, output)
  if list[1] == self.default then error({ message = "tune: the default: " .. why }, 0) end
  local failed = list[1]
  for _, candidate in ipairs(list) do
    if output:find("FAILED: [^\n]*" .. candidate.cfg.name) then failed = candidate end
  end
  M.bug(failed, "%s", why)
end

function Lab:compile(list)
  local dir, all = self.dir, list[1] == self.default and list or build.joined({ self.default }, list)
  self.generations = self.generations + 1
  local main = "generation" .. self.generations
  local program, header = dir .. "/" .. main, build.HEADERS
  local files, kernels = { { name = "mhagen_peak.c", text = bench.peak() } }, {}
  build.add_embedded(files, { name = "" }, "tune", shared_files)
  files[#files + 1] = { name = main .. ".c", text = main_file(all) }
  local shared = build.sources(dir, files, function() return true end)
  for _, candidate in ipairs(all) do table.move(candidate.files, 1, #candidate.files, #kernels + 1, kernels) end
  local own = build.sources(dir, kernels, function() return true end)
  table.move(kernels, 1, #kernels, #files + 1, files)
  files[#files + 1] = { name = header, text = isas.list[list[1].cfg.isa].headers .. "\n" }
  files[#files + 1] = { name = "build.ninja",
                        text = ninja_file(shared, own, ("%s/%s"):format(dir, header), program, self.command) }
  must(host.write_files(dir, files))
  local most = self.args.timeout * (#shared + #own) -- one core may have to make them all
  local done, how, output = self:output_in_time({ "ninja", "-f", dir .. "/build.ninja", program }, most)
  if not done then self:refuse_build(list, ("%s: %s"):format(how, build.telling_line(output)), output) end
  for _, candidate in ipairs(list) do candidate.program = program end
end

-- A row of the log belongs to the code of a candidate.
local function key_of(key, candidate) return key .. candidate.words .. " " .. candidate.code end

-- For each candidate the row of the log with that key; where there is none, row_of(candidate, output)
-- of their program, run once for all of these.
function Lab:measure(list, key, arguments, row_of)
  local missing, rows, log = {}, {}, self.log
  for _, candidate in ipairs(list) do
    if not log[key_of(key, candidate)] then missing[#missing + 1] = candidate end
  end
  if #missing > 0 then
    local words = build.joined({ list[1].program }, arguments)
    for _, candidate in ipairs(missing) do words[#words + 1] = candidate.cfg.name end
    local most = self.args.timeout + self.args.budget -- it times for so long
    local output, how, told = self:output_in_time(words, most)
    if not output then
      local why = told:match("message ([^\n]*)") or ""
      if why == "out of memory" then error({ message = "tune: out of memory" }, 0) end
      M.bug(missing[1], "the program %s: %s", how:match(" (.*)"), why)
    end
    for _, candidate in ipairs(missing) do
      local row = row_of(candidate, output)
      row.key = key_of(key, candidate)
      self:note(row)
    end
  end
  for i, candidate in ipairs(list) do rows[i] = log[key_of(key, candidate)] end
  return rows
end

-- Candidates are compared with the reference in double.
function Lab:check_all(list)
  return self:measure(list, "check ", {}, function(candidate, output)
    local verdict, error_, bound = output:match(("(%%l+) %s (%%S+) (%%S+)\n"):format(candidate.cfg.name))
    if verdict ~= "right" then M.bug(candidate, "the error is %s, more than %s", error_, bound) end
    local row = { error = tonumber(error_) }
    bench.add(row, output)
    return row
  end)
end

function Lab:rows_of_times(list, samples, number)
  local key = ("%d samples%s "):format(samples, number and " #" .. number or "")
  return self:measure(list, key, { "--samples", tostring(samples) }, function(candidate, output)
    local us, ratio = output:match(("time %s (%%S+) (%%S+)\n"):format(candidate.cfg.name))
    return { us = tonumber(us), ratio = tonumber(ratio) }
  end)
end

-- ---- the default ----

-- A sample is half a millisecond or a run, and a run before. Half of what was built is common to all.
function Lab:begin(list)
  local default = list[1]
  self.default = default
  local depends = { self.compiler, self.flags, default.code, host.read_file("/proc/cpuinfo") or "" }
  depends[4] = depends[4]:match("model name[^\n]*") or ""
  for _, name in ipairs(shared_files) do depends[#depends + 1] = host.embedded(name) end
  local first = json.encode { made_of = host.hash(table.concat(depends, "\0")) }
  self.log, self.lines, self.before = read_log(self.dir .. "/log.jsonl", first)
  if #self.lines > 1 then self:say("goes on: %d figures are there", #self.lines - 1) end
  local at = self:seconds()
  self:compile(list)
  local built = self:seconds()
  self.machine = self:check_all(list)[1]
  local checked = self:seconds()
  default.us = self:rows_of_times(list, tune.SAMPLES)[1].us
  local once = default.us * 1e-6
  if not self.log.cost then
    self:note { key = "cost", build = (built - at) / 4, check = checked - built, winner = checked - at,
                sample = math.max(5e-4, once) + once }
  end
  self.cost = self.log.cost
  self:say("the default takes %.6g us", default.us)
end

-- Samples of a first measurement, as many as take a small part of the time; for few of them tell little.
function Lab:first_samples()
  local fit = TIMED * self.cost.build / self.cost.sample
  return math.max(tune.SAMPLES, math.min(tune.MOST_SAMPLES // 8, fit // 1 | 0))
end

-- Seconds that a generation of `count` will take: each halving takes as long as the first measurement.
function Lab:predicted(count)
  local cost = self.cost
  return cost.check + count * (cost.build + math.log(count, 2) * self:first_samples() * cost.sample)
end

-- ---- what a search asks (lab/tune.lua) ----

local asked = {}

function asked:seconds() return self:seconds() end
function asked:allowed(most) return self:allowed(most) end
function asked:tick() self:allowed(1) end
function asked:say(...) self:say(...) end

function asked:build(list)
  if not self.default then
    self:begin(list)
    self.ends = self.args.budget
    return
  end
  local at = self:seconds()
  self:compile(list)
  local built, cost = self:seconds(), self.cost
  local known = self.log[key_of("check ", list[1])]
  self:check_all(list)
  if not known then
    self:note { key = "cost", build = (built - at) / #list, check = cost.check, winner = cost.winner,
                sample = cost.sample }
    self.cost = self.log.cost
  end
end

function asked:time(list, samples)
  local ratios = {}
  for i, row in ipairs(self:rows_of_times(list, samples)) do
    ratios[i] = row.ratio
    if samples > tune.SAMPLES then self.trace[#self.trace + 1] = row end
  end
  return ratios
end

-- All paired runs of the finalists together may take what the search leaves of the budget.
function asked:pair(candidate, number)
  self.ends = self.last
  local samples = self.args.budget * PAIR / (2 * self.cost.sample) // 1 | 0
  local row = self:rows_of_times({ candidate }, math.max(5, math.min(samples, 1000)), number)[1]
  self.trace[#self.trace + 1] = row
  return row.ratio
end

-- As in the log, for the same generations: a search that goes on is the same one. The check of the winner
-- takes about as long as building and checking the default, and needs its time as well.
function asked:room(n)
  local key = ("room %d"):format(n)
  if self.log[key] then return self.log[key].count, self.log[key].samples or tune.SAMPLES end
  local most, spent = math.min(MOST, MOST_BYTES // self.default.bytes), self:seconds() + self.cost.winner
  local left = SEARCH * self.args.budget - spent
  local count = self:predicted(2) > left and 0 or 2
  if n == 1 and count == 0 then self.lab.least = (spent + self:predicted(2)) / SEARCH end
  while 0 < count and count < most and self:predicted(count + 1) < math.min(left, GENERATION * self.args.budget) do
    count = count + 1
  end
  local samples = self:first_samples()
  self:note { key = key, count = count, samples = samples }
  return count, samples
end

function asked:error_of(candidate) return self.log[key_of("check ", candidate)].error end

-- A laboratory in `dir`, for the arguments of the command.
function M.new(dir, args)
  local last = args.budget + math.max(SLACK * args.budget, LEAST_SLACK)
  local lab = { trace = {}, compiler = build.version_of(build.words_of(host.cc)),
                flags = table.concat(build.compiler(host.cc), " "), hash = host.hash }
  local own = setmetatable({
    lab = lab, dir = dir, args = args, trace = lab.trace, compiler = lab.compiler, flags = lab.flags,
    command = shell.line(build.compiler(host.cc)), start = host.clock(), before = 0, generations = 0,
    last = last, ends = math.huge, -- seconds when what runs is ended: of a search the budget, of the default never
  }, Lab)
  function lab.name(words) return "c_" .. host.hash(words) end
  function lab.machine() return own.machine end
  for name, ask in pairs(asked) do lab[name] = function(...) return ask(own, ...) end end
  return lab
end

return M
