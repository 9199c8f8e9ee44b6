-- Rows of kinds of models, as gen/model/families.lua describes them, and what a config makes of one.

local unsupported = require "model.unsupported"

local M = {}

local STANDARD = { h = "num_attention_heads", h_kv = "num_key_value_heads", d_model = "hidden_size", dk = "head_dim" }

-- h, h_kv, d_model and dk of layer i of a stack, from 0 on.
function M.sizes(c, stack, i)
  local function size(key, default, layer)
    local field = stack[key] or STANDARD[key]
    if type(field) == "number" then return field end
    if not stack.by_layer or not c:is_list(field) then return c:int(field, default) end
    local value = c:of_layer(field, layer or i)
    return value > 0 and value or c:fail(field, "element %d must be a number from 1 on", (layer or i) + 1)
  end
  local sizes = { h = size "h", d_model = size "d_model" }
  sizes.h_kv = size("h_kv", sizes.h)
  sizes.dk = size("dk", math.max(1, sizes.d_model // size("h", nil, 0)))
  return sizes
end

-- The layers of most models, with more of what a stack has.
function M.stack(at, maps, keys, more)
  local made = { at = at, maps = maps, keys = keys, layers = "num_hidden_layers" }
  for key, value in pairs(more or {}) do made[key] = value end
  return made
end

-- The row of a type; nil and the types that are known. whole: only rows without parts; else none of parts alone.
function M.find(rows, kind, whole)
  local known = {}
  for _, row in ipairs(rows) do
    for _, name in ipairs((whole and row.parts or not whole and row.inner) and {} or row.types) do
      if name == kind then return row end
      known[#known + 1] = name
    end
  end
  table.sort(known)
  return nil, table.concat(known, ", ")
end

-- The stacks of a row in a config, whose fields get the row's defaults.
local function stacks_of(row, c)
  c.defaults, c.older = row.defaults or c.defaults, row.older or c.older
  local stacks = row.stacks
  if type(stacks) == "function" then stacks = stacks(c) end
  for _, of in ipairs(stacks) do of.biases = row.biases end
  return stacks
end

-- A list, or one name as a list of it.
function M.list(of) return type(of) == "table" and of or { of } end

-- The fields of a part.
function M.fields_of(part, c)
  for _, name in ipairs(part.within) do
    local object = c:object(name)
    if object then return object end
  end
  if not part.flat then c:fail(part.within[#part.within], "is missing") end
  return c
end

-- Adds a part to what a row of parts has.
local function add_part(rows, part, c, whole)
  local own = M.fields_of(part, c)
  local row, known, kind = part.row, nil, own ~= c and not part.row and own:word("model_type", part.of) or part.of
  if not row then row, known = M.find(rows, kind, true) end
  if not row and part.optional then
    own.absent = true
    return
  end
  local why = not row and unsupported.why(unsupported.transformers, kind)
  if why then own:fail("model_type", "is not supported: it has %s", why) end
  if not row then own:fail("model_type", "is not known; known are %s", known) end
  for _, of in ipairs(stacks_of(row, own)) do
    local made = M.stack(nil, of.maps, of.keys, of)
    made.fields, made.at = of.fields or own, {}
    for _, text in ipairs(M.list(part.before or "")) do
      for _, at in ipairs(M.list(of.at)) do table.insert(made.at, text .. at) end
    end
    whole.stacks[#whole.stacks + 1] = made
  end
  whole.harmless = ("%s %s"):format(whole.harmless, row.harmless or "")
  table.move(row.beside or {}, 1, #(row.beside or {}), #whole.beside + 1, whole.beside)
end

-- A row as a config has it: { stacks, harmless, beside, own, shared }, with the stacks of its parts.
function M.whole(rows, row, c)
  if not row.parts then
    return { stacks = stacks_of(row, c), harmless = row.harmless, beside = row.beside, own = row.own,
             shared = row.shared }
  end
  local whole = { stacks = {}, harmless = row.harmless or "", beside = {} }
  for _, part in ipairs(row.parts) do add_part(rows, part, c, whole) end
  return whole
end

return M
