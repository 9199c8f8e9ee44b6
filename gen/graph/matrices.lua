-- The given matrices of a kernel. Everything that lists matrices reads this list.
--
--   name       of the pointer in mhagen_weights
--   size(cfg)  rows and columns, where y = x W; nothing for a config without the matrix
--   projects   the letter of `project` that asks for it
--   key        of a config: what asks for it
--   required   a null pointer is an error
--   null       otherwise, what a null pointer stands for: zeros, ones, or the cosines or sines of rope's angles; a row
--              of gen/score may define other numbers
--   table      it is a table of rope, which `rope_tables=apart` packs separately

local kinds = require "options.kinds"
local qk_of = require "graph.qk"

local M = {}

-- The extents of a projection by its letter: rows and columns.
local extents = {
  q = function(cfg) return cfg.d_model, cfg.h * cfg.dk end,
  k = function(cfg) return cfg.k_width, cfg.h_kv * cfg.dk end,
  v = function(cfg) return cfg.v_width, cfg.h_kv * cfg.dv end,
  o = function(cfg) return cfg.h * cfg.dv, cfg.y_width end,
}

local function weights(letter)
  return { name = "w" .. letter, projects = letter, required = true, null = "zeros", size = extents[letter] }
end

local function bias(letter)
  return { name = "b" .. letter, projects = letter, null = "zeros", size = function(cfg)
    return 1, select(2, extents[letter](cfg))
  end }
end

local function gain(name, heads)
  return { name = name, key = "qk_norm", null = "ones", size = function(cfg)
    local qk = qk_of.of(cfg)
    if qk and qk.norm then return 1, qk.dk * (qk[heads] or 1) end
  end }
end

local function table_of_rope(name, null)
  return { name = name, null = null, table = true, size = function(cfg)
    local qk = qk_of.of(cfg)
    if qk_of.packs(qk) then return qk.places, qk.pairs end
  end }
end

-- One number for each head; the matrix has the name of the key.
local function of_heads(key)
  return { name = key, key = key, null = "zeros", size = function(cfg) if cfg[key] then return 1, cfg.h end end }
end

-- Gains of a norm of rows, or its biases, which only a layer norm has. Norm 1 belongs to attention, norm 2 to the
-- feed-forward; 1b and 2b normalize their outputs.
local function of_norm(number, word, null)
  return { name = "norm" .. number .. word, key = "norm", null = null, size = function(cfg)
    if cfg.norm == "none" or word == "_bias" and cfg.norm_kind ~= "layer" or number == 2 and cfg.ffn == 0
      or number == 1 and cfg.norm == "ffn"
      or word == "b" and cfg.norm ~= "sandwich" or number == 2 and word ~= "b" and cfg.parallel then return nil end
    return 1, number == 1 and word ~= "b" and cfg.norm ~= "post" and cfg.d_model or cfg.y_width
  end }
end

-- A matrix of the feed-forward, or its bias. W3 is that of a gate.
local function feed_forward(letter, number, size)
  local key = number == 3 and "ffn_gate" or "ffn"
  return { name = letter .. number, key = key, required = letter == "w", null = "zeros", size = function(cfg)
    if cfg.ffn > 0 and (number < 3 or cfg.ffn_gate) then return size(cfg) end
  end }
end

local function up(cfg) return cfg.y_width, cfg.ffn end
local function down(cfg) return cfg.ffn, cfg.y_width end
local function of_up(cfg) return 1, cfg.ffn end
local function of_down(cfg) return 1, cfg.y_width end

-- Gains of the output of attention or of the feed-forward, before it is added: the layer scale of CaiT and DINOv2. They
-- are part of weights, so an activation function between the two leaves no room for them.
local function gain_of_branch(number)
  local key = number == 1 and "residual" or "ffn"
  return { name = "gain" .. number, key = key, null = "ones", size = function(cfg)
    local first = cfg.residual and cfg.out_act == "none"
    if number == 1 and first or number == 2 and cfg.ffn > 0 then return 1, cfg.y_width end
  end }
end

local list = {
  weights "q", weights "k", weights "v", weights "o", bias "q", bias "k", bias "v", bias "o",
  gain("q_norm", "q_heads"), gain("k_norm", "k_heads"),
  table_of_rope("rope_cos", "cosines"), table_of_rope("rope_sin", "sines"),
  of_heads "alibi", of_heads "sink",
  of_norm(1, "", "ones"), of_norm(1, "_bias", "zeros"), of_norm(2, "", "ones"), of_norm(2, "_bias", "zeros"),
  of_norm(1, "b", "ones"), of_norm(2, "b", "ones"),
  feed_forward("w", 1, up), feed_forward("b", 1, of_up), feed_forward("w", 3, up), feed_forward("b", 3, of_up),
  feed_forward("w", 2, down), feed_forward("b", 2, of_down),
  gain_of_branch(1), gain_of_branch(2),
}

-- The matrices, their names, and their pointers as tools see them.
M.list, M.names, M.told = {}, {}, {}

-- Adds a row.
function M.add(matrix)
  local i = #M.list + 1
  M.list[i], M.names[i], M.told[i] = matrix, matrix.name, { pointer = matrix.name, required = matrix.required }
end

for _, matrix in ipairs(list) do M.add(matrix) end

-- Whether a config has the projection with this letter.
function M.projects(cfg, letter) return kinds.letters_of(cfg.project):find(letter, 1, true) ~= nil end

-- The matrices of a config: { matrix, rows, columns } each.
function M.of(cfg)
  local list = {}
  for _, matrix in ipairs(M.list) do
    if not matrix.projects or M.projects(cfg, matrix.projects) then
      local rows, columns = matrix.size(cfg)
      if rows then list[#list + 1] = { matrix = matrix, rows = rows, columns = columns } end
    end
  end
  return list
end

-- The sizes of the matrices of a config by name: { rows, columns }, zeros for projections that it does not have.
function M.sizes(cfg)
  local sizes = {}
  for _, matrix in ipairs(M.list) do sizes[matrix.name] = matrix.projects and { 0, 0 } end
  for _, of in ipairs(M.of(cfg)) do sizes[of.matrix.name] = { of.rows, of.columns } end
  return sizes
end

-- The required matrices, as pointers that a kernel needs (options/rows.lua).
function M.needs(cfg)
  local list = {}
  for _, of in ipairs(M.of(cfg)) do
    if of.matrix.required then list[#list + 1] = { pointer = of.matrix.name } end
  end
  return list
end

return M
