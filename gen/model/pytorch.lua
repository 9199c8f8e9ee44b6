-- A file of torch.save: a zip archive of data.pkl, which is a dictionary of tensors, and of their numbers, data/KEY.

local cursor = require "model.cursor"
local pickle = require "model.pickle"
local tensors = require "model.tensors"
local wording = require "base.wording"
local zip = require "model.zip"

-- Types by PyTorch's names, with their bytes.
local storages = {
  FloatStorage = { "F32", 4 }, DoubleStorage = { "F64", 8 }, HalfStorage = { "F16", 2 },
  BFloat16Storage = { "BF16", 2 },
  LongStorage = { "I64", 8 }, IntStorage = { "I32", 4 }, ShortStorage = { "I16", 2 }, CharStorage = { "I8", 1 },
  ByteStorage = { "U8", 1 }, BoolStorage = { "BOOL", 1 },
}

local ZIP, BEFORE = "PK\3\4", "^\x80.\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19" -- of versions before 1.6
local WRITE_ANEW = "import sys, torch; path = sys.argv[1]; " ..
  "torch.save(torch.load(path, \"cpu\", weights_only=True), path)"

local function is(value, kind) return type(value) == "table" and value.kind == kind end

local function counts(value, at, what)
  if not is(value, "tuple") then at:fail("%s is no tuple", what) end
  for i = 1, #value do
    if math.type(value[i]) ~= "integer" or value[i] < 0 then at:fail("%s has what is no count", what) end
  end
  return table.move(value, 1, #value, 1, {})
end

-- Whether numbers of this shape lie row by row.
local function is_contiguous(shape, strides)
  local step = 1
  for i = #shape, 1, -1 do
    if shape[i] == 0 then return true end
    if shape[i] > 1 and strides[i] ~= step then return false end
    step = step * shape[i]
  end
  return true
end

-- A view of a storage. One that lies otherwise than by rows has a type that nobody reads; that of a transposed matrix
-- has the matrix, which lies by rows, as its `transpose`.
local function rebuild(arguments, at)
  local storage, first = arguments[1], arguments[2]
  if not is(storage, "storage") then at:fail("a tensor has no storage") end
  if math.type(first) ~= "integer" or first < 0 then at:fail("a tensor's first number is no count") end
  local shape, strides = counts(arguments[3], at, "a shape"), counts(arguments[4], at, "a list of strides")
  if #shape ~= #strides then at:fail("%d strides of %d axes", #strides, #shape) end
  local tensor = { kind = "tensor", type = storage.type, shape = shape, path = at.path, name = storage.key,
                   at = storage.first + math.min(first, storage.count) * storage.size }
  local count, by_rows = tensors.count(tensor), is_contiguous(shape, strides)
  local turned = #shape == 2 and { shape[2], shape[1] }
  local by_columns = not by_rows and turned and is_contiguous(turned, { strides[2], strides[1] })
  if (by_rows or by_columns) and count > 0 and (first > storage.count or count > storage.count - first) then
    at:fail("%d numbers from number %d on of a storage of %d", count, first, storage.count)
  end
  if by_rows then return tensor end
  if by_columns then
    tensor.transpose = { type = tensor.type, shape = turned, path = tensor.path, name = tensor.name, at = tensor.at }
  end
  tensor.type = ("%s with strides %s (save x.contiguous())"):format(tensor.type, tensors.shape_text(strides))
  return tensor
end

local names = {
  ["collections OrderedDict"] = { call = function(arguments, at)
    if #arguments > 0 then at:fail("OrderedDict has arguments") end
    return pickle.dictionary()
  end },
  ["torch._utils _rebuild_tensor_v2"] = { call = rebuild },
  ["torch._utils _rebuild_parameter"] = { call = function(arguments, at)
    return is(arguments[1], "tensor") and arguments[1] or at:fail("a parameter is no tensor")
  end },
}
for name, row in pairs(storages) do
  names["torch " .. name] = { kind = "type of a storage", name = name, type = row[1], size = row[2] }
end

-- The entries of the archive by their names, without its folder; and data.pkl.
local function entries_of(file, path)
  local entries, folder = {}, nil
  local function wanted(name)
    local part = name:match "^[^/]+/(.*)$"
    return part and (part == "data.pkl" or part == "byteorder" or part:find "^data/") and name or nil
  end
  for _, place in ipairs(zip(file, path, { kind = "torch.save's", advice = "write it by torch.save",
                                           wanted = wanted })) do
    local name = place.tensor.name
    entries[name] = place
    local before = name:match "^([^/]+/)data%.pkl$"
    if before and folder then tensors.fail(place.tensor, "is there twice") end
    folder = before or folder
  end
  if not folder then error({ message = path .. ": is no torch.save's file: entry data.pkl is missing" }, 0) end
  return entries, folder
end

-- Of (tuple) to a storage, which the entry has that it names.
local function storage_of(entries, folder)
  return function(id, at)
    local kind, key, count = id[2], id[3], id[5]
    if id[1] ~= "storage" or not is(kind, "type of a storage") or type(key) ~= "string" or
        math.type(count) ~= "integer" then
      at:fail("is no storage that is known")
    end
    local entry = entries[folder .. "data/" .. key] or at:fail("storage %s is missing", wording.short(key))
    if count < 0 or count > entry.bytes // kind.size or count * kind.size ~= entry.bytes then
      at:fail("storage %s: %d numbers of %s do not take %d bytes", wording.short(key), count, kind.name, entry.bytes)
    end
    return { kind = "storage", key = key, type = kind.type, size = kind.size, count = count, first = entry.first }
  end
end

local function refuse_kinds(file, path)
  local head = cursor.new(file, path):bytes(math.min(16, file:size()), "head")
  if head:find(BEFORE) then
    error({ message = path .. ": is of PyTorch before 1.6; torch.save writes it anew",
            command = { "python3", "-c", WRITE_ANEW, path } }, 0)
  end
  if head:sub(1, 4) ~= ZIP then error({ message = path .. ": is no torch.save's file" }, 0) end
end

-- A tensor by the name in the dictionary: several may be of one view.
local function named(tensor, name, file)
  return { name = name, path = tensor.path, file = file, type = tensor.type, shape = tensor.shape, at = tensor.at }
end

-- file -> { name: tensor } of the dictionary that the file is.
return function(file, path)
  refuse_kinds(file, path)
  local entries, folder = entries_of(file, path)
  local order = entries[folder .. "byteorder"]
  if order and cursor.new(file, path, order.first, order.first + order.bytes):bytes(order.bytes, "byteorder")
      ~= "little" then
    tensors.fail(order.tensor, "is not little")
  end
  local data = entries[folder .. "data.pkl"]
  local at = cursor.new(file, path, data.first, data.first + data.bytes)
  local all, found = pickle.read(at, names, storage_of(entries, folder)), {}
  if not is(all, "dictionary") then at:fail("is no dictionary of tensors") end
  for _, name in ipairs(all.names) do
    local tensor = all.of[name]
    if type(name) == "string" and is(tensor, "tensor") then
      found[name] = named(tensor, name, file)
      found[name].transpose = tensor.transpose and named(tensor.transpose, name, file)
    end
  end
  return found
end
