-- What is projected of a block of heads with lanes over columns: K[key][hb*dk] = X Wk + bk, V likewise, and Q.

local choices = require "choices"
local expr = require "expr"
local graph = require "graph"
local product_of = require "emit.product"
local tiles = require "tiles"
local words = require "words"

local M = { phase = "keys_values", title = "keys and values", per = "heads" }

M.keys = { rows = "kv_rows", vectors = "kv_vectors" }

function M.plan(plan, stage)
  local cost
  stage.product, cost = tiles.columns(plan, M.keys, { { rows = stage.rows, count = 1 } },
    graph.in_block(plan, stage) * stage.cols, stage.steps, "rows")
  stage.c.row = stage.product.ld
  return cost
end

-- Rows of what is projected: tiles of keys may touch more than there are.
local function rows(plan, stage) return stage.letter == "q" and stage.rows or plan.kv_rows end

function M.sections(plan, stage, add)
  local product = stage.product
  add("head", { name = "w" .. stage.letter, doc = "weights", count = product.floats * (product.parts or 1) })
  if stage.bias then add("head", { name = "b" .. stage.letter, doc = "bias", count = product.ld }) end
  add("projected", { name = stage.name, doc = stage.name, cols = product.ld,
                     count = rows(plan, stage) * product.ld })
end

-- V rows from `from` on that a key tile may still touch: zeros, so that zero weights stay zeros.
local function clear_values(K, v, from)
  local t, plan, isa = K.t, K.plan, K.plan.isa
  local most, ld = 0, plan.attend.values.row
  for _, group in ipairs(plan.groups) do most = math.max(most, group.keys.rows) end
  K:each("row", expr.min(most, plan.kv_rows - from), function(i)
    t:block(function()
      local zero = t:op("zero", isa.full, "zero")
      for c = 0, ld // isa.lanes - 1 do
        t:op("store", isa.full, nil, v:at((from + i) * ld + c * isa.lanes), zero)
      end
    end)
  end)
end

-- All rows by all panels: the panels are the inner loop. Run-time `p.len` (or nil) bounds the keys.
local function record_tiles(K, stage, p)
  local product, d = stage.product, stage.steps
  choices.add(K.t.why, "project_order")
  for _, run in ipairs(product.runs[1]) do
    local count = run.count
    if p.len and not K.full then
      count = expr.min(count, expr.ceil_div(p.len - run.at, run.size))
    end
    K:each("tile", count, function(i)
      local row = i * run.size + run.at
      product_of.each_panel(K, product, d, function(block, j, panel)
        local column = j * block.width + block.at
        K:chunks(product.chunks, function(mode, k0, steps)
          product_of.column_tile(K, stage.name, run.size, block, mode, steps,
            { p = p.x:at(row * d + k0), row = d, step = 1 }, p.w:at(panel + k0 * block.width),
            p.bias and p.bias:at(column), { p = p.out:at(row * product.ld + column), row = product.ld })
        end)
      end)
    end)
  end
end

-- The function that projects a block of heads; `record` does it with its parameters, which `more` adds to.
function M.record(K, place, stage, more, record)
  local plan, memory = K.plan, K.plan.memory
  local len = stage.letter ~= "q" and place.len or nil
  K.role = stage.name
  local params = { { "x", "in", memory:tensor(place, stage.a) }, { "w", "in", memory:at(place, "w" .. stage.letter) },
                   { "out", "out", memory:at(place, stage.name) } }
  if stage.bias then params[#params + 1] = { "bias", "in", memory:at(place, "b" .. stage.letter) } end
  if len then params[#params + 1] = { "len", "int", len } end
  table.move(more, 1, #more, #params + 1, params)
  local heads = graph.in_block(plan, stage)
  K:part("project_" .. stage.name, ("Projects %s of %d head%s."):format(stage.name, heads, heads > 1 and "s" or ""),
    params, function(p)
    record(p)
    if stage.letter ~= "v" then return end
    if len and not K.full then
      clear_values(K, p.out, p.len)
    elseif plan.kv_rows > plan.cfg.seq_kv then
      clear_values(K, p.out, plan.cfg.seq_kv)
    end
  end)
  K.role = nil
end

function M.emit(K, place, stage)
  M.record(K, place, stage, {}, function(p) record_tiles(K, stage, p) end)
end

function M.axes() return { { var = "which", items = { { first = 0, count = 1 } }, total = 1 } } end

function M.statements(count, plan, stage)
  local product = stage.product
  for _, runs in ipairs(product.runs) do count:columns(product, runs, plan.head_blocks * (product.parts or 1)) end
end

function M.describe(plan, stage)
  local product = stage.product
  return { { stage.name, ("tiles %s, %s; %d of %d heads together"):format(words.column_tiles(product),
    words.chain(product.chunks), graph.in_block(plan, stage), stage.heads) } }
end

function M.fill_bias(pack, stage)
  local bias, product = stage.bias, stage.product
  if not bias then return end
  pack:add_heads(bias, { to = pack:at("b" .. stage.letter), steps = 1,
    used = graph.in_block(pack.plan, bias) * stage.cols, width = product.ld, scale = stage.scale,
    terms = { pack.term(bias, 0) }, rounds = {} })
end

function M.fills(pack, stage)
  local weights, product = stage.weights, stage.product
  pack:panels(product, pack:at("w" .. stage.letter), function(block, to, round)
    pack:add_heads(weights, { to = to, steps = product.steps, used = block.used, width = block.width,
      scale = stage.scale, terms = { pack.term(weights, block.at) }, rounds = { round } })
  end)
  M.fill_bias(pack, stage)
end

return M
