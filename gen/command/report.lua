-- `report`: tables and a page of a sweep.

local host = require "host"
local errors = require "command.errors"
local measured = require "lab.measured"
local report = require "lab.report"
local takes = require "command.takes"

local must = errors.must

-- The results of a sweep in a directory.
local function load_sweep(dir, filters)
  local path = dir .. "/results.jsonl"
  local sweep = measured.read(must(host.lines(path)), path)
  measured.filter(sweep, filters)
  local tuning = dir .. "/tune.jsonl"
  if host.exists(tuning) then
    measured.read_tuning(sweep, must(host.lines(tuning)), tuning)
  end
  return sweep
end

local function run(args)
  if args.fail_on and not args.compare then
    error({ message = "report: --fail-on needs --compare" }, 0)
  end
  local sweep = load_sweep(args.dir, args.filter)
  local other = args.compare and load_sweep(args.compare, args.filter)
  if other then measured.compare(sweep, other, tonumber(args.band)) end
  for _, one in ipairs { sweep, other } do
    if args.fail_on and one.left_out > 0 then
      error({ message = ("report: --fail-on: %d lines of %s/results.jsonl are wrong; %s"):format(
        one.left_out, one.dir, one.notes[1]) }, 0)
    end
  end
  local options = { sort = args.sort, reverse = args.reverse, limit = tonumber(args.limit) }
  local text = report.text(sweep, options)
  local path = args.output or args.dir .. "/report.html"
  takes.write_file(path, report.page(sweep), args.force)
  must(host.print(("%s\nPage: %s\n"):format(text, (path:gsub("%c", "?")))))
  local regression = args.fail_on and measured.regression(sweep)
  if regression then return 1, regression end
  return 0
end

local function options(cmd)
  cmd:argument("dir", "directory with results.jsonl and, after tuning, tune.jsonl")
    :argname("<DIR>")
  cmd:option("-o --output", "write the page there (default: DIR/report.html)"):argname("<FILE>")
  takes.force(cmd)
  cmd:option("--filter", "show only rows with one of these values in a column or config key")
    :argname("<KEY=VALUE,...>"):count("*")
  cmd:option("--sort", "column or config key to order the first table by", "shape")
    :argname("<KEY>")
  cmd:flag("--reverse", "order this table from the greatest value to the least")
  cmd:option("--limit", "the most lines of a table on the terminal; 0 for all", "20"):argname("<N>")
    :convert(takes.number("--limit", "^%d+$", "an integer from 0"))
  cmd:option("--compare", "also compare the times of a second sweep, config by config")
    :argname("<DIR2>")
  cmd:option("--band", "treat differences within this percentage as noise", "3")
    :argname("<PERCENT>"):convert(takes.number("--band", "^%d+%.?%d*$", "a number from 0"))
  cmd:option("--fail-on", "exit with status 1 if a config is slower in DIR2, or fails only there")
    :choices { "regression" }
  cmd:epilog(
    "Exit status: 0 done, 1 a regression, 2 the command line or the results are wrong.")
end

return {
  name = "report", run = run, options = options,
  summary = "Show the results of a sweep, as tables and as a page.",
  about = "It writes DIR/report.html, one file that a browser opens offline.",
}
