-- One level of Strassen's algorithm in Winograd's form (Strassen 1969; Winograd 1971), for projections C = A B:
-- A, B and C in four quadrants each, seven products of quadrants instead of eight. The sums of B's quadrants are
-- made when packing, those of A's once for all heads (sums.lua):
--
--   S1 = A21 + A22   S2 = S1 - A11   S3 = A11 - A21   S4 = A12 - S2
--   T1 = B12 - B11   T2 = B22 - T1   T3 = B22 - B12   T4 = T2 - B21
--   M1 = A11 B11   M2 = A12 B21   M3 = S4 B22   M4 = A22 T4   M5 = S1 T1   M6 = S2 T2   M7 = S3 T3
--   C11 = M1 + M2   C12 = M1 + M6 + M5 + M3   C21 = M1 + M6 + M7 - M4   C22 = M1 + M6 + M7 + M5
--
-- A row of C then depends on two rows of A. So it is used only where one row that is not finite leaves no result
-- finite anyway.

local choices = require "base.choices"
local cut = require "schedule.cut"
local graph = require "graph.init"
local product_of = require "emit.product"
local project = require "stage.project"
local tiles = require "schedule.tiles"

local M = { phase = project.phase, title = project.title, per = project.per, axes = project.at_once,
            statements = project.statements,
            error = 2 } -- times as large: rows and columns of a quadrant share sums

-- M1 to M7: the quadrant { row, column } of A, or of S1 S2 / S3 S4 where `sums`, and the signs of B11, B12,
-- B21, B22.
local products = {
  { at = { 0, 0 }, signs = { 1, 0, 0, 0 } },
  { at = { 0, 1 }, signs = { 0, 0, 1, 0 } },
  { at = { 1, 1 }, signs = { 0, 0, 0, 1 }, sums = true },
  { at = { 1, 1 }, signs = { 1, -1, -1, 1 } },
  { at = { 0, 0 }, signs = { -1, 1, 0, 0 }, sums = true },
  { at = { 0, 1 }, signs = { 1, -1, 0, 1 }, sums = true },
  { at = { 1, 0 }, signs = { 0, -1, 0, 1 }, sums = true },
}

local ROWS = 256 -- of A's quadrants whose products are kept at a time: half a second-level cache at 64 columns
local COLUMNS = 128 -- of C that are worth several heads together
local JOIN = 11 -- issue slots for a vector of each of C's quadrants: seven loads, four stores
local READ = 0.06 -- and to have a number of a quadrant of A, or of its sums, back in the near caches for the next heads

M.choice = { "quadrants", "projections by seven products of quadrants",
  "an eighth fewer multiplications, as strassen = true asks; heads together up to 128 columns",
  rejected = { { "strassen=false", "slower: minilm by 7 %, bert_base_512 by 5 %, bert_base_128 and " ..
                 "xformer_base by 3 %; whisper_tiny 1 % faster; half of the error" },
               { "head_block=4 on bert_base_512", "4.5 % slower: what is projected leaves the " ..
                 "second-level cache" },
               { "tile by tile, the seven products in the nearest cache", "prototype: projections 1 to " ..
                 "4 % slower" },
               { "the output by quadrants as well", "by count 1 % of bert_base_512; not built" } } }

-- ---- the rewrite ----

-- Whether they are asked for.
function M.asked(plan) return plan.cfg.strassen end

-- Whether a projection is made so. An infinite input makes all results of self-attention infinite or NaN, but not its
-- weights and scores; of a key of its own see rewrite/fold.lua.
local function applies(plan, stage)
  local cfg = plan.cfg
  if stage.kind ~= "project" or stage.merged or stage.c.pairs or stage.rows % 2 > 0 or stage.steps % 2 > 0
    or graph.in_block(plan, stage) * stage.cols % (2 * plan.isa.lanes) > 0 then
    return false
  end
  if stage.c.operand == "values" then return true end
  if #graph.sheets(cfg) > 0 then return false end
  return cfg.attention == "self" or stage.c.operand == "keys" and cfg.dk >= 16
end

-- The list with quadrants where they apply, and the sums that they need before.
function M.rewrite(plan, list)
  local edits, summed, place = {}, {}, nil
  for _, stage in ipairs(list) do
    if applies(plan, stage) then
      edits[stage.name] = { graph.with(stage, { kind = "quadrants" }) }
      summed[#summed + 1] = stage
    end
    if stage.kind == "project" then place = place or stage.name end
  end
  if not summed[1] then return list end
  local sums = graph.moving { name = "sums", of = summed }
  edits[place] = table.move(edits[place] or { graph.find(list, place) }, 1, 1, 2, { sums })
  return graph.edited(list, edits)
end

-- ---- the plan ----

-- The tiles of one product of quadrants, for each kind of a block of rows.
function M.plan(plan, stage)
  local row_blocks, sets = cut.balanced(stage.rows // 2, ROWS), {}
  for i, run in ipairs(row_blocks) do sets[i] = { rows = run.size, count = run.count } end
  local columns, steps = graph.in_block(plan, stage) * stage.cols, stage.steps // 2
  local product, cost = tiles.columns(plan, project.keys, sets, columns // 2, { steps = steps, order = "rows" })
  product.parts, product.row_blocks, product.ld = #products, row_blocks, columns
  stage.product, stage.packed, stage.c.row = product, product, columns
  local rows, vectors = stage.rows // 2, columns // 2 // plan.isa.lanes
  return #products * (cost + READ * rows * steps) + JOIN * rows * vectors
end

-- Several heads are worth all of the cache, but not more columns than a tile has.
function M.stays_near(plan, _, width, bytes) return width <= COLUMNS and bytes <= 2 * plan.cpu.cached end

function M.sections(plan, stage, add)
  project.sections(plan, stage, add)
  local product = stage.product
  add("projected", { name = stage.name .. "_parts", doc = "products of quadrants",
                     count = #products * product.row_blocks[1].size * product.panel_runs[1].width })
end

-- ---- the work ----

-- C of some rows from the seven products of its quadrants: m[7][rows][block.width], bias and out of `to`.
local function join(K, stage, rows, panels, to)
  local t, lanes, product = K.t, K.plan.isa.lanes, stage.product
  local half, below = product.ld // 2, stage.rows // 2 * product.ld
  local params = { { "m", "in", to.m }, { "out", "out", to.out } }
  if to.bias then params[#params + 1] = { "bias", "in", to.bias } end
  K:part(("%s_joined_%dx%d"):format(stage.name, rows, panels.used),
    ("%d rows and %d columns of each quadrant from the seven products."):format(rows, panels.used), params, function(p)
    K:each("row", rows, function(r)
      for c, v in ipairs(panels.vecs) do
        t:scope(function()
          local from = r * panels.width + (c - 1) * lanes
          local ms = {}
          for i = 1, #products do
            ms[i] = t:op("load", v.w, "m" .. i, p.m:at(from + (i - 1) * (rows * panels.width)))
          end
          local u2 = t:op("add", v.w, "u2", ms[1], ms[6])
          local u3 = t:op("add", v.w, "u3", u2, ms[7])
          local u4 = t:op("add", v.w, "u4", u2, ms[5])
          local function store(which, value, column, row)
            if p.bias then
              local bias_of = t:op("load", v.w, "bias" .. which, p.bias:at(column + (c - 1) * lanes))
              value = t:op("add", v.w, "biased" .. which, value, bias_of)
            end
            t:op("store", v.w, nil, p.out:at(r * product.ld + (c - 1) * lanes + column + row), value)
          end
          store("11", t:op("add", v.w, "c11", ms[1], ms[2]), 0, 0)
          store("12", t:op("add", v.w, "c12", u4, ms[3]), half, 0)
          store("21", t:op("sub", v.w, "c21", u3, ms[4]), 0, below)
          store("22", t:op("add", v.w, "c22", u3, ms[5]), half, below)
        end)
      end
    end)
  end)
end

-- One product of quadrants for a block of rows of kind `kind`: c = a b, which are those of `of`.
local function record_part(K, stage, kind, panels, of)
  local product, d = stage.product, stage.steps
  local rows = product.row_blocks[kind].size
  K:part(("%s_quadrant_%dx%d"):format(stage.name, rows, panels.used),
    ("%d rows and %d columns of a product of quadrants."):format(rows, panels.used),
    { { "a", "in", of.a }, { "b", "in", of.b }, { "c", "out", of.c } }, function(q)
    for _, run in ipairs(product.runs[kind]) do
      K:each("tile", run.count, function(n)
        local row = n * run.size + run.at
        K:chunks(product.chunks, function(mode, k0, steps)
          product_of.column_tile(K, run.size, panels, {
            label = stage.name, mode = mode, steps = steps, a = { p = q.a:at(row * d + k0), row = d, k_stride = 1 },
            b = product_of.operand(product, panels, q.b, k0),
            c = { p = q.c:at(row * panels.width), row = panels.width } })
        end)
      end)
    end
  end)
end

-- Block of rows by block of rows. p: x, s (its sums), w, m (for the seven products), out, and bias or nil.
local function record(K, stage, p)
  local product, d = stage.product, stage.steps
  local function quadrant(of, which) return of:at(which[1] * (stage.rows // 2 * d) + which[2] * product.steps) end
  for kind, rows in ipairs(product.row_blocks) do
    K:each("part", rows.count, function(part)
      local first = part * rows.size + rows.at
      product_of.each_panel(K, product, function(panels, j, panel)
        for i, one in ipairs(products) do
          local a = quadrant(one.sums and p.s or p.x, one.at)
          record_part(K, stage, kind, panels, { a = a:at(first * d), b = p.w:at(panel + (i - 1) * product.floats),
                                               c = p.m:at((i - 1) * (rows.size * panels.width)) })
        end
        local column = j * panels.width + panels.at
        join(K, stage, rows.size, panels, { m = p.m, bias = p.bias and p.bias:at(column),
                                           out = p.out:at(first * product.ld + column) })
      end)
    end)
  end
end

function M.emit(K, place, stage)
  choices.take(K.t.why, M.choice)
  local memory = K.plan.memory
  project.record(K, place, stage, { { "s", "in", memory:at(place, "sums_" .. stage.a.name) },
                                    { "m", "out", memory:at(place, stage.name .. "_parts") } },
    function(p) record(K, stage, p) end)
end

-- ---- in words, and packed ----

function M.describe(plan, stage)
  local lines = project.describe(plan, stage)
  lines[1][2] = ("%s; %d products of quadrants"):format(lines[1][2], #products)
  return lines
end

function M.fills(pack, stage)
  local weights, product = stage.weights, stage.product
  for i, one in ipairs(products) do
    pack:panels(product, pack:at(stage.weights.section) + (i - 1) * product.floats, function(panels, to, round)
      local terms = {}
      for j, sign in ipairs(one.signs) do
        local row, column = (j - 1) // 2 * product.steps, (j - 1) % 2 * (product.ld // 2)
        if sign ~= 0 then
          terms[#terms + 1] = { a = weights.a, row = row, column = panels.at + column, sign = sign }
        end
      end
      local text = ("%s, product %d of quadrants"):format(weights.text, i)
      pack:add_heads(graph.with(weights, { text = text }), { to = to, steps = product.steps, used = panels.used,
        width = panels.width, scale = stage.scale, terms = terms, rounds = { round } })
    end)
  end
  project.fill_more(pack, stage)
end

return M
