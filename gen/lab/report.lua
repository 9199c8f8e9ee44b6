-- A sweep in readable form: tables for a terminal, and one self-contained HTML page.

local host = require "host"
local json = require "base.json"
local measured = require "lab.measured"
local template = require "base.template"
local version = require "base.version"

local columns = measured.columns

local M = {}

-- ---- tables of text ----

local WIDTH, LEAST = 100, 16

-- A value of a column as text, without its unit.
local function show(column, value)
  if type(value) ~= "number" then return value == nil and "-" or tostring(value) end
  if column.decimals == "e" then return ("%.1e"):format(value) end
  if column.decimals then return ("%." .. column.decimals .. "f"):format(value) end
  return math.tointeger(value) and ("%d"):format(value) or ("%g"):format(value)
end

-- A table of text. heads: { title, unit }, or { title, left = true } for a column of words; lines: lists of
-- texts. If the width is too small, the last column of words gets narrower, then the one before, and so on.
local function table_of(heads, lines)
  local all = { {}, {} }
  for i, head in ipairs(heads) do all[1][i], all[2][i] = head[1], head[2] or "" end
  table.move(lines, 1, #lines, 3, all)
  local widths, total, words = {}, 0, {}
  for i, head in ipairs(heads) do
    widths[i] = 0
    for _, line in ipairs(all) do widths[i] = math.max(widths[i], #line[i]) end
    total = total + 2 + widths[i]
    if head.left then table.insert(words, 1, i) end
  end
  for _, i in ipairs(words) do
    local less = math.max(0, math.min(total - WIDTH, widths[i] - LEAST))
    widths[i], total = widths[i] - less, total - less
  end
  local out = {}
  for n, line in ipairs(all) do
    local cells = {}
    for i, text in ipairs(line) do
      if #text > widths[i] then text = text:sub(1, widths[i] - 2) .. ".." end
      local pad = (" "):rep(widths[i] - #text)
      cells[i] = (heads[i].left and text .. pad or pad .. text):gsub("[^\32-\126]", "?")
    end
    out[n] = ("  " .. table.concat(cells, "  ")):gsub(" +$", "")
  end
  if out[2] == "" then table.remove(out, 2) end -- no units
  return table.concat(out, "\n")
end

-- The table of some columns of rows. A column is a key, or { title, of = function(row) -> words }.
local function table_of_rows(keys, rows)
  local heads, lines = {}, {}
  for i, key in ipairs(keys) do
    local column = columns[key]
    heads[i] = column and { column.title, column.unit, left = column.words }
      or { key.title, left = true }
  end
  for n, row in ipairs(rows) do
    local line = {}
    for i, key in ipairs(keys) do
      line[i] = columns[key] and show(columns[key], row[key]) or key.of(row)
    end
    lines[n] = line
  end
  return table_of(heads, lines)
end

-- The first `limit` lines of a list (all if it is 0), and a line about the others.
local function limited(list, limit)
  if limit == 0 or #list <= limit then return list, "" end
  return table.move(list, 1, limit, 1, {}), ("\n  ... and %d more (--limit)"):format(#list - limit)
end

-- ---- what the tables show ----

-- The fastest row for each text, texts[i] being that of rows[i]: as a list, by that text, and the text of each.
local function fastest_by(rows, texts)
  local best, order, list, text_of = {}, {}, {}, {}
  local times, least = measured.list(rows, "us_median"), {}
  for i, row in ipairs(rows) do
    local key, time = texts[i], times[i]
    local most = least[key]
    if not most then order[#order + 1] = key end
    if not most or time < most then best[key], least[key] = row, time end
  end
  for i, key in ipairs(order) do list[i], text_of[best[key]] = best[key], key end
  return list, best, text_of
end

-- The values of a row on the axes that no other column tells, as key=value; without those left to the plan.
local function choices(axes)
  return { title = "with", of = function(row)
    local words = {}
    for _, axis in ipairs(axes) do
      local column, value = axis.column, tostring(row[axis.column.key])
      local told = column.in_shape or column.key == "isa" or column.key == "unroll"
      if (column.of_config and not told or column.key == "threads") and value ~= "plan" then
        words[#words + 1] = column.key .. "=" .. value
      end
    end
    return table.concat(words, " ")
  end }
end

-- A text without line ends; the host makes the rest of it printable.
local function one_line(text) return (text:gsub("%c", "?")) end

local function head(sweep)
  local all, tried, ok = #sweep.rows, #measured.tried(sweep.rows), #measured.succeeded(sweep.rows)
  local lines = { ("%s: %d configs, %d measured, %d failed"):format(sweep.dir, all, ok, tried - ok)
                  .. (tried < all and (", %d skipped"):format(all - tried) or "") }
  for _, note in ipairs(sweep.notes) do lines[#lines + 1] = "note: " .. note end
  for _, key in ipairs { "cpu", "cores", "system", "compiler", "flags", "version" } do
    local values = measured.values(sweep.rows, columns[key])
    for i, value in ipairs(values) do values[i] = tostring(value) end
    if #values > 0 then
      lines[#lines + 1] = ("  %-9s %s"):format(key, table.concat(values, "; "))
    end
  end
  for i, line in ipairs(lines) do lines[i] = one_line(line) end
  return table.concat(lines, "\n")
end

local function best(rows, axes, options)
  local list = fastest_by(rows, measured.list(rows, "shape"))
  measured.sort(list, options.sort, options.reverse)
  local shown, more = limited(list, options.limit)
  local keys = { "shape", "isa", "unroll", "us_median", "gflops", "fraction", "text_bytes", "error",
                 choices(axes) }
  return "Fastest config of each shape\n" .. table_of_rows(keys, shown) .. more
end

-- Compares the values of a column: for each group, texts[i] being that of rows[i], the time of the fastest config
-- with each value. The last line has these times over that of the fastest value, as the geometric mean over the groups
-- that have every value. nil if there is only one value.
local function against(rows, key, title, texts, limit)
  local values = measured.values(rows, columns[key])
  if #values < 2 then return nil end
  local function place(text, value) return text .. "\0" .. tostring(value) end
  local groups, _, text_of = fastest_by(rows, texts)
  local places = measured.list(rows, key)
  for i, value in ipairs(places) do places[i] = place(texts[i], value) end
  local _, cells = fastest_by(rows, places)
  measured.sort(groups, "shape")
  local heads, lines, logs, complete = { { title, left = true } }, {}, {}, 0
  for i, value in ipairs(values) do heads[i + 1], logs[i] = { tostring(value), "us" }, 0 end
  for n, group in ipairs(groups) do
    local line, found = { text_of[group] }, {}
    for i, value in ipairs(values) do
      local row = cells[place(text_of[group], value)]
      line[i + 1] = show(columns.us_median, row and row.us_median)
      found[#found + 1] = row
    end
    lines[n] = line
    if #found == #values then
      complete = complete + 1
      for i, row in ipairs(found) do
        logs[i] = logs[i] + math.log(row.us_median / group.us_median)
      end
    end
  end
  local shown, more = limited(lines, limit)
  if complete > 0 then
    local means = { ("times the fastest, mean of %d"):format(complete) }
    for i, sum in ipairs(logs) do means[i + 1] = ("%.2f"):format(math.exp(sum / complete)) end
    shown = table.move(shown, 1, #shown, 1, {})
    shown[#shown + 1] = means
  end
  return ("The fastest configs by %s\n"):format(key) .. table_of(heads, shown) .. more
end

local function failures(rows, limit)
  local counts, list = {}, {}
  for _, row in ipairs(rows) do
    if row.status ~= "ok" then
      local key = row.status .. "\0" .. (row.message or "")
      if not counts[key] then list[#list + 1] = { row.status, key, row.message or "" } end
      counts[key] = (counts[key] or 0) + 1
    end
  end
  if #list == 0 then return nil end
  for _, line in ipairs(list) do line[2] = tostring(counts[line[2]]) end
  local shown, more = limited(list, limit)
  return "Failed or skipped\n" .. table_of({ { "status", left = true }, { "configs" },
                                    { "message", left = true } }, shown) .. more
end

local function comparison(sweep, axes, limit)
  local compared = sweep.comparison
  local counts, parts = compared.counts, {}
  local function part(...) parts[#parts + 1] = string.format(...) end
  part("%s against %s: times there over times here; within %g %% is noise",
       one_line(compared.dir), one_line(sweep.dir), compared.band)
  part("  %d slower, %d faster, %d within; geometric mean %s", counts.slower, counts.faster,
       counts.within, compared.mean and ("%.3f"):format(compared.mean) or "-")
  part("  %d fail there only, %d here only, %d in both", counts.fails, counts.fixed,
       counts["still fails"])
  part("  %d configs only here, %d only there", counts["only here"], #compared.only_there)

  local changed, missing = {}, {}
  for _, row in ipairs(sweep.rows) do
    local list = row.verdict == "only here" and missing
      or (row.verdict == "slower" or row.verdict == "faster" or row.verdict == "fails") and changed
    if list then list[#list + 1] = row end
  end
  measured.sort(changed, "ratio", true)
  local with = choices(axes)
  local alone = { "shape", "isa", "unroll", "us_median", "status", with }
  for _, list in ipairs {
    { "Changed", changed, { "shape", "isa", "unroll", "us_median", "us_there", "ratio", "verdict",
                            with } },
    { "Only here", missing, alone }, { "Only there", compared.only_there, alone },
  } do
    local title, rows, keys = table.unpack(list)
    if #rows > 0 then
      local shown, more = limited(rows, limit)
      part("\n%s\n%s%s", title, table_of_rows(keys, shown), more)
    end
  end
  return table.concat(parts, "\n")
end

local function tuning(rows)
  local heads = { { "shape", left = true }, { "default", "us" }, { "tuned", "us" },
                  { "random", "us" } }
  local lines, shapes = {}, {}
  for _, row in ipairs(rows) do
    local best = shapes[row.shape]
    if not best then
      best = { default = row.default_us }
      shapes[row.shape] = best
    end
    best[row.method] = math.min(best[row.method] or math.huge, row.us)
  end
  for shape, best in pairs(shapes) do
    local line = { shape }
    for i, method in ipairs { "default", "model", "random" } do
      line[i + 1] = show(columns.us_median, best[method])
    end
    lines[#lines + 1] = line
  end
  return "Tuning, best found\n" .. table_of(heads, lines)
end

-- The tables for a terminal; options: sort, reverse, limit.
function M.text(sweep, options)
  local rows, axes = measured.succeeded(sweep.rows), measured.axes(sweep)
  local shapes, with_isa = {}, {}
  if #rows > 0 then
    shapes = measured.list(rows, "shape")
    for i, isa in ipairs(measured.list(rows, "isa")) do with_isa[i] = shapes[i] .. ", " .. isa end
  end
  local parts = {}
  local function part(text) parts[#parts + 1] = text end -- nil: nothing
  part(head(sweep))
  part(#rows > 0 and best(rows, axes, options) or nil)
  part(against(rows, "isa", "shape", shapes, options.limit))
  part(against(rows, "unroll", "shape, isa", with_isa, options.limit))
  part(failures(sweep.rows, options.limit))
  part(sweep.comparison and comparison(sweep, axes, options.limit))
  part(sweep.tuning and #sweep.tuning > 0 and tuning(sweep.tuning) or nil)
  return table.concat(parts, "\n\n") .. "\n"
end

-- ---- the page ----

-- JSON as it may stand in a script element.
local function embedded(text)
  for _, one in ipairs { { "<", "\\u003c" }, { "\u{2028}", "\\u2028" }, { "\u{2029}", "\\u2029" } } do
    local from, to = table.unpack(one)
    if text:find(from, 1, true) then text = text:gsub(from, to) end -- long lists of numbers have none
  end
  return text
end

-- The values of rows in a column as JSON: a list, or, if a few texts come again and again, { of = the texts,
-- at = the place of each row's text in `of`, from 0 }.
local function list_of(rows, key)
  local list, texts, place, places = measured.list(rows, key), {}, {}, {}
  local most = columns[key].words and #rows // 4 or 0
  for n = 1, most > 0 and #rows or 0 do
    local value = list[n]
    if #texts < most and type(value) == "string" and not place[value] then
      place[value] = #texts
      texts[#texts + 1] = value
    end
  end
  for n = 1, #texts > 0 and #rows or 0 do
    local value = list[n]
    places[n] = place[value]
    if value ~= nil and not places[n] then return json.list(list, #rows) end -- too many, or a number
  end
  if #texts == 0 then return json.list(list, #rows) end
  return ('{"of":%s,"at":%s}'):format(json.list(texts, #texts), json.list(places, #rows))
end

-- The rows as JSON: a value that all rows have is there once, the other columns are lists.
local function data_of(sweep)
  local shown, constants, varying, lists, axes = {}, {}, {}, {}, {}
  for _, column in ipairs(columns) do
    local key = column.key
    local same, first = measured.constant(sweep.rows, key)
    local filled = first ~= nil
    if not same then
      local list = measured.list(sweep.rows, key)
      same, first = true, list[1]
      for n = 1, #sweep.rows do
        local value = list[n]
        filled = filled or value ~= nil
        same = same and value == first
        if filled and not same then break end
      end
    end
    if filled then
      shown[#shown + 1] = { key = key, title = column.title, unit = column.unit, doc = column.doc,
                            decimals = column.decimals, words = column.words }
      if same then constants[key] = first else varying[#varying + 1] = key end
    end
  end
  for i, key in ipairs(varying) do lists[i] = embedded(list_of(sweep.rows, key)) end
  for i, axis in ipairs(measured.axes(sweep)) do
    axes[i] = { key = axis.column.key, values = axis.values, in_shape = axis.column.in_shape }
  end
  return { columns = shown, constants = constants, varying = varying, count = #sweep.rows, axes = axes },
    lists
end

-- The whole page, with everything that it needs.
function M.page(sweep)
  local data, lists = data_of(sweep)
  data.dir, data.notes, data.version, data.tuning = sweep.dir, sweep.notes, version, sweep.tuning
  local compared = sweep.comparison
  if compared then
    local names = {}
    for i, row in ipairs(compared.only_there) do names[i] = row.name end
    data.comparison = { dir = compared.dir, band = compared.band, counts = compared.counts,
                        mean = compared.mean, only_there = names }
  end
  return template.file("report.html.in", {
    style = host.embedded("templates/report.css"),
    chart = host.embedded("chart.min.js"),
    base = host.embedded("templates/report_base.js"),
    script = host.embedded("templates/report.js"),
    data = embedded(json.encode(data)), lists = table.concat(lists, ",\n"),
  })
end

return M
