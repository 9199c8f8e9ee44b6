-- Norm (qk_norm) and rotary embedding (rope) for rows of Q and K, between projections and scores. This file has the
-- facts about them, their tables and the packing of these; emit/qk.lua records the code.
--
-- A norm is taken of the n columns of a head, or of all heads (norm_span = all). rms is x gain / sqrt(mean(x^2) + eps)
-- (Llama's, in Qwen 3), layer the same of x - mean(x) (ViT-22B, Cohere), and l2 is x gain / max(length, eps) (Swin v2).
--
-- A head's first 2 * pairs columns are pairs of coordinates: columns i and i + pairs (half: GPT-NeoX, Llama) or 2i and
-- 2i + 1 (interleaved: GPT-J, Cohere). A row at position x rotates its pair i by the angle x * theta^(-i / pairs) (Su
-- et al., RoFormer, 2021). Tables for K have a row for each position; tables for Q have positions in their lanes.
--
-- With rope_at = run a run is given cosines and sines of its own rows, and makes tables of them first, with these rows
-- in the place of positions (stage/angles.lua). For K in halves, the given arrays are such tables already.

local isas = require "isa.init"
local memory = require "schedule.memory"
local rotation = require "graph.rotation"
local score = require "score.init"
local tiles = require "schedule.tiles"

local M = {}

-- The arrays of angles that a run gives, { name, rows }: those of Q, and of K where its rows are others.
function M.angles(cfg)
  local list = {}
  local function add(prefix, rows)
    for _, name in ipairs { "rope_cos", "rope_sin" } do list[#list + 1] = { name = prefix .. name, rows = rows } end
  end
  if cfg.rope_at ~= "run" then return list end
  add("", cfg.seq)
  if cfg.attention == "cross" and cfg.cache ~= "append" then add("k_", cfg.seq_kv) end
  return list
end

-- What a config asks for, or nil:
--   dk
--   norm, all, eps          all: of all heads together
--   q_heads, k_heads        the number of heads that have gains of their own, or nil
--   pairs                   0 without rope; interleaved, theta
--   beside                  tables of K have the factors of both results side by side
--   given                   a run gives the angles: the pointers of those of K, as M.angles names them
--   space                   where the tables are, unless a run makes them
--   first, places           the first position in the tables, and their number; `first` is negative if queries stand
--                           before the first key
function M.of(cfg)
  local norm, rope = cfg.qk_norm ~= "none" and cfg.qk_norm, cfg.rope ~= "none"
  if not norm and not rope then return nil end
  local query = score.of_query({ cfg = cfg, past = 0 }, 0).place
  local first, own, given = math.min(0, query), cfg.norm_span ~= "head", M.angles(cfg)
  local interleaved = cfg.rope == "interleaved"
  return { dk = cfg.dk, norm = norm, all = cfg.norm_span == "all", eps = cfg.norm_eps,
           q_heads = own and cfg.h or nil, k_heads = own and cfg.h_kv or nil,
           pairs = rope and cfg.rope_dims // 2 or 0, interleaved = interleaved, theta = cfg.rope_theta,
           beside = interleaved and not (given[1] and isas.list[cfg.isa].lanes == 1),
           given = given[1] and { given[#given - 1].name, given[#given].name },
           space = cfg.rope_tables == "apart" and "tables" or "packed",
           first = first, places = math.max(cfg.seq_kv, query + cfg.seq) - first }
end

-- Whether tables are packed.
function M.packs(qk) return qk ~= nil and qk.pairs > 0 and not qk.given end

-- The part of a full turn by which each pair rotates from one position to the next, for tables that are not given.
function M.turns(qk) return rotation.turns(qk.theta, qk.pairs) end

-- The row stride of the tables of Q: a vector may begin at the last position.
function M.lanes_row(plan, qk) return tiles.round_up(qk.places + plan.isa.lanes - 1, memory.ALIGN) end

-- ---- the tables ----

-- Names and width of the tables of K. Beside: a table for each coordinate of a pair, with its factors in both results
-- side by side.
function M.key_tables(qk)
  if qk.pairs == 0 then return {}, 0 end
  return { qk.beside and "k_first" or "k_cos", qk.beside and "k_second" or "k_sin" },
    qk.beside and 2 * qk.pairs or qk.pairs
end

-- Adds a section of gains; it is one of each block of heads if heads have gains of their own.
local function add_gain(plan, qk, add, section)
  section.count = qk.dk * (section.heads or 1) // (section.heads and plan.head_blocks or 1)
  add(section.heads and "head" or "packed", section)
end

function M.key_sections(plan, qk, add)
  local names, width = M.key_tables(qk)
  for _, name in ipairs(M.packs(qk) and names or {}) do
    add(qk.space, { name = name, doc = "rotations of K", cols = width, count = qk.places * width })
  end
  if not qk.norm then return end
  add_gain(plan, qk, add, { name = "k_gain", doc = "gains of K", heads = qk.k_heads })
  add("projected", { name = "factors", doc = "factors of a few keys, and their means", count = 2 * plan.isa.lanes })
end

function M.query_tables(qk) return qk.pairs > 0 and { "q_cos", "q_sin" } or {} end

function M.query_sections(plan, qk, add)
  local row = M.lanes_row(plan, qk)
  for _, name in ipairs(M.packs(qk) and M.query_tables(qk) or {}) do
    add(qk.space, { name = name, doc = "rotations of Q", cols = row, count = qk.pairs * row })
  end
  if qk.norm then
    add_gain(plan, qk, add, { name = "q_gain", doc = "gains of Q, times the scale", heads = qk.q_heads })
  end
end

local function given_fill(a, fill)
  fill.scale, fill.terms, fill.rounds = fill.scale or 1.0, { { a = a, a_flipped = fill.flipped } }, fill.rounds or {}
  return fill
end

local function add_table(pack, qk, a, fill)
  fill.list = qk.space == "tables" and qk.space or nil
  pack:add(a, given_fill(a, fill))
end

local function gain_fill(pack, qk, letter, scale)
  local section, a = pack.plan.memory.sections[letter .. "_gain"], letter .. "_norm"
  local fill = given_fill(a, { to = section.offset, steps = 1, used = section.count, width = section.count,
                               scale = scale })
  if not section.heads then return pack:add(a, fill) end
  pack:add_heads({ text = a, along = "column", width = qk.dk, heads = section.heads }, fill)
end

function M.key_fills(pack, qk)
  local names, width = M.key_tables(qk)
  if qk.norm then gain_fill(pack, qk, "k", 1.0) end
  if not M.packs(qk) then return end
  if not qk.interleaved then
    for i, name in ipairs(names) do
      local a = ({ "rope_cos", "rope_sin" })[i]
      add_table(pack, qk, a, { to = pack:at(name), steps = qk.places, used = width, width = width })
    end
    return
  end
  -- (x, y) becomes x (cos, sin) + y (-sin, cos).
  for i, entries in ipairs {
    { { "rope_cos", 1.0 }, { "rope_sin", 1.0 } }, { { "rope_sin", -1.0 }, { "rope_cos", 1.0 } } } do
    for j, entry in ipairs(entries) do
      add_table(pack, qk, entry[1], {
        to = pack:at(names[i]) + j - 1, steps = 1, used = 1, width = 1, scale = entry[2],
        rounds = { { count = qk.places, to = width, row = 1 }, { count = qk.pairs, to = 2, column = 1 } } })
    end
  end
end

function M.query_fills(pack, qk)
  local row = M.lanes_row(pack.plan, qk)
  if qk.norm then gain_fill(pack, qk, "q", qk.scale) end
  if not M.packs(qk) then return end
  for i, name in ipairs(M.query_tables(qk)) do
    local a = ({ "rope_cos", "rope_sin" })[i]
    add_table(pack, qk, a, { to = pack:at(name), steps = qk.pairs, used = qk.places, width = row,
                               flipped = true })
  end
end

return M
