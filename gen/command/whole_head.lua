-- The head of a whole encoder, behind its last rows: kernels without attention, one for each of its linear maps.
--
--   begin(model)                       keeps what the head is found by, before a part of the model is taken
--   add(model, kernels, first, given)  adds the kernels, where the files have the head of the model's class. first: a
--                                      layer of the model
--
-- The second one gives model.embeddings `output_head`, with these fields.
--
--   name, rows, id, said   as in gen/model/whole_heads.lua
--   probe                  whether it pools by attention
--
--   number    of its first kernel
--   steps     how many kernels there are
--
--   between   the most columns between two steps
--   count     the columns of the result

local family_rows = require "model.family_rows"
local host = require "host"
local heads = require "model.whole_heads"
local layers = require "model.layers"
local options = require "options.init"
local weights = require "command.weights"
local whole_probe = require "command.whole_probe"
local whole_product = require "command.whole_product"
local whole_scores = require "command.whole_scores"

local M = {}

function M.begin(model)
  local list = model.fields:list "architectures"
  model.class, model.outside = list and list[1], model.tensors
end

-- The whole name of a tensor of the head: nothing is in front of it, or what the model's have in front of theirs.
local function named(model, prefix, name)
  for _, full in ipairs { name, prefix .. name } do
    local tensor = model.tensors[full] or model.outside[full]
    if tensor then
      model.tensors[full], model.read[full] = tensor, true
      if model.apart then model.apart[full:match "^[^.]*"] = nil end
      return full
    end
  end
  return prefix .. name
end

-- The mean of several maps, each of a row of its own: a map of these rows beside each other.
local function mean_of(parts)
  local rows, width, made, lists = parts[1].features, parts[1].width or 1, {}, {}
  for i, part in ipairs(parts) do
    local memory = weights.floats(part)
    lists[i] = memory:floats(0, rows * width)
    memory:free()
  end
  for r = 0, rows - 1 do
    for _, list in ipairs(lists) do
      for k = 1, width do made[#made + 1] = list[r * width + k] / #lists end
    end
  end
  return { numbers = made, features = rows, width = parts[1].width and width * #lists }
end

-- The biases are of the result, so their mean has as many.
local function mean_of_biases(parts)
  local all, made = mean_of(parts).numbers, {}
  for r = 1, parts[1].features do
    made[r] = 0.0
    for i = 1, #parts do made[r] = made[r] + all[(r - 1) * #parts + i] end
  end
  return { numbers = made, features = parts[1].features }
end

-- Adds the kernel of a step, of so many rows with `depth` numbers, to `width` numbers or to those that the file has;
-- returns that width and the kernel's number.
local function add_step(model, kernels, prefix, given, step, size)
  local modules = family_rows.list(step[1])
  local function part(module, rows, width)
    return layers.part(model, named(model, prefix, module), rows, width, host.type_size)
  end
  local columns = size.width or model.tensors[named(model, prefix, modules[1] .. ".weight")].shape[1]
  local matrices, biases = {}, {}
  for i, module in ipairs(modules) do
    matrices[i] = part(module .. ".weight", columns, size.depth // #modules)
    biases[i] = step.bias ~= false and part(module .. ".bias", columns) or nil
  end
  local several, norm = #modules > 1, step.norm
  local all = { wo = several and mean_of(matrices) or matrices[1], bo = biases[1] and several and mean_of_biases(biases)
                or biases[1] }
  if norm then
    all.norm1 = part(norm[1] .. ".weight", columns)
    all.norm1_bias = norm.biased and part(norm[1] .. ".bias", columns) or nil
  end
  size.width, size.act, size.norm = columns, step.act, norm and { place = "post", kind = "layer", eps = size.eps }
  local entry = whole_product.add(kernels, given, size, { { name = modules[1], weights = all } })
  return columns, entry.number
end

-- The name of the first of some tensors that a file has.
local function one_of(model, prefix, names)
  for _, name in ipairs(names) do
    local full = named(model, prefix, name)
    if model.tensors[full] then return full end
  end
  return prefix .. names[1]
end

-- Adds what makes scores of all ids of a row.
local function add_words(model, kernels, first, given, words)
  local prefix, embeddings = first.prefix, model.embeddings
  local count, width = embeddings.vocabulary, embeddings.width
  local names = { words.tied and embeddings.words or named(model, prefix, words[1] .. ".weight"),
                  words.biases and one_of(model, prefix, words.biases) }
  embeddings.scores = whole_scores.add(kernels, given, { count = count, width = width,
    weights = whole_scores.of_tensors(model, names, count, width) })
end

local function add_probe(model, kernels, first, given, head)
  if not model.tensors[named(model, first.prefix, head.probe.query)] then return end
  local function part(name, rows, width, more)
    return layers.part(model, named(model, first.prefix, name), rows, width, host.type_size, more)
  end
  local entry, query = whole_probe.add(kernels, given, first.cfg, head.probe, part)
  local list = model.embeddings.list
  list[#list + 1] = { name = "probe", part = query }
  model.embeddings.output_head = { name = head.name, probe = true, number = entry.number, between = 0,
                                   count = first.cfg.y_width }
end

-- How many of the model's rows a row of the head is.
local WIDE = { first_two = 2, first_and_mean = 2 }

function M.add(model, kernels, first, given)
  local head = heads.of(model.type, model.class, first.fields)
  if not head or model.without_head then return end
  if head.probe then return add_probe(model, kernels, first, given, head) end
  local function weight_of(step) return named(model, first.prefix, family_rows.list(step[1])[1] .. ".weight") end
  local name = weight_of(head.steps[1])
  if not model.tensors[name] then return end
  local last = weight_of(head.steps[#head.steps])
  if model.tensors[last] and model.tensors[last].shape[1] > options.list.y_width.max then
    model.read[name], model.read[last] = nil, nil -- more classes than a kernel has columns
    return
  end
  local cfg = first.cfg
  local of_rows = head.rows == "all"
  local depth, number = cfg.y_width * (WIDE[head.rows] or 1), nil
  for i, step in ipairs(head.steps) do
    local entry
    depth, entry = add_step(model, kernels, first.prefix, given, step, {
      rows = of_rows and kernels[1].cfg.seq or 1, depth = depth, eps = cfg.layer_eps, lengths = of_rows or nil,
      width = (i < #head.steps or head.words) and cfg.y_width or nil })
    number = number or entry
  end
  if head.words then add_words(model, kernels, first, given, head.words) end
  model.embeddings.output_head = { name = head.name, rows = head.rows, id = head.id, number = number, said = head.said,
                                   steps = #head.steps, between = cfg.y_width, count = depth }
end

return M
