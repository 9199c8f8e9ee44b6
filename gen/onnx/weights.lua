-- Which columns of which matrices Q, K and V of a layer are, with biases, gains of norms and the angles of rope.
--
--   of(find, operands, heads, fail) -> {
--     factor                   of the scores, by which Q and K are multiplied
--     q, k, v = { product, columns, bias = numbers or nil, heads, by = factors of columns or nil } or nil, where it
--                              is no projection
--     keys                     h_kv, rope, rope_dims, qk_norm, norm_span, norm_eps
--     gains = { q =, k = }     of norms, numbers or nil
--     turns                    of rope by a frequency for each pair; nil otherwise
--     tables = { cos =, sin =, places = } of rope otherwise }

local graph_turns = require "onnx.turns"

local M = {}

local NEAR = 1e-6 -- of factors that are the same but for roundings of tables

-- How many heads an operand has: those of the scores that begin with the same column share one. Nil if not told.
local function grouped(operand, heads)
  local known, count = {}, 0
  for l = 1, operand.side.leads do
    local cells = operand.cell(l, 0, 0)
    if not cells then return nil end
    local column = math.min(cells[1].column, cells[#cells].column)
    if not known[column] then known[column], count = true, count + 1 end
  end
  return heads.count % count == 0 and count or nil
end

-- The lead of the first sequence that a head of an operand is read by.
local function lead_of(heads, head, each)
  for l = 1, #heads.head do
    if heads.head[l] == head * each and heads.batch[l] == 0 then return l end
  end
end

-- How a head is turned, and by what sign unlike the first one; nil and why it is not.
local function read_turn(operand, lead, width, first)
  local turn, why = graph_turns.read(function(row, i) return operand.cell(lead, row, i) end, width, 0, operand.rows)
  if not turn then return nil, why end
  if first and not graph_turns.same_pairs(turn, first) then return nil, "heads are turned in other pairs" end
  return turn, first and graph_turns.sign(turn, first, operand.rows) or 1
end

-- Columns of all heads of an operand that is not turned, or of one that is, in the order of `turn`.
local function read_columns(operand, heads, count, order)
  local made = { product = operand.product, heads = count, columns = {}, elements = {} }
  local width, biased, bias, by, uneven, first = operand.side.width, false, {}, {}, false, nil
  for head = 0, count - 1 do
    local l = lead_of(heads, head, heads.count // count)
    local turn, sign
    if order then
      turn, sign = read_turn(operand, l, width, first)
      if not turn then return nil, sign end
      first = first or turn
    end
    for i = 0, width - 1 do
      local cell, at = turn and turn.columns[order[i]], head * width + i + 1
      local added, factor = cell and cell.added, turn and sign * turn.factor
      if not cell then
        local cells = operand.cell(l, 0, i)
        cell = cells and #cells == 1 and cells[1]
        if not cell or cell.factor == 0 then return nil, "its columns are mixed" end
        added, factor = cells.constant / cell.factor, cell.factor -- a bias is added before what multiplies it
      end
      made.columns[at], made.elements[at], bias[at] = cell.column, cell.element, cell.bias + added
      biased, made.factor = biased or bias[at] ~= 0, made.factor or factor
      by[at] = factor / made.factor
      uneven = uneven or math.abs(by[at] - 1) > NEAR
    end
  end
  if made.factor < 0 or uneven then -- each column has its own
    for at, factor in ipairs(by) do by[at] = factor * made.factor end
    made.factor, uneven = 1, true
  end
  made.bias, made.by = biased and bias or nil, uneven and by or nil
  return made
end

-- Gains of a norm: by the columns of a head, of each head, or of all together; and the span as a key has it.
local function read_gains(find, operand, made, width)
  local norm, count = operand.norm, #made.columns
  local function gain(element)
    return norm.gains and find.elements:at(norm.gains, element) or 1
  end
  local gains, own = {}, norm.gains ~= nil
  if norm.width == count and made.heads > 1 then
    for at = 1, count do gains[at] = gain(made.elements[at]) end
    return "all", own and gains or nil
  end
  if norm.width ~= width then return nil end
  for at = 1, width do gains[at] = gain(made.elements[at]) end
  return "head", own and gains or nil
end

-- ---- rope ----

local function is_turned(operand)
  for i = 0, operand.side.width - 1 do
    local cells = operand.cell(1, operand.rows - 1, i)
    if not cells then return nil end
    if #cells > 1 then return true end
  end
  return false
end

-- The tables of a turn that is none by frequencies, for all places that there are.
local function tables_of(turn, rows)
  local cos, sin = {}, {}
  for place = 0, rows - 1 do
    for k = 1, #turn.pairs do
      local angle, magnitude = turn.angle(k, place)
      magnitude = magnitude / turn.factor
      cos[#cos + 1], sin[#sin + 1] = magnitude * math.cos(angle), magnitude * math.sin(angle)
    end
  end
  return { cos = cos, sin = sin, places = rows, pairs = #turn.pairs }
end

local MOST_TABLE = 1 << 21

local function read_rope(operands, made)
  local q, k = operands.q, operands.k
  local past = k.past and k.past.rows or 0
  local function turn_of(operand)
    return graph_turns.read(function(row, i) return operand.cell(1, row, i) end, operand.side.width, past, operand.rows)
  end
  local turn, why = turn_of(q)
  local other, because = turn_of(k)
  if not turn or not other then return nil, why or because end
  if not graph_turns.same_pairs(turn, other) then return nil, "Q and K are turned in other pairs" end
  local width = q.side.width
  local layout, order = graph_turns.order(turn, width)
  made.keys.rope, made.order = layout, order
  made.keys.rope_dims = 2 * #turn.pairs
  local steps = graph_turns.frequencies(turn, past, q.rows)
  if steps then
    made.turns = {}
    for n, step in ipairs(steps) do made.turns[n] = step / (2 * math.pi) end
    return true
  end
  local rows = math.min(q.rows, k.rows)
  if past > 0 or rows * #turn.pairs > MOST_TABLE then return nil, "angles do not grow by the same from row to row" end
  made.tables = tables_of(turn, rows)
  return true
end

-- ---- what lies between ----

-- Q and K are taken as they are, for what lies between them and their projections is not known.
local function as_they_are(operands, made, why)
  for _, letter in ipairs { "q", "k" } do
    operands[letter].product, operands[letter].norm, made[letter] = nil, nil, nil
  end
  made.keys, made.factor, made.gains, made.why = { h_kv = made.keys.h_kv }, 1, {}, why
  made.turns, made.tables, made.order = nil, nil, nil
end

-- Whether norms and rope of Q and K are such as a kernel has.
local function read_between(operands, made)
  local q, k = operands.q, operands.k
  local turned_q, turned_k = q.product and is_turned(q), k.product and is_turned(k)
  if not (turned_q or turned_k or q.norm or k.norm) then return true end
  if not q.product or not k.product or turned_q ~= turned_k or (q.norm and q.norm.kind) ~= (k.norm and k.norm.kind) then
    return nil, "Q and K differ in norm or rotation"
  end
  if turned_q then
    local good, why = read_rope(operands, made)
    if not good then return nil, why end
  end
  if q.norm then
    if q.norm.eps ~= k.norm.eps then return nil, "norms of Q and K differ" end
    made.keys.qk_norm, made.keys.norm_eps = q.norm.kind, math.max(1e-18, q.norm.eps)
  end
  return true
end

-- ---- factors of columns ----

-- Gives a letter of `made` a factor for each column, beside those that it has.
local function multiply_columns(own, factor_of)
  local by = own.by or {}
  for at = 1, #own.columns do by[at] = (by[at] or 1) * factor_of(at) end
  own.by = by
end

-- Factors of heads go to the columns of Q, or to those of K where each head has its own.
local function add_heads(made, operands, heads, fail)
  local letter = made.q and "q" or made.k and made.k.heads == heads.count and "k"
  if not letter then fail "scores have a factor for each head, and Q is no projection" end
  local width = operands[letter].side.width
  multiply_columns(made[letter], function(at) return heads.factors[(at - 1) // width] end)
end

-- Factors of columns are multiplied into the gains of a norm behind these columns, else into biases; those of the
-- matrix are left to its reader.
local function place_factors(made, operands)
  local each
  for letter, own in pairs { q = made.q, k = made.k, v = made.v } do
    if own.by and operands[letter].norm then
      local gains, all = made.gains[letter] or { 1 }, {}
      for at, factor in ipairs(own.by) do all[at] = factor * gains[(at - 1) % #gains + 1] end
      made.gains[letter], own.by, each = all, nil, made.keys.norm_span ~= "all"
    elseif own.by and own.bias then
      for at, factor in ipairs(own.by) do own.bias[at] = factor * own.bias[at] end
    end
  end
  if not each then return end
  made.keys.norm_span = "each"
  for letter, gains in pairs(made.gains) do
    local count = #gains
    for at = count + 1, #made[letter].columns do gains[at] = gains[(at - 1) % count + 1] end
  end
end

-- ---- all ----

function M.of(find, operands, heads, fail)
  local made = { keys = {}, gains = {}, factor = 1 }
  local good, why = read_between(operands, made)
  if not good then as_they_are(operands, made, why) end
  for _, letter in ipairs { "q", "k", "v" } do
    local operand = operands[letter]
    local count = operand.product and grouped(operand, heads)
    local own, because
    if count then own, because = read_columns(operand, heads, count, letter ~= "v" and made.order) end
    operand.why = operand.why or because
    if own and letter == "v" and own.factor ~= 1 then
      multiply_columns(own, function() return own.factor end)
    end
    made[letter] = own
  end
  local function lost(letter) return operands[letter].product and not made[letter] end
  local between = made.order or operands.q.norm
  local spans = {}
  for _, letter in ipairs(between and operands.q.norm and made.q and made.k and { "q", "k" } or {}) do
    spans[letter], made.gains[letter] = read_gains(find, operands[letter], made[letter], operands[letter].side.width)
  end
  if spans.q == "all" and spans.k == "head" and made.k.heads == 1 then spans.k = "all" end
  if between and (lost "q" or lost "k" or operands.q.norm and (not spans.q or spans.q ~= spans.k)) then
    as_they_are(operands, made, operands.q.why or operands.k.why or
      "what lies between Q, K and their projections is not known")
  end
  made.keys.norm_span = spans.q == "all" and made.q and "all" or nil
  for _, letter in ipairs { "q", "k", "v" } do
    if not made[letter] then operands[letter].product = nil end
  end
  for _, letter in ipairs { "q", "k" } do
    made.factor = made.factor * (made[letter] and made[letter].factor or 1)
  end
  if made.k and made.v and made.k.heads ~= made.v.heads then -- one of them would be there for more heads
    made.v, operands.v.product = nil, nil
  end
  if made.q and made.q.heads ~= heads.count then made.q, operands.q.product = nil, nil end
  made.keys.h_kv = made.k and made.k.heads or made.v and made.v.heads or nil
  if heads.factors then add_heads(made, operands, heads, fail) end
  place_factors(made, operands)
  return made
end

return M
