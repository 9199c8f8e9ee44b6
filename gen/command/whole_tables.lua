-- The types of a whole model's tables: those of which a run takes rows, by ids and places, may have fewer bits.
--
--   NAMES                  of types that a user may ask for
--   choose(model, wanted)  gives each table of model.embeddings.list its `type`. wanted: that of words, or nil
--   bytes(of)              of a table in the file
--   pack(of, add)          calls add(memory) with it, some rows at a time

local host = require "host"
local tensors = require "model.tensors"
local weights = require "command.weights"

local M = {}

M.NAMES = { "f32", "bf16", "f16", "int8" }

local WIDE = "f32"
local BY_ROWS = { words = true, types = true, places = true }
local SAME = { BF16 = "bf16", F16 = "f16" } -- types of files, which hold the same numbers

-- The smallest type that keeps all numbers of the file as they are.
local function lossless(part)
  local is_changed = part.numbers or part.change or part.scaled or part.factor
  return not is_changed and SAME[part.tensor.type] or WIDE
end

function M.choose(model, wanted)
  local embeddings, found = model.embeddings, false
  for _, of in ipairs(embeddings.list) do
    local by_rows = BY_ROWS[of.name] and not embeddings.inputs
    of.type = by_rows and lossless(of.part) or WIDE
    if by_rows and of.name == "words" and wanted then of.type, found = wanted, true end
  end
  if wanted and not found then
    error({ message = ("--embeddings: %s has no table of words"):format(model.path) }, 0)
  end
end

local BYTES = { f32 = 4, bf16 = 2, f16 = 2 } -- of a number
local SCALE = 4 -- bytes of the scale of a row of int8, and of what its numbers fill up

function M.bytes(of)
  local rows, width = of.part.features, of.part.width or 1
  if BYTES[of.type] then return BYTES[of.type] * (of.floats or rows * width) end
  return rows * (SCALE + (width + SCALE - 1) // SCALE * SCALE)
end

function M.pack(of, add)
  if of.type == WIDE then return weights.by_rows(of.part, add) end
  weights.by_rows(of.part, function(memory)
    local made = host.narrowed(memory, of.type, of.part.width)
    memory:free()
    if not made then
      tensors.fail(of.part.tensor, "has numbers that are too large for %s, or NaN; --embeddings takes other types",
        of.type)
    end
    add(made)
  end)
end

return M
