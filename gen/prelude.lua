-- What the generator's Lua can see: no files, clock, environment or random numbers, and nothing
-- that runs in the order of hashes or addresses. The same config gives the same bytes because
-- nothing else is within reach. gen/host/program.c runs this file with all libraries as globals.

local host, program = ...
local raw_next, sort, load = next, table.sort, host.load

local function key_before(a, b)
  if type(a) == type(b) then return a < b end
  return type(a) == "number"
end

-- The pairs present at the start, sorted by key: numbers, then strings.
local function sorted_pairs(t)
  local meta = getmetatable(t)
  if type(meta) == "table" and meta.__pairs then return meta.__pairs(t) end
  local keys = {}
  for key in raw_next, t do
    if type(key) ~= "number" and type(key) ~= "string" then
      error("pairs: keys that are no numbers or strings have no order; keep a list", 2)
    end
    keys[#keys + 1] = key
  end
  sort(keys, key_before)
  local i = 0
  return function()
    local value
    repeat
      i = i + 1
      value = rawget(t, keys[i])
    until value ~= nil or keys[i] == nil
    return keys[i], value
  end
end

local function sorted_next(t, after)
  if after == nil and raw_next(t) == nil then return nil end -- often asked, and sorting takes time
  for key, value in sorted_pairs(t) do
    if after == nil then return key, value end
    if key == after then after = nil end
  end
end

-- Stable, so that equal elements keep their order (Lua's own may draw its pivot from the clock).
function table.sort(list, before)
  before = before or function(a, b) return a < b end
  local items = {}
  for i, value in ipairs(list) do items[i] = { value = value, at = i } end
  sort(items, function(a, b)
    if before(a.value, b.value) then return true end
    return not before(b.value, a.value) and a.at < b.at
  end)
  for i, item in ipairs(items) do list[i] = item.value end
end

math.random, math.randomseed, string.dump = nil, nil, nil

local env = {
  assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs, math = math,
  next = sorted_next, pairs = sorted_pairs, pcall = pcall, rawequal = rawequal, rawget = rawget,
  rawlen = rawlen, rawset = rawset, select = select, setmetatable = setmetatable, string = string,
  table = table, tonumber = tonumber, tostring = tostring, type = type, utf8 = utf8, xpcall = xpcall,
}

-- argparse prints the help and ends the program; here the end is an error with the exit status.
-- main.lua catches these errors.
local argparse_env = setmetatable({
  _G = {},
  os = { exit = function(status) error({ status = status or 0 }, 0) end },
  print = function(text)
    local ok, message = host.print(text .. "\n")
    if not ok then error({ message = message }, 0) end
  end,
}, { __index = env })

local loaded = { host = host }

function env.require(name)
  if loaded[name] == nil then
    loaded[name] = false -- until it has returned
    local path = name:gsub("%.", "/") .. ".lua"
    local globals = name == "argparse" and argparse_env or env
    local chunk = load("gen/" .. path, globals) or load(path, globals)
    if not chunk then error("no embedded file " .. path, 2) end
    loaded[name] = chunk(name)
  end
  return loaded[name] or error("modules that require each other: " .. name, 2)
end

setmetatable(env, {
  __index = function(_, name) error("no such global: " .. tostring(name), 2) end,
  __newindex = function(_, name) error("a global is assigned: " .. tostring(name), 2) end,
  __metatable = false,
})

return load(program, env)()
