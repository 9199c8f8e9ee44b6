-- The C of a model from ids, pixels or features of sound to rows, or to the scores of the next id, besides its kernels.

local cprint = require "tape.cprint"
local memory = require "schedule.memory"
local model_text = require "model.text"
local template = require "base.template"
local version = require "base.version"

local ALIGN = memory.ALIGN * memory.BYTES -- of rows in the workspace, and of caches

local function aligned(bytes) return (bytes + ALIGN - 1) // ALIGN * ALIGN end

-- The initializers of kernels, { { kernel, where its packed weights are, where its tables are }, one for each member },
-- and their headers. tables: whether layers have some.
local function kernel_rows(kernels, tables)
  local rows, includes = {}, {}
  for i, entry in ipairs(kernels) do
    local members = {}
    for k, packer in ipairs(entry.packers) do
      includes[#includes + 1] = template.file("include.h.in", { name = packer.cfg.name })
      members[k] = ("{ &%s_kernel, %d%s }"):format(packer.cfg.name, packer.at,
        tables and (", %d"):format(entry.tables and entry.tables[k].at or 0) or "")
    end
    rows[i] = "  { " .. table.concat(members, ",\n    ") .. " },"
  end
  return table.concat(rows, "\n"), table.concat(includes)
end

-- Those of layers: { kernel, number of the packed weights, number of the tables of rope }.
local function layer_rows(kernels, layers, tables)
  local number, rows = {}, {}
  for i, entry in ipairs(kernels) do number[entry] = i - 1 end
  for i, layer in ipairs(layers) do
    rows[i] = ("  { %d, %d%s },"):format(number[layer.kernel], layer.index,
      tables and (", %d"):format(layer.tables or 0) or "")
  end
  return table.concat(rows, "\n")
end

-- How tables are read, by their types. `of` is the type that a pointer to a row has, and `number` reads number i of the
-- row at the pointer %s. `template` has what that needs.
local READ = {
  f32 = { of = "float", number = "%s[i]" },
  bf16 = { of = "uint16_t", number = "wide_bf16(%s[i])", template = "whole_wide_bf16.c.in" },
  f16 = { of = "uint16_t", number = "wide_f16(%s[i])", template = "whole_wide_f16.c.in" },
  int8 = { of = "scaled_row", number = "%s->scale * %s->numbers[i]", template = "whole_scaled_row.c.in" },
}

-- Pointers to rows, in the order in which rows are added up.
local ROWS = { { table = "words", pointer = "word" }, { table = "types", pointer = "type" },
               { table = "places", pointer = "place" } }

-- The tables of texts, what reading them needs, and `sum`, number i of a row of the embeddings.
local function add_tables(values, embeddings)
  local type_of, known, needed, terms = {}, {}, {}, {}
  for _, one in ipairs(embeddings.list) do type_of[one.name] = one.type end
  for _, row in ipairs(ROWS) do
    local read = READ[type_of[row.table]]
    if read then
      local number = read.number:gsub("%%s", row.pointer)
      if row.table == "words" and embeddings.factor then number = number .. " * " .. cprint.float(embeddings.factor) end
      terms[#terms + 1], values[row.table .. "_of"] = number, read.of
      if read.template and not known[read.template] then
        needed[#needed + 1], known[read.template] = template.some(read.template, values), true
      end
    end
  end
  values.word_step = type_of.words == "int8" and "" or " * " .. values.row
  values.sum, values.table_types = table.concat(terms, " + "), table.concat(needed)
end

-- Places of the tables in the file. Tokens are left out: they have a list of their own.
local function places(embeddings)
  local list = {}
  for _, one in ipairs(embeddings.list) do
    if not one.token then list[#list + 1] = ("%s_AT = %d"):format(one.name:upper(), one.at) end
  end
  return table.concat(list, ",\n                    ")
end

-- The text of a template with the values of the model, where `with` is true; else nothing.
local function part(values, with, name) return with and template.some(name, values) or "" end

-- The vectors of a norm, as arguments.
local function norm_at(biased, before)
  return ("packed + %sGAINS_AT"):format(before) .. (biased and (", packed + %sBIASES_AT"):format(before) or "")
end

-- How the caller normalizes pixels, where the model says it.
local function add_processor(values, processor)
  if processor then
    for _, name in ipairs { "mean", "std" } do
      local list = {}
      for i, x in ipairs(processor[name]) do list[i] = cprint.float(x) end
      values["pixel_" .. name] = table.concat(list, ", ")
    end
    values.pixel_scale, values.pixel_sizes = cprint.double(processor.scale), processor.said
    values.processor_file = processor.file
  end
  values.processor = part(values, processor, "whole_processor.h.in")
end

-- What only encoders of images and of sound have.
local function add_inputs(values, embeddings)
  local made, tokens, gathered = embeddings.inputs, {}, 0
  for name, value in pairs(made.values) do values[name] = tostring(value) end
  add_processor(values, made.processor)
  for i, one in ipairs(embeddings.tokens) do tokens[i] = tostring(one.at) end
  for i, entry in ipairs(embeddings.products) do
    gathered = math.max(gathered, entry.gathered)
    values["product" .. i] = tostring(entry.number)
  end
  values.gathered_floats = tostring(aligned(memory.BYTES * gathered) // memory.BYTES)
  values.mean_of = made.first > 0 and ("from + %d * WIDTH, ROWS - %d"):format(made.first, made.first) or "from, ROWS"
  values.first_rows, values.tokens, values.token_list = tostring(made.first), tostring(#tokens),
    table.concat(tokens, ", ")
  local registers = made.registers
  values.registers, values.to = tostring(registers and registers.rows or 0), registers and "placed" or "to"
  values.placed_rows = part(values, registers, "whole_placed.c.in")
  values.register_rows = part(values, registers, "whole_registers.c.in")
  values.places_rows = registers and ("(ROWS - %d)"):format(registers.rows) or "ROWS"
  values.input = made.input
  values.token_rows = part(values, #tokens > 0, "whole_tokens.c.in")
  values.first_norm = part(values, made.norm, "whole_first_norm.c.in")
  values.product = template.some("whole_product.c.in", values)
end

-- The text of what the template `made` says, with all values.
local function add_input_texts(values, made)
  values.embed = template.some(("whole_%s.c.in"):format(made), values)
  values.arguments = template.some(("whole_%s_args.h.in"):format(made), values)
  values.run = template.some("whole_inputs.c.in", values)
end

-- The function of a norm of rows with so many columns; of: what its name ends with.
local function norm_text(values, norm, columns, of)
  local own = { norm_of = of, norm_columns = columns, norm_eps = ("%.17g"):format(norm.eps) }
  own.norm_count = of == "" and values.NAME .. "_WIDTH" or columns
  own.biases_param, own.biases_of, own.plus_biases = "", "", ""
  if norm.biased then
    own.biases_param, own.biases_of = ", const void *biases_at", ", *biases = biases_at"
    own.plus_biases = " + biases[i]"
  end
  return template.some(("whole_%s_norm.c.in"):format(norm.norm_kind), own)
end

-- The norms of rows. Tables that a product widens have a norm of their own width.
local function add_norms(values, embeddings)
  local projected, biased, list = embeddings.projected, embeddings.biased, {}
  local own = projected and projected.norm
  list[#list + 1] = embeddings.norm_kind and norm_text(values, embeddings, "WIDTH", "") or nil
  list[#list + 1] = own and norm_text(values, own, "EMBEDDED", "_embedded") or nil
  values.norm_row, values.first_norm_of = table.concat(list, "\n"), own and "_embedded" or ""
  values.norms = part(values, list[1], "whole_norms.c.in")
  if own then biased = own.biased end
  values.norm_at, values.first_norm_at = norm_at(embeddings.biased, ""), norm_at(biased, "FIRST_")
end

-- The product behind the tables of texts.
local function add_projection(values, embeddings)
  local projected = embeddings.projected
  values.row, values.parts_of = projected and "EMBEDDED" or "WIDTH", projected and "(WIDTH | EMBEDDED)" or "WIDTH"
  local head = embeddings.output_head
  local of_texts = projected or head and head.rows == "all" and not embeddings.inputs
  values.product_lengths = of_texts and ", .q_len = &args->length" or ""
  values.embedded, values.projection = tostring(projected and projected.width), tostring(projected and projected.number)
  values.projected = part(values, projected, "whole_projected.c.in")
  values.product = part(values, projected or head, "whole_product.c.in")
  values.embed_call = template.some(projected and "whole_projected_call.c.in" or "whole_embed_call.c.in", values)
end

-- What is taken of the rows before a head, where that is not the first one or all; what the header says of its size,
-- and of where the results go.
local TAKEN = { last = true, largest = true, ended = true, mean = true, first_and_mean = true }
local SIZES = { logits = "LABELS", embedding = "EMBEDDING" }
local SAID = { logits = "scores of the classes, in their order in config.json", embedding = "the projected vector" }

-- Templates of a head: its functions, the call of one, what the header says of results, and checks of arguments.
local PARTS = { "text", "call", "field", "size", "check" }
local KINDS = {
  head = { text = "whole_head.c.in", call = "whole_head_call.c.in", field = "whole_head_field.h.in",
           size = "whole_head_size.h.in" },
  probe = { text = "whole_probe.c.in", call = "whole_probe_call.c.in", field = "whole_head_field.h.in",
            size = "whole_head_size.h.in" },
  asked = { text = "whole_asked.c.in", call = "whole_head_call.c.in", field = "whole_asked_field.h.in",
            check = "whole_asked_check.c.in" },
}

local function add_head(values, embeddings)
  local head, kind = embeddings.output_head, {}
  if head then
    kind = KINDS[head.probe and "probe" or head.rows == "asked" and "asked" or "head"]
    values.head, values.head_number, values.head_steps = head.name, tostring(head.number), tostring(head.steps)
    values.head_id = tostring(head.id)
    values.head_rows = part(values, TAKEN[head.rows], ("whole_head_%s.c.in"):format(head.rows))
    values.head_take = kind == KINDS.asked and "asked" or head.name
    values.head_is, values.head_count = SIZES[head.name], tostring(head.count)
    values.head_said = head.said and model_text.plain(head.said) or SAID[head.name]
    local count = embeddings.inputs and values.NAME .. "_ROWS" or "length"
    values.head_each = head.rows == "all" and ("[%s]"):format(count) or ""
  end
  for _, name in ipairs(PARTS) do values["head_" .. name] = part(values, kind[name], kind[name]) end
end

-- What only decoders have, or only encoders.
local function add_parts(values, embeddings, tables)
  local decodes = embeddings.decodes
  add_projection(values, embeddings)
  add_norms(values, embeddings)
  if not embeddings.inputs then add_tables(values, embeddings) end
  values.types_at = part(values, embeddings.types > 0, "whole_types.c.in")
  values.type_of = part(values, embeddings.types > 0, "whole_type.c.in")
  values.norm_rows = embeddings.inputs and "ROWS" or "args->length"
  values.norm = part(values, embeddings.first, "whole_norm.c.in")
  values.last_norm = part(values, embeddings.last, "whole_last_norm.c.in")
  values.tables_field, values.tables_doc = tables and ", tables" or "", tables and " and tables of rope" or ""
  values.tables_args = part(values, tables, "whole_tables.c.in")
  values.bias_args = part(values, embeddings.has_bias, "whole_bias.c.in")
  values.place = decodes and "args->past + r" or ("r + %d"):format(embeddings.first_place)
  values.places_at = part(values, embeddings.has_places, "whole_places.c.in")
  values.place_of = part(values, embeddings.has_places, "whole_place.c.in")
  local scores = embeddings.scores
  if scores then
    values.head_kernel, values.head_ids, values.head_parts = tostring(scores.number), tostring(scores.ids),
      tostring(scores.parts)
  end
  values.logits = part(values, scores, "whole_logits.c.in")
  values.logits_call = part(values, scores, "whole_logits_call.c.in")
  values.logits_doc = part(values, scores, "whole_logits.h.in")
  if not decodes then
    values.lengths = embeddings.inputs and "" or ", .q_len = &args->length, .kv_len = &args->length"
    values.mean = template.some("whole_mean.c.in", values)
    values.run_layers = template.some("whole_layers.c.in", values)
    values.mean_of = "from, args->length"
  end
  if embeddings.inputs then add_inputs(values, embeddings) end
  add_head(values, embeddings)
  if embeddings.inputs then return add_input_texts(values, embeddings.inputs.template) end
  values.arguments = template.some(decodes and "whole_decode_args.h.in" or "whole_args.h.in", values)
  values.run = template.some(decodes and "whole_decode.c.in" or "whole_encode.c.in", values)
end

-- The bytes of what kernels share, and of the caches of all layers.
local function sizes_of(kernels, layers)
  local rows, workspace, cache = 0, 0, 0
  for _, entry in ipairs(kernels) do
    workspace = math.max(workspace, aligned(memory.BYTES * (entry.gathered or 0)) + entry.workspace_bytes)
  end
  for _, layer in ipairs(layers) do
    rows, cache = math.max(rows, layer.kernel.cfg.seq), cache + aligned(layer.kernel.cache_bytes)
  end
  return rows, workspace, cache
end

-- name: prefix of all names; from: { path, type }; kernels, layers: as gen/model/text.lua has them, with the places
-- `at` of packers in the file; embeddings, layout: of gen/command/whole.lua.
return function(name, from, kernels, layers, embeddings, layout)
  local rows, workspace, cache = sizes_of(kernels, layers)
  local widest = math.max(embeddings.width, embeddings.projected and embeddings.projected.width or 0)
  local head = embeddings.output_head
  local between = head and (head.rows == "all" and rows or 1) * head.between or 0
  local row_bytes = aligned(memory.BYTES * math.max(rows * widest, between))
  local tables = false -- whether some layers have tables of rope
  for _, entry in ipairs(kernels) do tables = tables or entry.tables ~= nil end
  local initializers, includes = kernel_rows(kernels, tables)
  local values = {
    name = name, NAME = name:upper(), version = version, what = model_text.WHOLE,
    from = model_text.plain(("%s (%s)"):format(from.path, from.type)),
    includes = includes, members = tostring(#kernels[1].packers), kernels = tostring(#kernels),
    kernel_rows = initializers, layer_rows = layer_rows(kernels, layers, tables), tables = places(embeddings),
    fingerprint = layout.fingerprint, blob_bytes = ("%d"):format(layout.bytes),
    row_floats = tostring(row_bytes // memory.BYTES),
    rows = tostring(rows),
    width = tostring(embeddings.width), vocabulary = tostring(embeddings.vocabulary or 0),
    types = tostring(embeddings.types), layers = tostring(#layers),
    padding = tostring(embeddings.padding or embeddings.first_place - 1),
    places = tostring(embeddings.places), packed_bytes = ("%d"):format(layout.file_bytes),
    workspace_bytes = ("%d"):format(2 * row_bytes + workspace), cache_bytes = ("%d"):format(cache) }
  add_parts(values, embeddings, tables)
  local also = model_text.mark(name, model_text.LAYERS)
  return {
    { name = name .. ".h", also = also, text = template.some("whole.h.in", values) },
    { name = name .. ".c", also = also, text = template.some("whole.c.in", values) },
  }
end
