-- The configs of a sweep's grid: those that `where` accepts.
--
--   grid, axes, limit     the table of the file, the names of its axes in order, and the most configs
--
-- It runs in the Lua state of the GRID.lua, since `where` is the user's code. The user reads the errors that it
-- raises.

local grid, axes, limit = ...

local function refuse(...)
  local message = ""
  for i = 1, select("#", ...) do message = message .. tostring((select(i, ...))) end
  error(message, 0)
end

-- A list of one or more values.
local function list_of(name, list, kind)
  if type(list) == "table" and next(list) == nil then refuse(name, " is empty") end
  local count = 0
  for _ in next, type(list) == "table" and list or {} do count = count + 1 end
  if count == 0 or count ~= #list then refuse(name, " must be a list of ", kind) end
  return list
end

-- ---- the factors of the product: each a list of tables of keys ----

local factors, known = {}, {}

if grid.configs ~= nil then
  factors[1] = list_of("configs", grid.configs, "tables")
  for i, config in ipairs(factors[1]) do
    if type(config) ~= "table" then refuse("configs[", i, "] is no table") end
    for key in next, config do known[key] = true end
  end
end
for _, axis in ipairs(axes) do
  local values, factor = grid[axis], {}
  if type(values) ~= "table" then values = { values } end
  if known[axis] then refuse(axis, " is an axis and also in configs") end
  for i, value in ipairs(list_of("axis " .. axis, values, "values")) do factor[i] = { [axis] = value } end
  known[axis] = true
  factors[#factors + 1] = factor
end
if #factors == 0 then refuse("has no axis and no configs") end

local size = 1.0
for _, factor in ipairs(factors) do size = size * #factor end

-- ---- where ----

local where = grid.where

-- Whether a config has the values, or one of the list of values, of each key of the pattern.
local function matches(config, pattern)
  for key, wanted in next, pattern do
    local found = false
    for _, value in ipairs(type(wanted) == "table" and wanted or { wanted }) do
      found = found or config[key] == value
    end
    if not found then return false end
  end
  return true
end

local function accepts(config)
  if where == nil then return true end
  if type(where) == "function" then return where(config) end
  for _, pattern in ipairs(where) do
    if matches(config, pattern) then return true end
  end
  return false
end

if type(where) == "table" then
  where = where[1] == nil and { where } or list_of("where", where, "tables")
  for i, pattern in ipairs(where) do
    if type(pattern) ~= "table" then refuse("where[", i, "] is no table") end
  end
elseif where ~= nil and type(where) ~= "function" then
  refuse("where must be a function or a table")
end

-- ---- the product ----

local function too_many(count)
  refuse("has ", count < 2^53 and count // 1 | 0 or count, " configs, more than the limit of ", limit)
end

if where == nil and size > limit then too_many(size) end
if size > 100 * limit then -- too many to ask where about
  refuse("has ", size < 2^53 and size // 1 | 0 or size, " configs before where, more than 100 times ",
         "the limit of ", limit)
end

-- The config as `where` sees it. A misspelt name is an error there: comparing nil might raise none.
local seen = setmetatable({}, { __index = function(_, key)
  if not known[key] then error("where asks for " .. tostring(key) .. ", which no axis gives", 2) end
end })

local accepted, count = {}, 0
for n = 0, size // 1 - 1 | 0 do
  for key in next, known do seen[key] = nil end
  local config, rest = {}, n
  for i = #factors, 1, -1 do -- the last one varies fastest
    for key, value in next, factors[i][rest % #factors[i] + 1] do
      config[key], seen[key] = value, value
    end
    rest = rest // #factors[i]
  end
  if accepts(seen) then
    count = count + 1
    accepted[count] = count <= limit and config or nil
  end
end
if count > limit then too_many(count) end
if count == 0 then refuse("where refuses all ", size // 1 | 0, " configs") end
return accepted
