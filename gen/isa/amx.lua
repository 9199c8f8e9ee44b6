-- AMX: AVX-512 with tile registers. Their products are of pairs of bfloat16 and of signed bytes.
--
-- A tile has 16 rows of 16 words. C = A B + C takes 16 K steps: the 16 words of each row of A, and the 16 rows of B.
-- The operand of ldtilecfg is a constant, since gcc declares only 8 of its bytes. Compilers do not know that tile loads
-- and stores access memory.

local avx512_bf16 = require "isa.avx512_bf16"
local extend = require "isa.extend"
local powers = require "isa.powers"
local x86 = require "isa.x86"

local features = "avx512dq,avx512vl,avx512bf16,avx512vnni,avx512vbmi,fma,amx-tile,amx-bf16,amx-int8"

local SIZE = 16

-- Two by two tiles of sums, with as many rows or less.
local rows = { columns = { 2 * SIZE, 2 * SIZE }, rows = { 2 * SIZE, 2 * SIZE } }

return extend(avx512_bf16, {
  name = "amx",
  title = "x86-64 with AVX-512 as above and VBMI, and AMX with BF16 and INT8",
  cpu = "MHAGEN_CPU_AMX",
  begin = x86.begin(features),
  cpuinfo = x86.cpuinfo(features),
  tile = SIZE,
  products = { ["bf16 bf16"] = { way = "tile", op = "dot", tiled = "tile_dot", group = 2, rows = rows,
                                 powers = "powers",
                                 vectors = avx512_bf16.products["bf16 bf16"].rows },
               ["int8 int8"] = { way = "tile", op = "dot_bytes", tiled = "tile_dot_bytes", group = 4, rows = rows } },
  -- A shift would take the one port of vectors that products of tiles leave to FMAs.
  widths = { { shifted = "_mm512_multishift_epi64_epi8(\n      _mm512_set1_epi64(0x0032002200120002), words)" } },
  helpers = {
    powers = powers.helper({ type = "uint8_t", columns = 22 },
      "_mm512_maskz_permutexvar_epi8(\n      0x5555555555555555, $places, _mm512_load_si512(parts))"),
    tiles_on = [[
/* Tile registers: accumulators C<row><column> of 2 x 2 tiles, operands A<row> and B<column>. */
#define C00 0
#define C01 1
#define C10 2
#define C11 3
#define A0 4
#define A1 5
#define B0 6
#define B1 7

/* Configures all tiles as 16 rows of 64 bytes, and zeroes them. */
static inline void tiles_on(void) {
  static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } shapes = {
      .palette = 1,
      .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
      .rows = {16, 16, 16, 16, 16, 16, 16, 16},
  };
  _tile_loadconfig(&shapes);
}

/* The clobbers tell compilers that these access memory. `step`, from row to row, is in words. */
#define tile_load(tile, p, step) \
  do { \
    __asm__ volatile("" ::: "memory"); \
    _tile_loadd(tile, p, 4 * (step)); \
  } while (0)
#define tile_stream(tile, p, step) \
  do { \
    __asm__ volatile("" ::: "memory"); \
    _tile_stream_loadd(tile, p, 4 * (step)); \
  } while (0)
#define tile_store(tile, p, step) \
  do { \
    __asm__ volatile("" ::: "memory"); \
    _tile_stored(tile, p, 4 * (step)); \
    __asm__ volatile("" ::: "memory"); \
  } while (0)
]],
  },
  rows = {
    tiles_on = "tiles_on()",
    tiles_off = "_tile_release()",
    tile_zero = "_tile_zero($1)",
    tile_load = "tile_load($1, $2, $3)",
    tile_stream = "tile_stream($1, $2, $3)",
    tile_store = "tile_store($1, $2, $3)",
    tile_dot = "_tile_dpbf16ps($1, $2, $3)",
    tile_dot_bytes = "_tile_dpbssd($1, $2, $3)",
  },
})
