-- Tuning files: a Lua table that people may read and edit. Each shape has its fastest schedule, figures and
-- machine.

local M = {}

-- The mark with which a tuning file begins.
M.MARK = "-- Written by mhagen tune"

-- The fields of a record besides its shape, in order: key and type.
local fields = {
  { "schedule", "string" }, { "us", "number" }, { "default_us", "number" }, { "ratios", "string" },
  { "error", "number" }, { "tried", "number" }, { "seconds", "number" }, { "compiler", "string" },
  { "flags", "string" }, { "cpu", "string" }, { "cores", "number" }, { "system", "string" },
  { "version", "string" },
}
local type_of = {}
for _, field in ipairs(fields) do type_of[field[1]] = field[2] end

-- The records in the entries of a file's table; each is { shape = } and the fields.
function M.read(entries, path)
  local function refuse(...) error({ message = path .. ": " .. string.format(...) }, 0) end
  local records = {}
  for _, entry in ipairs(entries) do
    if entry.key_type ~= "string" or not entry.entries then
      refuse("%s: must be a shape with a table", tostring(entry.key))
    end
    local record = { shape = entry.key }
    for _, field in ipairs(entry.entries) do
      local key = tostring(field.key)
      if not type_of[key] then refuse("%s: unknown field %s", entry.key, key) end
      if field.value_type ~= type_of[key] then refuse("%s: %s must be a %s", entry.key, key, type_of[key]) end
      record[key] = field.value
    end
    if not record.schedule then refuse("%s: has no schedule", entry.key) end
    for word in record.schedule:gmatch("%S+") do
      if not word:find("=", 1, true) then refuse("%s: schedule: %s is no key=value", entry.key, word) end
    end
    records[#records + 1] = record
  end
  return records
end

-- The schedules of records by shape, as lists of key=value.
function M.schedules(records)
  local schedules = {}
  for _, record in ipairs(records) do
    local words = {}
    for word in record.schedule:gmatch("%S+") do words[#words + 1] = word end
    schedules[record.shape] = words
  end
  return schedules
end

-- The text of a file with these records, in which a new record replaces the one of its shape.
function M.text(records, new)
  local all = { new }
  for _, record in ipairs(records) do
    if record.shape ~= new.shape then all[#all + 1] = record end
  end
  table.sort(all, function(a, b) return a.shape < b.shape end)
  local lines = {
    M.MARK .. ", which replaces single entries. `mhagen gen SHAPE tuned=FILE` applies the",
    "-- schedule of a shape. us: median of a run, default_us: without the schedule; ratios: of the two, in",
    "-- paired runs; tried: schedules that were measured in so many seconds.",
    "return {",
  }
  for _, record in ipairs(all) do
    lines[#lines + 1] = ("  [%q] = {"):format(record.shape)
    for _, field in ipairs(fields) do
      local value = record[field[1]]
      if value ~= nil then
        local text = type(value) == "number" and ("%.6g"):format(value) or ("%q"):format(value)
        lines[#lines + 1] = ("    %s = %s,"):format(field[1], text)
      end
    end
    lines[#lines + 1] = "  },"
  end
  lines[#lines + 1] = "}"
  return table.concat(lines, "\n") .. "\n"
end

return M
