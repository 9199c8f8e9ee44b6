-- Quantizes rows to integers with a scale. The scale of a row is its largest |x| over 127. The integers are the nearest
-- to x (127 / largest), ties to even, with four or two in a word. NaN or Inf in a row makes its scale NaN, and so all
-- products of the row. A largest |x| below 2^-100 counts as 2^-100, because 127 over it might be infinite.

local layouts = require "graph.layout"
local tiles = require "schedule.tiles"
local transpose = require "emit.transpose"
local ways = require "way.init"

local M = {}

local LEAST = 2.0 ^ -100 -- the least value taken as the largest |x|

-- The scales for the largest |x| in each lane, and the factors that quantize.
local function scales(t, w, name, largest)
  local steps = t:op("set", w, "steps" .. name, 127.0)
  local size = t:op("max", w, "size" .. name, t:op("set", w, "least" .. name, LEAST), largest)
  local none = t:op("sub", w, "none" .. name, largest, largest) -- 0 if it is finite, else NaN
  return t:op("add", w, "scale" .. name, t:op("div", w, "step" .. name, size, steps), none),
    t:op("div", w, "inverse" .. name, steps, size)
end

-- The scales of a row of so many words. With groups along K, each group has a scale, and perhaps an initial value of
-- sums.
function M.scales_of_row(scheme, words)
  local group = tiles.row_group_steps(scheme)
  return group and scheme.scales_of_group * tiles.ceil_div(words, group) or 1
end

-- Records build(i, numbers) for each group of a row that has a scale of its own, or for the whole row.
local function each_group(K, scheme, cols, build)
  local group = scheme.row_group
  if not group then return build(0, cols) end
  local function one(i, numbers) K.t:scope(function() build(i, numbers) end) end
  K:each("group", cols // group, function(i) one(i, group) end)
  if cols % group > 0 then one(cols // group, cols % group) end
end

-- The pointers of x, words and scales for group i. steps: the distance to the next number, word and scale of a group.
local function place_of(scheme, p, i, steps)
  if not scheme.row_group then return p end
  local scales = p.scales:at(i * (scheme.scales_of_group * steps.scales))
  return { x = p.x:at(i * (scheme.row_group * steps.x)),
           words = p.words:at(i * (tiles.row_group_steps(scheme) * steps.words)), scales = scales,
           sums = scheme.less and scales:at(steps.scales) or nil }
end

-- Weights may be multiplied as numbers without a sign, which are 8 or 128 more. Sums of products then start at so many
-- times the sum of the integers of A, subtracted from zero. load(name, word) loads a word of each lane.
local function sums_of(K, scheme, w, cols, load)
  local t = K.t
  local sums = t:start("zero_words", w, "sums")
  K:each("word", tiles.words(scheme, cols), function(k)
    t:scope(function() t:update(sums, scheme.less, sums, load("bytes", k)) end)
  end)
  return t:op("as_f", w, "bits", sums)
end

-- Words in the form in which the product's instruction takes its first operand.
local function as_read(K, scheme, w, name, value)
  return scheme.unsigned and K.t:op("unsigned_bytes", w, "flipped" .. name, value, 0) or value
end

-- Writes the initial values of sums for so many rows, if sums need them.
local function write_sums(K, q, rows, numbers)
  local t, w = K.t, K.plan.isa.full
  K:each("row", q.sums and rows or 0, function(row)
    t:scope(function()
      t:write(w, q.sums:at(row), sums_of(K, q.to.scheme, w, numbers, function(name, word)
        return t:op("dup_word", w, name, q.words:at(row * q.to.row + word))
      end), 1)
    end)
  end)
end

-- Quantizes `numbers` numbers of each row, for at most as many rows as a vector has lanes. q: x, words, scales and
-- sums; cols, the numbers of a row of x; to, the tensor of the words. The place of the scales holds the factors until
-- the words are made.
local function block(K, q, rows, numbers)
  local t, isa, scheme = K.t, K.plan.isa, q.to.scheme
  local group, interleave = scheme.group, ways.interleave(scheme)
  local w, lanes, list = isa.full, isa.lanes, {}
  local function read(name, at, used)
    if used <= 0 then return t:op("zero", w, name) end
    return t:read("load", w, name, at, math.min(used, lanes))
  end
  for r = 0, lanes - 1 do list[r] = t:start("zero", w, "largest_r" .. r) end
  K:vectors("i", numbers, function(at, used)
    t:scope(function()
      for r = 0, rows - 1 do
        t:update(list[r], "larger_size", read("value_r" .. r, q.x:at(r * q.cols + at), used), list[r])
      end
    end)
  end)
  local scale, inverse = scales(t, w, "", transpose.sums(t, list, "larger_size", "largest"))
  t:write(w, q.scales, inverse, rows)
  local function together(first, count) -- rows whose words are interleaved
    t:scope(function()
      local by = {}
      for n = 0, count - 1 do
        by[n] = t:op("dup", w, "inverse_row" .. (n > 0 and n or ""), q.scales:at(first * interleave + n))
      end
      local function integers(n, word, used)
        local values, row = {}, n > 0 and "_row" .. n or ""
        for i = 0, group - 1 do
          local at = q.x:at((first * interleave + n) * q.cols + word * group + i * lanes)
          local value = read("value_" .. i .. row, at, used - i * lanes)
          values[i + 1] = t:op("mul", w, "scaled_" .. i .. row, value, by[n])
        end
        return as_read(K, scheme, w, row, t:op(scheme.words, w, "integers" .. row, table.unpack(values)))
      end
      local function words(word, used)
        t:scope(function()
          local made, to = integers(0, word, used), q.words:at(first * (interleave * q.to.row) + layouts.word_at(q.to,
            word))
          local filled = tiles.words(scheme, used)
          if scheme.row_group and filled < lanes then -- the words of the next group follow
            return t:write(w, to, t:op("as_f", w, "bits", made), filled)
          end
          if interleave == 1 then return t:op("store_words", w, nil, to, made) end
          local other = count > 1 and t:op("as_f", w, "other", integers(1, word, used)) or t:op("zero", w, "other")
          local one = t:op("as_f", w, "one", made)
          t:op("store", w, nil, to, t:op("trn_lo", w, "low", one, other, 2))
          t:op("store", w, nil, to:at(lanes), t:op("trn_hi", w, "high", one, other, 2))
        end)
      end
      local whole, rest = numbers // (group * lanes), numbers % (group * lanes)
      K:each("i", whole, function(i) words(i * lanes, group * lanes) end)
      if rest > 0 then words(whole * lanes, rest) end
    end)
  end
  K:each("row", rows // interleave, function(i) together(i, interleave) end)
  if rows % interleave > 0 then together(rows // interleave, rows % interleave) end
  t:write(w, q.scales, scale, rows)
  write_sums(K, q, rows, numbers)
end

-- x[rows][cols] -> words[rows], as the tensor `to` lies, and scales[rows], or with groups scales[groups][all]. of_type:
-- a suffix of names, where other rows have another type.
function M.rows(K, x)
  local lanes, scheme = K.plan.isa.lanes, x.to.scheme
  -- The stride between the scales of two groups is the tensor's number of rows, so names include it.
  local function label(what, rows)
    if scheme.row_group and x.all ~= rows then what = ("%s_of_%d"):format(what, x.all) end
    return layouts.label(what, x.to, rows, x.cols) .. (x.of_type or "")
  end
  local function blocks(p, first, rows)
    local params = { { "x", "in", p.x:at(first * x.cols) }, { "words", "out", p.words:at(first * x.to.row) },
                     { "scales", "out", p.scales:at(first) } }
    K:part(label("quantize_rows", rows), ("%d rows of %d numbers in int8."):format(rows, x.cols),
      params, function(q)
      each_group(K, scheme, x.cols, function(i, numbers)
        local at = place_of(scheme, q, i, { x = 1, words = 1, scales = x.all })
        block(K, { x = at.x, words = at.words, scales = at.scales, sums = at.sums, cols = x.cols, to = x.to }, rows,
          numbers)
      end)
    end)
  end
  K:part(label("quantize", x.rows), ("%d rows of %d numbers in int8."):format(x.rows, x.cols),
    { { "x", "in", x.x }, { "words", "out", x.words }, { "scales", "out", x.scales } }, function(p)
      K:each("block", x.rows // lanes, function(i) blocks(p, i * lanes, lanes) end)
      if x.rows % lanes > 0 then blocks(p, x.rows - x.rows % lanes, x.rows % lanes) end
    end)
end

-- Loads from vector c of a group, in the function that quantizes it; own = { w, name, group, lane, p, x }.
local function read(K, own, word, row, i)
  local at = own.p.x:at((row * 4 + i) * own.group.width + own.lane)
  return K.t:op("load", own.w, ("%s%d%s"):format(word, i, own.name), at)
end

-- The largest magnitude of each lane.
local function largest(K, own)
  local t, w, name, list = K.t, own.w, own.name, {}
  for i = 0, 3 do list[i] = t:start("zero", w, ("largest%d%s"):format(i, name)) end
  local function look(row, rows)
    t:scope(function()
      for i = 0, rows - 1 do t:update(list[i], "larger_size", read(K, own, "value", row, i), list[i]) end
    end)
  end
  K:each("word", own.x.rows // 4, function(row) look(row, 4) end)
  if own.x.rows % 4 > 0 then look(own.x.rows // 4, own.x.rows % 4) end
  local low = t:op("larger_size", w, "low" .. name, list[0], list[1])
  local high = t:op("larger_size", w, "high" .. name, list[2], list[3])
  return t:op("larger_size", w, "most" .. name, low, high)
end

-- A word of four rows, or one of its two parts on ISAs with words of two; of: a suffix for the names of its values.
local function word_of(K, own, row, rows, of, part)
  local t, w, scheme, name, values = K.t, own.w, own.scheme, own.name, {}
  for i = part or 0, 3, 4 // scheme.group do
    local number = ("%s%d%s"):format(of, i, name)
    local value = i < rows and read(K, own, "value" .. of, row, i) or t:op("zero", w, "none" .. number)
    values[#values + 1] = t:op("mul", w, "scaled" .. number, value, own.inverse)
  end
  local integers = ("integers%s%s%s"):format(part or "", of, name)
  return as_read(K, scheme, w, of .. name, t:op(scheme.lane_words, w, integers, table.unpack(values)))
end

-- Stores words one row below the other.
local function store_words(K, own)
  local parts = 4 // own.scheme.group -- words of four rows
  local function words(row, rows)
    K.t:scope(function()
      for part = 0, parts - 1 do
        K.t:op("store_words", own.w, nil, own.p.words:at((row * parts + part) * own.group.width + own.lane),
          word_of(K, own, row, rows, "", parts > 1 and part))
      end
    end)
  end
  K:each("word", own.x.rows // 4, function(row) words(row, 4) end)
  if own.x.rows % 4 > 0 then words(own.x.rows // 4, own.x.rows % 4) end
  for word = tiles.ceil_div(own.x.rows, 4) * parts, tiles.words(own.scheme, own.x.rows) - 1 do
    local none = K.t:op("zero_words", own.w, ("none%d%s"):format(word, own.name))
    K.t:op("store_words", own.w, nil, own.p.words:at(word * own.group.width + own.lane), none)
  end
end

-- Stores two words of a lane side by side.
local function store_pairs(K, own)
  local t, w = K.t, own.w
  local function two(row, rows)
    t:scope(function()
      local first = t:op("as_f", w, "first" .. own.name, word_of(K, own, row * 2, rows, ""))
      local second = t:op("as_f", w, "second" .. own.name, word_of(K, own, row * 2 + 1, rows - 4, "_next"))
      local low, high = transpose.side_by_side(t, w, own.name, first, second)
      local to = own.p.words:at(row * (2 * own.group.width) + 2 * own.lane)
      t:op("store", w, nil, to, low)
      t:op("store", w, nil, to:at(w.lanes), high)
    end)
  end
  K:each("word", own.x.rows // 8, function(row) two(row, 8) end)
  if own.x.rows % 8 > 0 then two(own.x.rows // 8, own.x.rows % 8) end
end

-- x[rows][width] of a group with queries in the lanes -> words[rows / 4 or 2][width] and scales[width], or with groups
-- of rows scales[groups][width]. x.scheme: that of the product which reads the words.
function M.lanes(K, group, x)
  local t, scheme = K.t, x.scheme
  local store = ways.interleave(scheme) == 1 and store_words or store_pairs
  K:part(("quantize_lanes_%dx%s"):format(x.rows, group.name),
    ("%d rows for a group of queries in int8."):format(x.rows),
    { { "x", "in", x.x }, { "words", "out", x.words }, { "scales", "out", x.scales } }, function(p)
      for c, v in ipairs(group.vecs) do
        local lane = (c - 1) * group.lanes
        local function some(i, rows)
          local at = place_of(scheme, p, i, { x = group.width, words = group.width, scales = group.width })
          local own = { scheme = scheme, w = v.w, name = "_c" .. c - 1, group = group, lane = lane, p = at,
                        x = { rows = rows } }
          local scale
          scale, own.inverse = scales(t, v.w, own.name, largest(K, own))
          t:op("store", v.w, nil, at.scales:at(lane), scale)
          store(K, own)
          if not at.sums then return end
          t:op("store", v.w, nil, at.sums:at(lane), sums_of(K, scheme, v.w, rows, function(name, word)
            return t:op("load_words", v.w, name, at.words:at(word * group.width + lane))
          end))
        end
        t:scope(function() each_group(K, scheme, x.rows, some) end)
      end
    end)
end

return M
