-- The keys of the schedule, as rows like those of options/rows.lua. The plan chooses what is not given.

local isas = require "isa.init"

-- What any ISA allows. The plan knows what the ISA of a config allows.
local most_rows, most_vectors = 0, 0
for _, isa in ipairs(isas.list) do
  for _, product in pairs(isa.products) do
    for _, rows in pairs(product.rows) do
      most_rows, most_vectors = math.max(most_rows, rows[1]), math.max(most_vectors, #rows)
    end
  end
end

return {
  { key = "query_vectors", kind = "integer", min = 1, max = most_vectors,
    doc = "vectors of queries in one group", draw = { from = 1, to = 4 } },
  { key = "key_rows", kind = "integer", min = 1, max = most_rows,
    doc = "keys in a score tile", draw = { from = 1, to = 16 } },
  { key = "context_rows", kind = "integer", min = 1, max = most_rows,
    doc = "value columns in a context tile", draw = { from = 1, to = 16 } },
  { key = "q_lanes", kind = "choice", choices = { "queries", "columns" },
    doc = "what the lanes of a vector are in the query projection",
    draw = { chance = 0.5, of = { "queries", "columns" } } },
  { key = "qkv", kind = "choice", choices = { "separate", "joint" },
    doc = "separate products for projections of the same rows, or one joint product",
    draw = { chance = 0.3, of = { "separate", "joint" } } },
  { key = "q_rows", kind = "integer", min = 1, max = most_rows,
    doc = "rows of a register tile of the query projection", draw = { from = 1, to = 16 } },
  { key = "kv_rows", kind = "integer", min = 1, max = most_rows,
    doc = "rows of a register tile of the key and value projections", draw = { from = 1, to = 16 } },
  { key = "kv_vectors", kind = "integer", min = 1, max = most_vectors,
    doc = "width of a register tile of the key and value projections, in vectors", draw = { from = 1, to = 4 } },
  { key = "out_rows", kind = "integer", min = 1, max = most_rows,
    doc = "rows of a register tile of the output projection", draw = { from = 1, to = 16 } },
  { key = "out_vectors", kind = "integer", min = 1, max = most_vectors,
    doc = "width of a register tile of the output projection, in vectors", draw = { from = 1, to = 4 } },
  { key = "key_block", kind = "integer", min = 1, max = 4096,
    doc = "keys per softmax block; at most 64 with attend_dtype = f32", draw = { from = 1, to = 64 } },
  { key = "k_block", kind = "integer", min = 16, max = 256,
    why = "longer sums may err by more than mhagen_kernel.error",
    doc = "most K steps in one chain of a sum; shorter chains have smaller errors", draw = { from = 16, to = 64 } },
  { key = "head_block", kind = "integer", min = 1, max = 64, divides = "h", multiple = { "h", "h_kv" },
    doc = "heads projected together; divides h, a multiple of h / h_kv", draw = { from = 1, to = 8 } },
  { key = "fetch", kind = "choice", choices = { "none", "panels", "shares", "ahead" },
    doc = "weights that a row tile prefetches; panels: the whole next panel, into L1; shares: its share of the next " ..
      "panel, into L2; ahead: its own, 2 KB ahead, or 8 KB if they are dequantized",
    draw = { chance = 0.1, of = { "none", "panels", "shares", "ahead" } } },
  { key = "code_limit", kind = "integer", min = 1000, max = 10000000, default = 60000, schedule = false,
    doc = "most statements of the kernel's functions" },
}
