-- Numbers for what an ONNX graph leaves open until it runs: extents of axes, and positions of rows.
--
--   new(given, how, batch, apart) -> function for gen/onnx/shapes.lua
--     given     { key = text }, of which seq is the rows of inputs
--     how       nil; "longer": other numbers; extents that stay are those of all runs; "few": less rows;
--               "shorter": half of the rows; "single": all are 1; "first": this run has those of earlier ones too;
--               "begin": only a few of these; "least": only five rows
--     batch     sequences; apart: runs have more keys than rows, where they have labels of their own
--   places(graph, shapes) -> function(value, i) -> element i of an input that has places of rows, or nil
--   is_past(graph, name) -> whether an input has rows of earlier runs
--   PAST       how many rows of earlier runs there are

local M = {}

-- Enough that a mask shows its form, and that a few windows of an image or of sound leave some rows.
local LEAST, PAST, IMAGE, SAMPLES, FEW, FEWEST = 8, 5, 256, 20000, 24, 5

M.BATCH = 2 -- sequences of most graphs
M.PAST = PAST

local function largest(text)
  local most = LEAST
  for number in (text or ""):gmatch "%d+" do most = math.max(most, math.tointeger(tonumber(number)) or most) end
  return most
end

local floats = { F32 = true, F16 = true, F64 = true, BF16 = true }

function M.new(given, how, batch, apart)
  local rows, image, samples, past, named = math.min(largest(given.seq), 1 << 16), IMAGE, SAMPLES, PAST, {}
  local keys, first = given.seq_kv and math.min(largest(given.seq_kv), 1 << 16) or rows, nil
  if how == "single" then rows, keys, past = 1, 1, 1 end
  if how == "first" then rows, past = rows + PAST, 0 end
  if how == "begin" then rows, past = math.min(rows + PAST, FEW), 0 end
  if how == "least" then rows, keys = math.min(rows, FEWEST), math.min(keys, FEWEST) end
  if how == "few" then rows, keys, samples = math.min(rows, FEW), math.min(keys, FEW), SAMPLES // 10 end
  if how == "shorter" then rows, keys = rows // 2, keys // 2 end
  if how == "longer" then rows, keys, image, samples, past = rows + 3, keys + 3, image + 96, 2 * samples, past + 3 end
  if apart then keys = keys + 2 end
  if given.cache == "append" then keys = past + rows end
  local function pick(name, axis, label, rank, kind)
    local text = (name .. " " .. (label or "")):lower()
    if axis == 1 and rank > 1 then return batch end
    if text:find "past" or text:find "cache" then return past end
    if rank > 3 and axis > 2 and not text:find "mask" then return image end
    if floats[kind] and rank == 2 and not text:find "mask" then return samples end
    first = first or label
    return label == first and rows or keys
  end
  return function(name, axis, label, rank, kind)
    if not label then return pick(name, axis, label, rank, kind) end
    if named[label] then return named[label] end
    local sum = 0
    for part in label:gmatch "[^+]+" do -- "past + rows" is their sum
      local word = part:match "^%s*(.-)%s*$"
      local number = math.tointeger(tonumber(word)) or named[word] or label:find("+", 1, true) and
        pick(name, axis, word, rank, kind) or nil
      if not number then sum = nil break end
      sum = sum + number
    end
    named[label] = sum or pick(name, axis, label, rank, kind)
    return named[label]
  end
end

function M.is_past(graph, name)
  local of = graph.values[name]
  return name:lower():find "past" ~= nil and of ~= nil and of.dims ~= nil and #of.dims == 4
end

-- Places of rows are their numbers, as a kernel has them, behind those of earlier runs.
function M.places(graph, shapes)
  local own, past = {}, 0
  for _, name in ipairs(graph.inputs) do
    local of = graph.values[name]
    local integers = of and (of.type == "I64" or of.type == "I32")
    if integers and name:lower():find "position" then own[name] = true end
    if M.is_past(graph, name) and shapes[name] then past = shapes[name][3] end
  end
  return function(value, i)
    local shape = own[value] and shapes[value]
    if not shape or #shape == 0 then return nil end
    return past + i % shape[#shape]
  end
end

return M
