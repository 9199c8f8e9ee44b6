-- A grid for `mhagen sweep`, of a quarter of an hour: one shape at every length up to 200, on two
-- instruction sets. The report's plot over seq shows whether some lengths are dearer than their flops.
local lengths = {}
for n = 1, 200 do lengths[n] = n end

return { h = 4, d_model = 128, dk = 32, seq = lengths, isa = { "avx2", "avx512" } }
