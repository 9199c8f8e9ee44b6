-- Unit tests of packing: what mhagen_pack makes of a list of fills of quants or of rounded numbers, bit by bit.

local host = require "host"

local function wq_of(rows, columns) return { name = "wq", rows = rows, columns = columns, null = "zeros" } end

local function float32(x) return (string.unpack("<f", string.pack("<f", x))) end

-- The nearest integer, ties to even, by the text of a number.
local function nearest(x) return math.tointeger(tonumber(("%.0f"):format(x))) end

-- The bytes of memory of the host.
local function bytes_of(memory)
  local dir = host.temp_dir()
  local stream = assert(host.stream(dir, "memory"))
  assert(stream:write(memory))
  host.write_files(dir, { { name = "memory", stream = stream } })
  local text = host.read_file(dir .. "/memory")
  host.remove_dir(dir)
  return text
end

-- Memory of the host with a matrix, element (row, column) of which is of(row, column).
local function memory_of(rows, columns, of)
  local dir, numbers = host.temp_dir(), {}
  for i = 0, rows * columns - 1 do numbers[i + 1] = string.pack("<f", of(i // columns, i % columns)) end
  host.write_files(dir, { { name = "matrix", text = table.concat(numbers) } })
  local file, memory = assert(host.open_file(dir .. "/matrix")), host.floats(rows * columns)
  assert(memory:read({ type = "F32", at = 0, rows = rows, columns = columns }, file))
  file:close()
  host.remove_dir(dir)
  return memory
end

-- The scale of int4 for numbers whose largest one over -8 is `own`: docs/quantized.md has the rule.
local function searched(numbers, own)
  local best, scale = 0.0, 1.0
  for i = 28, 39 do
    local products, squares = 0.0, 0.0
    for _, x in ipairs(numbers) do
      local number = math.floor(math.max(-8.0, math.min(8.0, x / own)) * 1024 + 0.5) / 1024
      local integer = math.max(-8, math.min(7, math.floor(number * i / 32 + 0.5)))
      products, squares = products + integer * number, squares + integer * integer
    end
    if squares > 0 and products * products / squares > best then
      best, scale = products * products / squares, products / squares
    end
  end
  return float32(scale * own)
end

-- The scale of `numbers` that share one.
local function scale_of(quant, numbers)
  local own = 0.0
  for _, x in ipairs(numbers) do
    local scale = float32(x / (quant.bits == 8 and -127 or -8))
    if own == own and not (math.abs(scale) <= math.abs(own)) then own = scale end
  end
  if quant.bits == 8 then return math.abs(own) end
  return own ~= 0 and math.abs(own) < math.huge and searched(numbers, own) or own
end

-- The words, scales and sums of a panel of `steps` by `width` with the numbers of(step, column), as bytes.
local function panel(quant, steps, width, scale, of)
  local in_word, most = 32 // quant.bits, (1 << quant.bits - 1) - 1
  local least, group = quant.bits == 8 and -most or -most - 1, quant.group or steps
  local bytes, scales, sums, quants = {}, {}, {}, {}
  local function row(list, format, write)
    for c = 0, width - 1 do list[#list + 1] = string.pack(format, write(c)) end
  end
  for first = 0, steps - 1, group do
    local last, beside = math.min(first + group, steps) - 1, {}
    row(beside, "<f", function(c)
      local numbers = {}
      for k = first, last do numbers[#numbers + 1] = of(k, c) end
      local own = scale_of(quant, numbers)
      local finite = own ~= 0 and math.abs(own) < math.huge
      for k = first, last do
        quants[k * width + c] = finite and math.max(least, math.min(most, nearest(of(k, c) / own))) or 0
      end
      return own * scale
    end)
    for from = first, last, in_word do
      row(bytes, "<I4", function(c)
        local word = 0
        for i = 0, math.min(in_word - 1, last - from) do
          local bit = quant.bytes and i % 4 * 8 + i // 4 * 4 or i * quant.bits
          word = word | (quants[(from + i) * width + c] & (1 << quant.bits) - 1) << bit
        end
        return word
      end)
    end
    table.move(beside, 1, width, #(quant.beside and bytes or scales) + 1, quant.beside and bytes or scales)
  end
  row(sums, "<i4", function(c)
    local sum = 0
    for k = 0, steps - 1 do sum = sum + quants[k * width + c] end
    return -128 * sum
  end)
  return table.concat(bytes) .. table.concat(scales) .. (quant.sums and table.concat(sums) or "")
end

-- Two panels of three of six columns and one of padding, with a row of weights that is no part of them. beside: how the
-- quants of other weights are, where these are those of values.
local function quants(check, quant, steps, in_out, beside)
  local name = ("%d bits, group %s, %d steps, in_out %s, beside %s bits"):format(quant.bits, quant.group, steps, in_out,
    beside and beside.bits)
  local special = { [0] = 127.0, 63.5, -64.5, 0.5, 1.5, -2.5, -127.0 } -- quants and ties, where the scale is 1
  local function weight(row, column)
    if column == 0 then return special[row] or 0.0 end
    if column == 1 then return 0.0 end
    if column == 2 then return row == 3 and math.huge or 1.0 end
    if column == 3 then return row == 1 and 0 / 0 or 2.0 end
    if column == 4 then return (row * 37 % 21 - 10) * 2.0 ^ -149 end -- a scale with few digits, or none
    return math.sin(row * 7 + column * 3) * 3.0
  end
  local function given(row, column) return float32(weight(row - 1, column)) end
  local wq = in_out and memory_of(steps + 1, 6, given)
    or memory_of(6, steps + 1, function(row, column) return given(column, row) end)
  local in_word, groups = 32 // quant.bits, -(-steps // (quant.group or steps))
  local size = (-(-steps // in_word) + groups + (quant.sums and 1 or 0)) * 4
  local fill = { to = 8, steps = steps, used = 3, width = 4, scale = 0.75,
                 terms = { { a = "wq", row = 1, column = 0 } }, rounds = { { count = 2, to = size, column = 3 } } }
  local packed = host.pack({ bytes = 4 * (8 + 2 * size), matrices = { wq_of(steps + 1, 6) },
                             lists = { fills = {}, rounded = {}, pairs = {}, quants = beside and {} or { fill },
                                       value_quants = beside and { fill } or {} },
                             quant = beside or quant }, { wq = wq, in_out = in_out })
  local want = { ("\0"):rep(32) }
  for i = 0, 1 do
    want[#want + 1] = panel(quant, steps, 4, 0.75, function(k, c) return c < 3 and given(k + 1, i * 3 + c) or 0.0 end)
  end
  local function plain(text) -- any NaN as one
    return (text:gsub("....", function(word)
      local x = string.unpack("<f", word)
      return x ~= x and string.unpack("<I4", word) & 0x3FFFFF == 0 and "NaN." or nil
    end))
  end
  check(plain(bytes_of(packed)) == plain(table.concat(want)), "quants: " .. name)
end

-- Numbers with the nearest of a type, whose significands have so many bits: ties, the least, the largest, no numbers.
local function special_of(bits, least, largest)
  local unit = 2.0 ^ (1 - bits)
  return {
    { 0.0, 0.0 }, { -0.0, 0.0 }, { 1.0, 1.0 }, { -3.0, -3.0 },
    { 1.0 + unit / 2, 1.0 }, { 1.0 + 1.5 * unit, 1.0 + 2 * unit }, -- ties, to even
    { 1.0 + unit / 2 + 2.0 ^ -23, 1.0 + unit }, { -(1.0 + unit / 2 + 2.0 ^ -23), -(1.0 + unit) },
    { 2.0 - unit / 2, 2.0 }, -- a carry to the exponent
    { least, least }, { least / 2, 0.0 }, { -1.5 * least, -2 * least }, { 2.5 * least, 2 * least },
    { 1023.25 * least, bits == 11 and 1023 * least or 1024 * least },
    { largest, largest }, { largest * (1 + unit / 8), largest }, { -largest * (1 + unit / 2), -math.huge },
    { math.huge, math.huge }, { -math.huge, -math.huge },
  }
end

local function rounded(check, name, f16, numbers)
  local wq = memory_of(1, #numbers, function(_, column) return numbers[column + 1][1] end)
  local fill = { to = 0, steps = 1, used = #numbers, width = #numbers, scale = 1.0,
                 terms = { { a = "wq", row = 0, column = 0 } }, rounds = {} }
  local bytes = bytes_of(host.pack({ bytes = 4 * #numbers, matrices = { wq_of(1, #numbers) }, f16 = f16,
                                     lists = { fills = {}, rounded = { fill }, pairs = {}, quants = {},
                                               value_quants = {} } }, { wq = wq, in_out = true }))
  for i, number in ipairs(numbers) do
    local got, want = bytes:sub(4 * i - 3, 4 * i), string.pack("<f", number[2])
    local x = string.unpack("<f", got)
    check(got == want or number[2] ~= number[2] and x ~= x, ("%s: %a is packed as %a"):format(name, number[1], x))
  end
end

return function(check)
  local nan = { 0 / 0, 0 / 0 }
  rounded(check, "bf16", false, { nan, table.unpack(special_of(8, 2.0 ^ -133, 0x1.FEp127)) })
  rounded(check, "f16", true, { nan, table.unpack(special_of(11, 2.0 ^ -24, 65504.0)) })
  for _, in_out in ipairs { true, false } do
    quants(check, { bits = 8 }, 4, in_out)
    quants(check, { bits = 8, sums = true }, 11, in_out)
    quants(check, { bits = 8, group = 8 }, 19, in_out)
    quants(check, { bits = 8 }, 19, in_out, { bits = 4, group = 8 })
    quants(check, { bits = 4, group = 8 }, 8, in_out)
    quants(check, { bits = 4, group = 16 }, 37, in_out)
    quants(check, { bits = 4, group = 16, beside = true }, 37, in_out)
    quants(check, { bits = 4, group = 8, beside = true, bytes = true }, 28, in_out)
    quants(check, { bits = 4, sums = true }, 9, in_out)
  end
end
