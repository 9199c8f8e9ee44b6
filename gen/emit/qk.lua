-- The code of norm and rope (graph/qk.lua). Rows of K are handled after their projection, with lanes over columns.
-- Queries of a group are handled before their scores, with lanes over queries.

local expr = require "base.expr"
local graph = require "graph.init"
local norm = require "emit.norm"
local qk_of = require "graph.qk"

local M = {}

-- Rotates a pair: (x cos - y sin, y cos + x sin). load(word) loads first, second, cosine or sine.
local function turned(t, w, name, load)
  local x, y, cosine, sine = load "first", load "second", load "cosine", load "sine"
  local less = t:op("mul", w, "less" .. name, y, sine)
  local rest = t:op("mul", w, "rest" .. name, y, cosine)
  return t:op("sub", w, "first_turned" .. name, t:op("mul", w, "part" .. name, x, cosine), less),
    t:op("fma", w, "second_turned" .. name, x, sine, rest)
end

-- ---- rows ----

-- Row r of a block, for one head at x. q has the row's tables and gains.
local function row(K, qk, r, x, q)
  local t, w, lanes = K.t, K.plan.isa.full, K.plan.isa.lanes
  local by = qk.norm and t:op("dup", w, "factor", q.factors:at(r))
  local mean = qk.norm == "layer" and t:op("dup", w, "mean", q.factors:at(lanes + r))
  local function load(name, p, used) return t:read("load", w, name, p, used) end
  local function store(p, value, used) t:write(w, p, value, used) end
  local function value(word, column, used)
    local found = load(word, x:at(column), used)
    if not by then return found end
    if mean then found = t:op("sub", w, word .. "_centered", found, mean) end
    local scaled = t:op("mul", w, word .. "_scaled", found, by)
    return t:op("mul", w, word .. "_normal", scaled, load(word .. "_gain", q.gain:at(column), used))
  end
  if qk.beside and lanes > 1 then
    norm.vectors(K, 2 * qk.pairs, function(at, used)
      local both = value("value", at, used)
      local firsts = t:op("trn_lo", w, "firsts", both, both, 1)
      local seconds = t:op("trn_hi", w, "seconds", both, both, 1)
      local part = t:op("mul", w, "part", firsts, load("turn_first", q.tables[1]:at(at), used))
      local by_second = load("turn_second", q.tables[2]:at(at), used)
      store(x:at(at), t:op("fma", w, "turned", seconds, by_second, part), used)
    end)
  elseif qk.pairs > 0 then
    norm.vectors(K, qk.pairs, function(at, used)
      local columns = { first = at, second = at + qk.pairs }
      local tables = { cosine = q.tables[1]:at(at), sine = q.tables[2]:at(at) }
      if qk.interleaved then columns = { first = 2 * at, second = 2 * at + 1 } end -- one lane
      if qk.beside then -- the factors (cos, sin) of the first number of a pair
        tables = { cosine = q.tables[1]:at(2 * at), sine = q.tables[1]:at(2 * at + 1) }
      end
      local first, second = turned(t, w, "", function(word)
        if columns[word] then return value(word, columns[word], used) end
        return load(word, tables[word], used)
      end)
      store(x:at(columns.first), first, used)
      store(x:at(columns.second), second, used)
    end)
  end
  if not qk.norm then return end
  norm.vectors(K, qk.dk - 2 * qk.pairs, function(at, used)
    local column = 2 * qk.pairs + at
    store(x:at(column), value("value", column, used), used)
  end)
end

-- What happens to rows, in a word, for comments in the generated C.
function M.doc(qk)
  if not qk.norm then return "Rotates" end
  return qk.pairs > 0 and "Normalizes and rotates" or "Normalizes"
end

-- The parameters of a function that rotates keys, besides the keys.
function M.key_params(K, place, qk)
  local params, memory = {}, K.plan.memory
  for i, name in ipairs(qk_of.key_tables(qk)) do
    params[i] = { name, "in", qk.given and not qk.beside and place[qk.given[i]] or memory:at(place, name) }
  end
  if qk.norm then
    params[#params + 1] = { "k_gain", "in", memory:at(place, "k_gain") }
    params[#params + 1] = { "factors", "out", memory:at(place, "factors") }
  end
  return params
end

-- `rows` rows of all heads of a block, from row `first` on; p: out, past or nil, the tables, gains and factors.
local function key_block(K, stage, p, first, rows)
  local t, qk, heads, ld = K.t, stage.qk, graph.in_block(K.plan, stage), stage.c.row
  local names, width = qk_of.key_tables(qk)
  local params = { { "x", "out", p.out:at(first * ld) } }
  local row_of_tables = qk.given and first or (p.past or 0) + first - qk.first
  for _, name in ipairs(names) do params[#params + 1] = { name, "in", p[name]:at(row_of_tables * width) } end
  if qk.norm then
    params[#params + 1] = { "k_gain", "in", p.k_gain }
    params[#params + 1] = { "factors", "out", p.factors }
  end
  local spans = qk.all and 1 or heads -- parts of a row that are normalized on their own
  local within = heads // spans
  local name, of = "turn_keys", "one key"
  if qk.norm then name, of = "norm_keys_" .. rows, ("%d key%s"):format(rows, rows > 1 and "s" or "") end
  K:part(name, ("%s %s, %d head%s."):format(M.doc(qk), of, heads, heads > 1 and "s" or ""), params, function(q)
    K:each("head", spans, function(span)
      local x = q.x:at(span * (within * qk.dk))
      if qk.norm then
        norm.row_factors(K, qk, rows, within * qk.dk, q.factors, function(r, column) return x:at(r * ld + column) end)
      end
      K:each("row", rows, function(r)
        K:each("head", within, function(head)
          local gain = qk.k_heads and (span * within + head) * qk.dk or 0
          local own = { factors = q.factors, gain = q.k_gain and q.k_gain:at(gain), tables = {} }
          for i, name in ipairs(names) do own.tables[i] = q[name]:at(r * width) end
          local function record() row(K, qk, r, x:at(r * ld + head * qk.dk), own) end
          if qk.norm then t:scope(record) else record() end
        end)
      end)
    end)
  end)
end

-- Handles the rows that are needed. For a norm they are taken in blocks of as many rows as a vector has lanes, so that
-- some more rows may be handled at both ends.
function M.keys(K, stage, p)
  local rows, size = stage.rows, stage.qk.norm and K.plan.isa.lanes or 1
  local stop, whole, rest = p.bounds.stop or rows, rows // size, rows % size
  local first, blocks = expr.div(p.bounds.first or 0, size), expr.ceil_div(stop, size)
  if p.bounds.first and size > 1 then first = K.t:int("first_block", first) end
  if rest > 0 then blocks = expr.min(whole, blocks) end
  K:each(size > 1 and "block" or "row", blocks - first, function(i)
    key_block(K, stage, p, (i + first) * size, size)
  end)
  if rest > 0 then
    K.t:when(whole * size, stop, function() key_block(K, stage, p, whole * size, rest) end)
  end
end

-- ---- lanes of queries ----

-- Of group number i of its kind.
function M.query_params(K, place, qk, group, i)
  local params, memory, names = {}, K.plan.memory, { "cosines", "sines" }
  if not qk then return params end
  for n, name in ipairs(qk_of.query_tables(qk)) do
    local all = not qk.given and memory:at(place, name)
    params[n] = { names[n], "in", all or memory:of_group(place, name, group, i) }
  end
  params[#params + 1] = { "gains", "in", qk.norm and memory:at(place, "q_gain") }
  return params
end

-- The factors of n rows of q[n][width] for each lane; with layer, the means follow them.
function M.query_factors(K, group, qk, n, q, factors)
  local t, centered = K.t, qk.norm == "layer"
  local chains = n % 4 == 0 and 4 or n % 2 == 0 and 2 or 1
  K:part(("norm_queries_%dx%s"):format(n, group.name), "The factor by which a norm multiplies each query.", {
    { "q", "in", q }, { "factors", "out", factors } }, function(p)
    local function sum_of(c, v, add)
      local list, name = {}, "_c" .. c - 1
      for i = 1, chains do list[i] = t:start("zero", v.w, ("sum%d%s"):format(i, name)) end
      K:each("row", n // chains, function(r)
        t:scope(function()
          for i = 1, chains do
            local at = p.q:at((r * chains + i - 1) * group.width + (c - 1) * group.lanes)
            add(list[i], t:op("load", v.w, ("value%d%s"):format(i, name), at), ("%d%s"):format(i, name))
          end
        end)
      end)
      for i = 2, chains do t:update(list[1], "add", list[1], list[i]) end
      return list[1]
    end
    for c, v in ipairs(group.vecs) do
      local at, name = (c - 1) * group.lanes, "_c" .. c - 1
      if centered then
        t:scope(function()
          local sum = sum_of(c, v, function(acc, value) t:update(acc, "add", acc, value) end)
          local mean = t:op("mul", v.w, "mean" .. name, sum, t:op("set", v.w, "share" .. name, 1.0 / n))
          t:op("store", v.w, nil, p.factors:at(group.width + at), mean)
        end)
      end
      t:scope(function()
        local mean = centered and t:op("load", v.w, "mean" .. name, p.factors:at(group.width + at))
        local sum = sum_of(c, v, function(acc, value, suffix)
          if mean then value = t:op("sub", v.w, "centered" .. suffix, value, mean) end
          t:update(acc, "fma", value, value, acc)
        end)
        t:op("store", v.w, nil, p.factors:at(at), norm.factor(t, v.w, name, qk, n, sum))
      end)
    end
  end)
end

-- The queries of one head of a group, q[dk][width]. p: tables, gains and factors by name, with the gains of this head;
-- place: the position of the first query.
function M.queries(K, group, qk, q, p)
  local t, along, at = K.t, qk_of.lanes_row(K.plan, qk), p.place - qk.first
  if qk.given then along, at = group.width, 0 end
  local turns, norm = qk.pairs > 0, qk.norm
  local params = { { "q", "out", q }, { "cosines", "in", turns and p.cosines:at(at) },
                   { "sines", "in", turns and p.sines:at(at) }, { "gains", "in", norm and p.gains },
                   { "factors", "in", norm and p.factors } }
  K:part("turn_queries_" .. group.name, M.doc(qk) .. " the queries of one head.", params, function(own)
    local function value(c, v, word, row)
      local name, from = "_c" .. c - 1, (c - 1) * group.lanes
      local found = t:op("load", v.w, word .. name, own.q:at(row * group.width + from))
      if not qk.norm then return found end
      if qk.norm == "layer" then
        local mean = t:op("load", v.w, word .. "_mean" .. name, own.factors:at(group.width + from))
        found = t:op("sub", v.w, word .. "_centered" .. name, found, mean)
      end
      local by = t:op("load", v.w, word .. "_factor" .. name, own.factors:at(from))
      local gain = t:op("dup", v.w, word .. "_gain" .. name, own.gains:at(row))
      return t:op("mul", v.w, word .. "_normal" .. name, t:op("mul", v.w, word .. "_scaled" .. name, found, by), gain)
    end
    K:each("pair", qk.pairs, function(i)
      local rows = { first = i, second = i + qk.pairs }
      if qk.interleaved then rows = { first = 2 * i, second = 2 * i + 1 } end
      t:scope(function()
        for c, v in ipairs(group.vecs) do
          local from, name = (c - 1) * group.lanes, "_c" .. c - 1
          local tables = qk.pairs > 0 and { cosine = own.cosines:at(i * along), sine = own.sines:at(i * along) }
          local first, second = turned(t, v.w, name, function(word)
            if rows[word] then return value(c, v, word, rows[word]) end
            return t:op("load", v.w, word .. name, tables[word]:at(from))
          end)
          t:op("store", v.w, nil, own.q:at(rows.first * group.width + from), first)
          t:op("store", v.w, nil, own.q:at(rows.second * group.width + from), second)
        end
      end)
    end)
    K:each("row", qk.norm and qk.dk - 2 * qk.pairs or 0, function(r)
      t:scope(function()
        for c, v in ipairs(group.vecs) do
          local at_row = r + 2 * qk.pairs
          local normal = value(c, v, "value", at_row)
          t:op("store", v.w, nil, own.q:at(at_row * group.width + (c - 1) * group.lanes), normal)
        end
      end)
    end)
  end)
end

return M
