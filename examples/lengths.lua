-- A grid for `mhagen sweep`: one shape at every length up to 200, on two instruction sets. It takes about a
-- quarter of an hour. The report's plot over seq shows whether some lengths take longer than their flops say.
local lengths = {}
for n = 1, 200 do lengths[n] = n end

return { h = 4, d_model = 128, dk = 32, seq = lengths, isa = { "avx2", "avx512" } }
