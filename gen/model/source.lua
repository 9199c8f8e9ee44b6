-- Whether layers have the same weights.

local identities, identity_count = setmetatable({}, { __mode = "k" }), 0

local LONGEST = 1 << 16 -- list that is compared by its numbers

-- A value as a text: a tensor by its place in a file, a list by its numbers, another table by its fields. Functions and
-- long lists are told by their identity.
local function told_by(x)
  if type(x) == "table" and x.path and x.at then return ("%s %d %s"):format(x.path, x.at, x.type) end
  if type(x) == "table" and type(x[1]) == "number" and not x[LONGEST] then
    local numbers = {}
    for i, number in ipairs(x) do numbers[i] = ("%a"):format(number) end
    return table.concat(numbers, ",")
  end
  if type(x) ~= "table" and type(x) ~= "function" and type(x) ~= "userdata" then return tostring(x) end
  if type(x) == "table" and not x[LONGEST] then
    local fields = {}
    for field, value in pairs(x) do fields[#fields + 1] = ("%s %s"):format(field, told_by(value)) end
    return "{" .. table.concat(fields, " ") .. "}"
  end
  if not identities[x] then identities[x], identity_count = identity_count, identity_count + 1 end
  return "#" .. identities[x]
end

-- Whether a matrix is of the tables of rope.
local function is_table(matrix) return matrix:find "^rope_" ~= nil end

-- What the weights of a layer are, as a text: layers with the same one, of one kernel, have the same packed weights.
-- turns: what angles of rope are made of, or nil. tables: true, of the matrices those of tables alone; false, the
-- others; nil, all.
return function(layer, turns, tables)
  local words = { tostring(layer.in_out) }
  for matrix, part in pairs(layer.weights) do
    if tables == nil or is_table(matrix) == tables then
      words[#words + 1] = matrix
      for field, value in pairs(part) do
        if field ~= "name" then words[#words + 1] = field .. " " .. told_by(value) end
      end
    end
  end
  for _, turn in ipairs(turns or {}) do words[#words + 1] = ("%.17g"):format(turn) end
  if turns and turns.factor then words[#words + 1] = ("factor %.17g"):format(turns.factor) end
  return table.concat(words, " ")
end
