-- The names of values in the text of a kernel.
--
--   of(functions)             rows { name, meaning } for the names that these functions use
--   unexplained(functions)    a short name without a row, or nil
--
-- Whole words need no row. Names that begin with fewer than three letters have one here, and so has `acc`.

local M = {}

-- { pattern of names, as the legend has it, meaning }
M.rows = {
  { "^acc_", "acc", "accumulators of a tile" },
  { "^a_", "a", "elements of the left matrix" },
  { "^b_", "b", "vectors of the right matrix" },
  { "^x_?", "x", "scores minus m, or rows to transpose" },
  { "^m_", "m", "maxima" },
  { "^p_", "p", "weights exp2(x)" },
  { "^s_", "s", "masked scores" },
  { "^o_", "o", "context: weights times V" },
  { "^w_", "w", "weights over their sum" },
  { "^t%d", "t<n>", "a transposition in blocks of n" },
  { "^t_c%d", "t_c<vector>_<n>", "the same for several vectors" },
  { "^n$", "n", "x rounded" },
  { "^r$", "r", "x - n" },
  { "^[cp]%d$", "c<i>, p<i>", "coefficients and values of exp2's polynomial" },
  { "^c_half$", "c_half", "one half" },
  { "^s$", "s", "masked scores" },
  { "^p$", "p", "weights exp2(x)" },
}

-- { whether a node has it, as the legend has it, meaning }: what stands behind words.
M.parts = {
  { function(node) return node.dst and node.dst.name:find("_s%d+$") end,
    "<word>_s<chain>", "one of several partial sums, which are added at the end" },
  { function(node) return node.kind == "op" and node.op.name == "fma_lane" end,
    "<word>..[<lane>]", "a lane of a vector, in GNU C: lane intrinsics take only constants" },
}

local function explained(name)
  for i, row in ipairs(M.rows) do
    if name:find(row[1]) then return i end
  end
end

local function each_node(functions, visit)
  local function scan(body)
    for _, node in ipairs(body or {}) do
      visit(node)
      scan(node.body)
      scan(node.otherwise)
    end
  end
  for _, fn in ipairs(functions) do scan(fn.body) end
end

local function each_name(functions, visit)
  each_node(functions, function(node)
    if node.dst and not node.updates then visit(node.dst.name) end
  end)
end

-- The rows that the names of some functions need: { as the legend has it, meaning } each.
function M.of(functions)
  local used, list, told = {}, {}, {}
  each_name(functions, function(name) used[explained(name) or 0] = true end)
  for i, row in ipairs(M.rows) do
    if used[i] and not told[row[2]] then list[#list + 1] = { row[2], row[3] } end
    if used[i] then told[row[2]] = true end
  end
  local found = {}
  each_node(functions, function(node)
    for i, part in ipairs(M.parts) do found[i] = found[i] or part[1](node) end
  end)
  for i, part in ipairs(M.parts) do
    if found[i] then list[#list + 1] = { part[2], part[3] } end
  end
  return list
end

-- A name that is too short to speak for itself and has no row, or nil.
function M.unexplained(functions)
  local found
  each_name(functions, function(name)
    if #name:match("^%a*") < 3 and not explained(name) then found = name end
  end)
  return found
end

return M
