-- Tiles and numbers in words, for the comment on top of a generated file and for `explain`.

local M = {}

-- 1234567 -> "1,234,567"
function M.number(n)
  local text = ("%.0f"):format(n)
  local grouped = text:reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (grouped:gsub("^,", ""))
end

-- "1 kernel", "2 kernels"
function M.counted(n, noun) return ("%d %s%s"):format(n, noun, n == 1 and "" or "s") end

-- "1 rows and 2 columns" -> "1 row and 2 columns": texts of generated code count in the plural.
function M.singular(text)
  text = text:gsub("%f[%w]1 queries%f[%A]", "1 query")
  return (text:gsub("%f[%w]1 (K ?%l+)s%f[%A]", "1 %1"):gsub("%f[%w]1 (%l+)s%f[%A]", "1 %1"))
end

-- Lines of at most so many characters, filled with a list of words.
function M.filled(list, most)
  local lines = {}
  for _, word in ipairs(list) do
    local last = lines[#lines]
    if last and #last + 1 + #word <= most then lines[#lines] = last .. " " .. word else lines[#lines + 1] = word end
  end
  return lines
end

M.WIDTH = 110 -- of a line in a terminal

-- A text behind what leads its first line; its other lines begin at `indent`, or below its beginning.
function M.hung(lead, text, indent)
  local list = {}
  for word in text:gmatch("%S+") do list[#list + 1] = word end
  local begin = (" "):rep(indent or #lead)
  return lead .. table.concat(M.filled(list, M.WIDTH - math.max(#lead, #begin)), "\n" .. begin)
end

-- A floating-point number in digits that make the same number again.
function M.exact(x)
  local text = ("%.15g"):format(x)
  return tonumber(text) == x and text or ("%.17g"):format(x)
end

-- Runs of tiles of a width.
function M.runs(runs, width)
  local words = {}
  for _, run in ipairs(runs) do
    words[#words + 1] = ("%d of %dx%s"):format(run.count, run.size, tostring(width))
  end
  return table.concat(words, " + ")
end

-- The tiles of a product with vectors over columns.
function M.column_tiles(product)
  local words = {}
  for _, panels in ipairs(product.panel_runs) do
    for _, runs in ipairs(product.runs) do
      for _, run in ipairs(runs) do
        local word = ("%dx%d"):format(run.size, panels.used)
        if not words[word] then words[#words + 1] = word end
        words[word] = true
      end
    end
  end
  return table.concat(words, ", ")
end

-- Chunks of a long sum.
function M.chain(chunks)
  return chunks.count == 1 and "k" .. chunks.last or ("k%dx%d"):format(chunks.count, chunks.size)
end

-- The tiles and chunks of such a product.
function M.product(product) return ("tiles %s, %s"):format(M.column_tiles(product), M.chain(product.chunks)) end

-- A value for a message: short, printable. A table is so called: Lua has nothing but its address.
function M.short(value)
  if type(value) == "table" then return "a table" end
  if type(value) == "userdata" then return "null" end
  if math.type(value) == "float" then
    if value ~= value then return "nan" end -- which some machines print as -nan
    return tostring(value)
  end
  local text = tostring(value):gsub("[^\32-\126]", "?")
  return #text <= 64 and text or text:sub(1, 61) .. "..."
end

-- The words of a text by their numbers, from 0 on, as an enum of C has them.
function M.numbered(text)
  local number, count = {}, 0
  for word in text:gmatch("%S+") do number[word], count = count, count + 1 end
  return number
end

return M
