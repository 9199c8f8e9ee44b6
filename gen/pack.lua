-- How the packed weights are made of the given ones, as data: a list of fills, which mhagen_pack of the runtime
-- carries out.
--
-- A fill writes panel[steps][width]: some columns of a matrix, K step by K step, and zeros behind. The matrix is
-- a sum of terms, each a given matrix or a product of two, times `scale`. `rounds` repeat it for blocks of heads,
-- heads and panels, the places in packed and matrix moving on.
--
-- Panels of the weights of Q^T are as wide as a tile of it is high; those of Wk, Wv and Wo are whole vectors.
-- log2(e)/sqrt(dk) goes into Wq and bq, so that the weights are exp2 of the plain scores.

local strassen = require "strassen"

local M = {}

-- The given matrices in the order of mhagen_matrix: name, rows, columns.
local function matrices(cfg)
  local k_columns, v_columns, d = cfg.h * cfg.dk, cfg.h * cfg.dv, cfg.d_model
  return {
    { "wq", d, k_columns }, { "wk", d, k_columns }, { "wv", d, v_columns }, { "wo", v_columns, d },
    { "bq", 1, k_columns }, { "bk", 1, k_columns }, { "bv", 1, v_columns }, { "bo", 1, d },
  }
end

-- { matrices, fills }; a fill is { text, to, steps, used, width, scale, terms, rounds }, where a term has the names
-- a and b of its matrices (b = nil: a alone), a_flipped and b_flipped where it takes them transposed, the row and
-- column at which the panel begins, and for a product the first of its `inner` columns of a.
function M.list(plan)
  local cfg, f, hb, d = plan.cfg, plan.fold, plan.hb, plan.cfg.d_model
  local v_columns = cfg.h * cfg.dv
  local scale = 1.4426950408889634 / math.sqrt(cfg.dk)
  local fills = {}

  -- Adds a fill; those of the weights of blocks of heads, `along` what they have of width columns a head.
  local function add(fill) fills[#fills + 1] = fill end
  local function add_heads(fill, along, width)
    fill.to = fill.to + plan.packed.heads
    table.insert(fill.rounds, 1, { count = plan.head_blocks, to = plan.head.total, [along] = hb * width })
    add(fill)
  end
  -- Of each head in a block, `size` floats on.
  local function each_head(count, size, width)
    return { count = count, to = size, first = width }
  end
  -- build(block, to, round) for the panels of a product with vectors over columns.
  local function panels(product, steps, to, build)
    for _, block in ipairs(product.blocks) do
      build(block, to, { count = block.count, to = block.width * steps, column = block.width })
      to = to + block.count * block.width * steps
    end
  end
  -- build(run, to, round) for those of a product by rows, as high as its tiles.
  local function tiles(product, to, build)
    for _, run in ipairs(product.runs) do
      build(run, to + run.at * product.steps, { count = run.count, to = run.size * product.steps, column = run.size })
    end
  end

  -- What is projected with lanes over columns (which = "q", "k", "v"), `width` columns a head.
  local function projected(which, width, factor)
    local product, matrix = plan.projected[which], "w" .. which
    local at = plan.head[matrix]
    for i = 1, product.quadrants or 0 do
      panels(product, product.steps, at + (i - 1) * product.floats, function(block, to, round)
        local terms = {}
        for j, sign in ipairs(strassen.products[i].signs) do
          local row, column = (j - 1) // 2 * product.steps, (j - 1) % 2 * (product.ld // 2)
          if sign ~= 0 then terms[#terms + 1] = { a = matrix, row = row, column = block.at + column, sign = sign } end
        end
        add_heads({ text = ("%s, product %d of quadrants"):format(matrix, i), to = to, steps = product.steps,
                    used = block.used, width = block.width, scale = factor, terms = terms, rounds = { round } },
          "column", width)
      end)
    end
    if not product.quadrants then
      panels(product, d, at, function(block, to, round)
        add_heads({ text = matrix, to = to, steps = d, used = block.used, width = block.width, scale = factor,
                    terms = { { a = matrix, column = block.at } }, rounds = { round } }, "column", width)
      end)
    end
    if not f.without[which] then
      add_heads({ text = "b" .. which, to = plan.head["b" .. which], steps = 1, used = hb * width, width = product.ld,
                  scale = factor, terms = { { a = "b" .. which } }, rounds = {} }, "column", width)
    end
  end

  local function queries()
    if plan.projected.q then return projected("q", cfg.dk, scale) end
    tiles(plan.q, plan.head.wq, function(run, to, round)
      add_heads({ text = "wq", to = to, steps = d, used = run.size, width = run.size, scale = scale,
                  terms = { { a = "wq", column = run.at } }, rounds = { round } }, "column", cfg.dk)
    end)
    add_heads({ text = "bq", to = plan.head.bq, steps = 1, used = hb * cfg.dk, width = hb * cfg.dk, scale = scale,
                terms = { { a = "bq" } }, rounds = {} }, "column", cfg.dk)
  end

  -- Wq or bq times Wk^T of each head.
  local function merged_queries()
    local function product(a, column)
      return { { a = a, b = "wk", b_flipped = true, column = column, inner = cfg.dk } }
    end
    local by_columns, kq = plan.projected.q, plan.kq
    if by_columns then -- hb is 1
      panels(by_columns, d, plan.head.wq, function(block, to, round)
        add_heads({ text = "wq wk^T", to = to, steps = d, used = block.used, width = block.width, scale = scale,
                    terms = product("wq", block.at), rounds = { round } }, "first", cfg.dk)
      end)
      return add_heads({ text = "bq wk^T", to = plan.head.bq, steps = 1, used = d, width = by_columns.ld, scale = scale,
                         terms = product("bq", 0), rounds = {} }, "first", cfg.dk)
    end
    tiles(kq, plan.head.wk, function(run, to, round)
      add_heads({ text = "wq wk^T", to = to, steps = d, used = run.size, width = run.size, scale = scale,
                  terms = product("wq", run.at), rounds = { each_head(hb, kq.rows * d, cfg.dk), round } },
        "first", cfg.dk)
    end)
    add_heads({ text = "bq wk^T", to = plan.head.bq, steps = 1, used = d, width = d, scale = scale,
                terms = product("bq", 0), rounds = { each_head(hb, d, cfg.dk) } }, "first", cfg.dk)
  end

  local function keys()
    if plan.projected.k then return projected("k", cfg.dk, 1.0) end
    local kq = plan.kq
    tiles(kq, plan.head.wk, function(run, to, round)
      add_heads({ text = "wk^T", to = to, steps = cfg.dk, used = run.size, width = run.size, scale = 1.0,
                  terms = { { a = "wk", a_flipped = true, column = run.at } },
                  rounds = { { count = hb, to = kq.rows * kq.steps, row = cfg.dk }, round } }, "row", cfg.dk)
    end)
  end

  local function values()
    if plan.projected.v then return projected("v", cfg.dv, 1.0) end
    local vc = plan.vc
    if not vc then return end
    tiles(vc, plan.head.wv, function(run, to, round)
      add_heads({ text = "wv", to = to, steps = d, used = run.size, width = run.size, scale = 1.0,
                  terms = { { a = "wv", column = run.at } },
                  rounds = { { count = hb, to = vc.rows * vc.steps, column = cfg.dv }, round } }, "column", cfg.dv)
    end)
  end

  local function output()
    panels(plan.out, plan.out.steps, plan.packed.wo, function(block, to, round)
      local merged = f.vo == "merge"
      local term = { a = merged and "wv" or "wo", b = merged and "wo" or nil, column = block.at,
                     inner = merged and cfg.dv or nil }
      add { text = merged and "wv wo" or "wo", to = to, steps = merged and d or v_columns, used = block.used,
            width = block.width, scale = 1.0, terms = { term },
            rounds = { merged and each_head(cfg.h, d * block.width, cfg.dv) or nil, round } }
    end)
    local terms = { { a = "bo" } }
    if f.without.v then terms[2] = { a = "bv", b = "wo", inner = v_columns } end
    add { text = f.without.v and "bo + bv wo" or "bo", to = plan.packed.bo, steps = 1, used = d, width = plan.out.ld,
          scale = 1.0, terms = terms, rounds = {} }
  end

  if f.qk == "merge" then
    merged_queries()
  else
    queries()
    keys()
  end
  values()
  output()
  for _, fill in ipairs(fills) do
    local rounds = {}
    for i = 1, 3 do
      local round = fill.rounds[i]
      if round and round.count > 1 then rounds[#rounds + 1] = round end
    end
    fill.rounds = rounds
  end
  return { matrices = matrices(cfg), fills = fills }
end

return M
