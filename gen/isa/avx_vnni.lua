-- AVX2 with AVX-VNNI, as Intel's cores have it from Alder Lake on, and Zen 5: sums of products of four bytes.

local avx2 = require "isa.avx2"
local extend = require "isa.extend"
local x86 = require "isa.x86"

local features = "avx2,fma,f16c,avxvnni"

return extend(avx2, {
  name = "avx_vnni",
  title = "x86-64 with AVX2, FMA, F16C and AVX-VNNI",
  cpu = "MHAGEN_CPU_AVX_VNNI",
  begin = x86.begin(features),
  cpuinfo = x86.cpuinfo(features),
  asks = {},
  products = { ["int8 int8"] = { way = "outer", op = "dot_unsigned", group = 4, unsigned = true,
                                 rows = { columns = { 8, 5, 3 }, rows = { 8, 5, 3 } } } },
  widths = { {} },
  rows = {
    flip_bytes = "_mm256_xor_si256($1, _mm256_set1_epi32((int)0x80808080))",
    dot_unsigned = "_mm256_dpbusd_avx_epi32($3, $1, $2)",
  },
})
