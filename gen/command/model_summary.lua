-- What `model` says of what it has written.

local host = require "host"
local config = require "options.config"
local errors = require "command.errors"
local layers = require "model.layers"
local pack = require "plan.pack"
local tables = require "command.tables"
local whole_tables = require "command.whole_tables"
local wording = require "base.wording"

local function append(list, more) table.move(more, 1, #more, #list + 1, list) end

-- What a kernel packs for a layer; by parts where there are tables.
local function packed_text(packer, several)
  local parts, told = {}, false
  for i, part in ipairs(packer.parts) do
    parts[i], told = ("%s %s"):format(wording.number(part.bytes), part.text), told or part.text == pack.TABLES
  end
  return ("      %s bytes packed a layer%s%s"):format(wording.number(packer.packing.bytes),
    several and " for " .. packer.cfg.isa or "", told and ": " .. table.concat(parts, ", ") or "")
end

-- Keys with which weights are packed in no more bytes than the file has: the most bytes of a number, and the keys.
local smaller = { { 0.7, "weight_dtype=int4" }, { 1.1, "weight_dtype=int8" } }
local halves = { F16 = "weight_dtype=f16", BF16 = "weight_dtype=bf16" } -- as the file has them

-- A line that proposes these, where the file's weights are smaller than what is packed.
local function proposal(entry)
  local bytes, count, type, alike = layers.stored(entry.layers[1], host.type_size)
  local packer, packed = entry.packers[1], 0
  for _, part in ipairs(packer.parts) do packed = packed + (part.text == pack.WEIGHTS and part.bytes or 0) end
  if count == 0 or packed <= 1.2 * bytes or entry.cfg.weight_dtype ~= "dtype" then return nil end
  local keys, how = halves[type], "without a rounding"
  for _, row in ipairs(smaller) do
    if not keys and bytes / count <= row[1] then keys, how = row[2], "with roundings of its own" end
  end
  if alike then keys, how = table.unpack(alike) end
  return keys and ("      the file has them as %s, %s bytes a layer: %s packs fewer, %s"):format(
    type, wording.number(math.tointeger(bytes // 1)), keys, how) or nil
end

-- What is to be said of layers, once where it differs in numbers alone.
local function notes_of(all)
  local known, lines = {}, {}
  for _, layer in ipairs(all) do
    for _, note in ipairs(layer.notes or {}) do
      local kind = note:gsub("%d+", "0")
      if not known[kind] then known[kind], lines[#lines + 1] = true, "      " .. note end
    end
  end
  return lines
end

-- A line of a whole model's table of words, whose rows are not among the packed weights of layers.
local function words_line(embeddings)
  for _, of in ipairs(embeddings and embeddings.list or {}) do
    if of.name == "words" then
      return ("  words: %s rows in %s, %s bytes%s"):format(wording.number(of.part.features), of.type,
        wording.number(whole_tables.bytes(of)), of.type == "f32" and "; --embeddings rounds them to fewer" or "")
    end
  end
end

-- kernels, all: what gen/command/model.lua has planned and packed. figures: bytes, seconds, packing, and the line that
-- compiles the files.
return function(model, all, kernels, figures)
  local lines = { ("%s: %s, %s, %s"):format(model.path, model.type, wording.counted(#all, "layer"),
    wording.counted(#kernels, "kernel")) }
  for _, entry in ipairs(kernels) do
    local first, last = entry.layers[1].name, entry.layers[#entry.layers].name
    local places = entry.packers.known.places
    local shared = places < #entry.layers and (", with the weights of %d"):format(places) or ""
    lines[#lines + 1] = ("  %-3d %s%s"):format(#entry.layers, first == last and first or first .. " .. " .. last,
      shared)
    lines[#lines + 1] = "      " .. config.canonical(entry.cfg)
    append(lines, notes_of(entry.layers))
    for _, packer in ipairs(entry.packers) do lines[#lines + 1] = packed_text(packer, #entry.packers > 1) end
    append(lines, tables.lines(entry))
    lines[#lines + 1] = proposal(entry)
  end
  lines[#lines + 1] = words_line(model.embeddings)
  for _, line in ipairs(model.embeddings and model.embeddings.said or {}) do lines[#lines + 1] = "  " .. line end
  lines[#lines + 1] = model.pixels and "  pixels: " .. model.pixels
  if model.without and model.without[1] then
    lines[#lines + 1] = "  left out: " .. table.concat(model.without, ", ")
  end
  for _, node in ipairs(model.left) do
    lines[#lines + 1] = ("  no layer: %s: %s"):format(errors.show(node.name), node.why)
  end
  for _, entry in ipairs(model.swap and model.swap.left or {}) do
    lines[#lines + 1] = ("  stays: layer %s: %s"):format(errors.show(entry.layer.name), entry.why)
  end
  lines[#lines + 1] = ("packed %s bytes in %.2f s, all in %.2f s"):format(wording.number(figures.bytes),
    figures.packing, figures.seconds)
  lines[#lines + 1] = figures.compile
  return table.concat(lines, "\n") .. "\n"
end
