-- A grid for `mhagen sweep`, of a minute or two: every instruction set and amount of unrolling for
-- some shapes. What this CPU does not have is skipped.
return {
  configs = { -- a list of tables is an axis of several keys
    { h = 4, d_model = 32, dk = 8, seq = 16 },
    { h = 4, d_model = 64, dk = 16, seq = 37 },
    { h = 2, d_model = 128, dk = 64, seq = 128 },
  },
  isa = { "scalar", "avx2", "avx512" },
  unroll = { "auto", "tile", "k", "full" },
  kv_len = { false, true },

  -- Of the product of all axes, these. No library is there, only Lua itself.
  where = function(c)
    if c.unroll == "full" then return c.seq <= 16 and c.isa ~= "scalar" end -- micro shapes
    return not c.kv_len or c.unroll == "auto"
  end,
}
