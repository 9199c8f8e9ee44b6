-- A grid for `mhagen sweep`: instruction sets, widths of groups of queries and levels of unrolling for some shapes. It
-- takes a minute or two. Instruction sets that this CPU does not have are skipped.
return {
  configs = { -- a list of tables is an axis of several keys
    { h = 4, d_model = 32, dk = 8, seq = 16 },
    { h = 4, d_model = 64, dk = 16, seq = 37 },
    { h = 2, d_model = 128, dk = 64, seq = 128 },
  },
  isa = { "scalar", "avx2", "avx512" },
  unroll = { "auto", "full" },
  query_vectors = { 1, 2 },
  kv_len = { false, true },

  -- The configs to take of the product of all axes. Lua's library is not available here.
  where = function(c)
    if c.unroll == "full" then return c.seq <= 16 and c.isa ~= "scalar" end -- micro shapes
    return not c.kv_len or c.query_vectors == 1
  end,
}
