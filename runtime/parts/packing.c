/* sin(2 pi (x + quarters / 4)) for any finite x: from 2^53 on all numbers are whole turns. */
static double wave(double x, int quarters) {
  const int fits = x > -0x1p53 && x < 0x1p53;
  double part = fits ? x - (double)(int64_t)x : 0.0; /* exact */
  if (part < 0.0) part += 1.0;
  const int nearest = (int)(part * 4.0 + 0.5);
  const double a = 6.283185307179586 * (part - nearest * 0.25), square = a * a;
  const int quarter = (nearest + quarters) & 3;
  double sum = 0.0; /* Taylor's series, |a| <= pi / 4 */
  for (int i = quarter & 1 ? 16 : 17; i > 1; i -= 2) sum = (1.0 - sum) * square / (i * (i - 1));
  const double value = (quarter & 1 ? 1.0 : a) * (1.0 - sum);
  return quarter & 2 ? -value : value;
}

/* A given matrix as a term reads it: element (row, column) is at[row * row_step + column *
 * column_step], or if at is null that number of a matrix instead. */
typedef struct view {
  const float *at;
  ptrdiff_t row_step, column_step;
  const mhagen_packing *packing;
  const mhagen_matrix *of;
} view;

static int is_table(const mhagen_matrix *m) {
  return m->null == MHAGEN_COSINES || m->null == MHAGEN_SINES;
}

/* A number of a matrix whose pointer is null. */
static double instead(const mhagen_packing *packing, const mhagen_matrix *m, ptrdiff_t i) {
  if (!is_table(m)) return m->null == MHAGEN_ONES ? 1.0 : 0.0;
  const double place = (double)(i / m->columns + packing->rope_first);
  return wave(place * packing->rope_turns[i % m->columns], m->null == MHAGEN_COSINES);
}

static view view_of(const mhagen_packing *packing, const mhagen_weights *weights, int matrix,
                    int flipped) {
  const view none = {NULL, 0, 0, packing, NULL};
  if (matrix == MHAGEN_NONE) return none;
  const mhagen_matrix *const m = packing->matrices + matrix;
  const float *at;
  memcpy(&at, (const char *)weights + m->at, sizeof at);
  view v = {at ? at : m->instead, m->columns, 1, packing, m};
  if (weights->layout == MHAGEN_OUT_IN && !is_table(m)) v.row_step = 1, v.column_step = m->rows;
  const view turned = {v.at, v.column_step, v.row_step, packing, m};
  return flipped ? turned : v;
}

static double element(view v, ptrdiff_t row, ptrdiff_t column) {
  const ptrdiff_t i = row * v.row_step + column * v.column_step;
  return v.at ? (double)v.at[i] : instead(v.packing, v.of, i);
}

/* Adds element (row, column) of a term to a sum. */
static double add_term(const mhagen_pack_term *t, view a, view b, ptrdiff_t row, ptrdiff_t column,
                       double sum) {
  if (t->b == MHAGEN_NONE) return sum + element(a, row, column);
  for (ptrdiff_t i = t->first; a.at && i < t->first + t->inner; ++i) {
    sum += element(a, row, i) * element(b, i, column);
  }
  return sum;
}

/* The bits of the nearest bfloat16, ties to even. */
static uint32_t to_bf16(double x) {
  const float f = (float)x;
  const double size = x < 0.0 ? -x : x, rounded = f < 0.0f ? -(double)f : (double)f;
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if (x != x) return bits >> 16 | 0x40;
  if (rounded > size) --bits; /* towards zero, and odd if inexact: rounding again is as once */
  if (rounded != size) bits |= 1;
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

/* The same of half precision. */
static uint32_t to_f16(double x) {
  const double size = x < 0.0 ? -x : x;
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = (uint32_t)(bits >> 48 & 0x8000);
  if (x != x) return sign | 0x7E00;
  if (size >= 65520.0) return sign | 0x7C00;
  if (size < 0x1p-14) { /* so many times 2^-24 */
    const uint32_t count = (uint32_t)(size * 0x1p24);
    const double part = size * 0x1p24 - count;
    return sign | (count + (part > 0.5 || (part == 0.5 && count % 2 != 0)));
  }
  const uint64_t half = (bits << 1 >> 43) - ((UINT64_C(1023) - 15) << 10);
  const uint64_t rest = bits & ((UINT64_C(1) << 42) - 1), middle = UINT64_C(1) << 41;
  return sign | (uint32_t)(half + (rest > middle || (rest == middle && half % 2 != 0)));
}

/* Bits of these types as a float. */
static float of_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static float of_bf16(uint32_t bits) { return of_bits(bits << 16); }

static float of_f16(uint32_t bits) {
  const uint32_t sign = (bits & 0x8000) << 16, size = (bits & 0x7FFF) << 13;
  if (size < UINT32_C(1) << 23) { /* so many times 2^-24 */
    const float x = (float)(bits & 0x3FF) * 0x1p-24f;
    return sign ? -x : x;
  }
  const uint32_t more = size < UINT32_C(31) << 23 ? 127 - 15 : 255 - 31; /* of the exponent */
  return of_bits(sign | (size + (more << 23)));
}

/* Steps and columns at a time: blocks keep cache lines of matrices that are read along either, and
 * what does not depend on a column is decided once. */
enum { STEPS = 8, COLUMNS = 32 };

/* For each scale that is tried for a group, by column and over its steps so far: the sum of the
 * integers times the numbers, and the sum of the squares of the integers. */
enum { TRIED = 12 };

typedef struct fits { int32_t products[TRIED][COLUMNS], squares[TRIED][COLUMNS]; } fits;

/* Where a step of a panel is written. */
typedef struct step_place {
  double scale;          /* of the fill */
  float *words;          /* the row of words with its numbers, */
  ptrdiff_t apart;       /* from one column to the next one; */
  int shift;             /* and their lowest bit in a word */
  float *scales, *sums; /* of quants: the rows of their scales and sums, or null; */
  double least, most;    /* the least and the largest integer; */
  uint32_t mask;         /* the bits of one; */
  int begins, last;      /* whether no step before it, or behind it, shares its scale */
  ptrdiff_t together;    /* columns whose numbers of a step lie together, or 0 */
  fits *fits;            /* of the columns that are written */
} step_place;

static ptrdiff_t at_most(ptrdiff_t count, ptrdiff_t most) { return count < most ? count : most; }

static step_place place_of(const mhagen_packing *packing, const mhagen_pack_fill *fill, int bits,
                      float *panel, ptrdiff_t step) {
  const ptrdiff_t deep = bits < 32 && packing->deep > 1 ? packing->deep : 1, in_word = 32 / bits;
  const ptrdiff_t row = step / in_word, behind = row % deep; /* words side by side */
  const ptrdiff_t words = ((fill->steps + in_word - 1) / in_word + deep - 1) / deep * deep;
  step_place to = {fill->scale, panel + (row - behind) * fill->width + behind, deep,
              (int)(step % in_word) * bits, NULL, NULL, 0.0, 0.0, 0, 0, 0, packing->apart,
              NULL};
  if (bits > 8) return to;
  if (bits == 4 && packing->quant_bytes) to.shift = (int)(step % 4 * 8 + step % 8 / 4 * 4);
  const ptrdiff_t given = bits == packing->quant_bits ? packing->quant_group : 0;
  const ptrdiff_t group = given ? given : fill->steps;
  const ptrdiff_t scales = (fill->steps + group - 1) / group, before = step / group;
  ptrdiff_t end = words;
  if (given && packing->quant_beside) {
    to.words += before * fill->width;
    end = at_most((before + 1) * group / in_word, words);
  }
  to.scales = panel + (end + before) * fill->width;
  if (packing->quant_sums) to.sums = panel + (words + scales) * fill->width;
  to.most = (double)((1 << (bits - 1)) - 1);
  to.least = bits < 8 ? -to.most - 1.0 : -to.most; /* of sixteen integers the last one counts */
  to.mask = (1u << bits) - 1;
  to.begins = step % group == 0;
  to.last = step + 1 == fill->steps || (step + 1) % group == 0;
  return to;
}

/* Writes the numbers of columns first..end - 1, from the sums of the terms. */
typedef void (*write_columns)(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums);

static void write_floats(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  for (ptrdiff_t c = first; c < end; ++c) to.words[c] = (float)(to.scale * *sums++);
}

/* Adds to a word modulo 2^32; in zeros that sets bits. */
static void add_bits(float *at, uint32_t bits) {
  uint32_t word;
  memcpy(&word, at, sizeof word);
  word += bits;
  memcpy(at, &word, sizeof word);
}

static void write_bf16(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  for (ptrdiff_t c = first; c < end; ++c) {
    add_bits(to.words + c * to.apart, to_bf16(to.scale * *sums++) << to.shift);
  }
}

static void write_f16(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  const ptrdiff_t n = to.together;
  for (ptrdiff_t c = first; c < end; ++c) {
    const uint32_t bits = to_f16(to.scale * *sums++);
    if (n > 0) { /* number `at` of 16 bits, two in a word */
      const ptrdiff_t at = (2 * (c / n) + to.shift / 16) * n + c % n;
      add_bits(to.words + at / 2, bits << at % 2 * 16);
    } else {
      add_bits(to.words + c * to.apart, bits << to.shift);
    }
  }
}

static void write_rounded_bf16(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  for (ptrdiff_t c = first; c < end; ++c) {
    to.words[c] = of_bf16(to_bf16(to.scale * *sums++));
  }
}

static void write_rounded_f16(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  for (ptrdiff_t c = first; c < end; ++c) {
    to.words[c] = of_f16(to_f16(to.scale * *sums++));
  }
}

/* The largest scale that a number of a group asks for; NaN stays. */
static void write_scales(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  for (ptrdiff_t c = first; c < end; ++c) {
    float *const at = to.scales + c;
    const float largest = *at < 0.0f ? -*at : *at, scale = (float)(*sums++ / to.least);
    const float size = scale < 0.0f ? -scale : scale;
    if (*at == *at && !(size <= largest)) *at = to.least < -to.most ? scale : size;
  }
}

/* Tries scales of nibbles: 8/7 of the one that is there, which is the largest number over -8, then
 * 8/7.25, .., 8/9.75. The best one's integers have the scale of least squares. Sums are of
 * integers, with numbers in 1024ths of the scale that is there: no machine rounds otherwise. */
static void write_fits(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  int32_t numbers[COLUMNS];
  if (to.begins) memset(to.fits, 0, sizeof *to.fits);
  for (ptrdiff_t c = first; c < end; ++c) {
    const float own = to.scales[c];
    const int finite = own >= -FLT_MAX && own <= FLT_MAX;
    const double exact = finite && own != 0.0f ? sums[c - first] / (double)own : 0.0;
    const double most = exact > 8.0 ? 8.0 : exact; /* as with scales of few digits, below 2^-126 */
    numbers[c - first] = (int32_t)((most < -8.0 ? -8.0 : most) * 1024.0 + 8192.5) - 8192;
  }
  for (int i = 0; i < TRIED; ++i) {
    for (ptrdiff_t c = 0; c < end - first; ++c) {
      const int32_t above = numbers[c] * (28 + i) + 17 * 16384; /* -8.5, in 32768ths */
      const int32_t level = (above < 0 ? 0 : above) / 32768;
      const int32_t integer = (level > 15 ? 15 : level) - 8;
      to.fits->products[i][c] += integer * numbers[c];
      to.fits->squares[i][c] += integer * integer;
    }
  }
  for (ptrdiff_t c = first; to.last && c < end; ++c) {
    double best = 0.0, scale = 0.0;
    for (int i = 0; i < TRIED; ++i) {
      const double product = to.fits->products[i][c - first] / 1024.0;
      const double square = to.fits->squares[i][c - first];
      if (square > 0.0 && product * product / square > best) {
        best = product * product / square;
        scale = product / square;
      }
    }
    if (best > 0.0) to.scales[c] = (float)(scale * (double)to.scales[c]);
  }
}

/* The nearest integer, ties to even, for |x| <= 127; without a branch, which would be
 * unpredictable. */
static int to_integer(double x) {
  const int low = (int)(x + 128.0) - 128; /* or one more, where x is almost that */
  const double part = x - low;
  return low + ((part > 0.5) | ((part == 0.5) & low & 1));
}

/* The scales are known; after the last step of its group, each becomes the scale of products. */
static void write_quants(step_place to, ptrdiff_t first, ptrdiff_t end, const double *sums) {
  for (ptrdiff_t c = first; c < end; ++c) {
    float *const at = to.scales + c;
    const int finite = *at >= -FLT_MAX && *at <= FLT_MAX;
    const double sum = *sums++;
    double exact = finite && *at != 0.0f ? sum / (double)*at : 0.0;
    if (exact > to.most) exact = to.most; /* and see to scales of few digits, below 2^-126 */
    if (exact < to.least) exact = to.least;
    const uint32_t integer = (uint32_t)to_integer(exact);
    add_bits(to.words + c * to.apart, (integer & to.mask) << to.shift);
    if (to.sums) add_bits(to.sums + c, integer * (uint32_t)-128);
    if (to.last) *at = (float)(to.scale * (double)*at);
  }
}

/* The gains of the columns of a fill; `of` is null where there are none. */
static view gains_of(const mhagen_packing *packing, const mhagen_weights *weights,
                     const mhagen_pack_fill *fill) {
  int i = 0;
  while (i < packing->gain_count && packing->gains[i].term != fill->term) ++i;
  const int none = i == packing->gain_count;
  return view_of(packing, weights, none ? MHAGEN_NONE : packing->gains[i].matrix, 0);
}

static void write_panel(const mhagen_packing *packing, const mhagen_pack_fill *fill, int bits,
                        const mhagen_weights *weights, const mhagen_pack_term *terms,
                        write_columns write, float *panel) {
  view a[MHAGEN_PACK_TERMS], b[MHAGEN_PACK_TERMS];
  const view gains = gains_of(packing, weights, fill);
  for (int i = 0; i < fill->terms; ++i) {
    a[i] = view_of(packing, weights, terms[i].a, terms[i].a_flipped);
    b[i] = view_of(packing, weights, terms[i].b, terms[i].b_flipped);
  }
  fits tried;
  for (ptrdiff_t c0 = 0; c0 < fill->width; c0 += COLUMNS) {
    const ptrdiff_t columns = at_most(fill->width - c0, COLUMNS);
    const ptrdiff_t used = at_most(fill->used - c0, columns);
    for (ptrdiff_t k0 = 0; k0 < fill->steps; k0 += STEPS) {
      const ptrdiff_t steps = at_most(fill->steps - k0, STEPS);
      double sums[STEPS][COLUMNS] = {{0}};
      for (int i = 0; i < fill->terms; ++i) {
        const ptrdiff_t row = terms[i].row + k0, column = terms[i].column + c0;
        for (ptrdiff_t c = 0; c < used; ++c) {
          for (ptrdiff_t k = 0; k < steps; ++k) {
            sums[k][c] = add_term(&terms[i], a[i], b[i], row + k, column + c, sums[k][c]);
          }
        }
      }
      for (ptrdiff_t c = 0; gains.of && c < used; ++c) {
        const double gain = element(gains, 0, terms[0].column + c0 + c);
        for (ptrdiff_t k = 0; k < steps; ++k) sums[k][c] *= gain;
      }
      for (ptrdiff_t k = 0; k < steps; ++k) {
        step_place to = place_of(packing, fill, bits, panel, k0 + k);
        to.fits = &tried;
        write(to, c0, c0 + columns, sums[k]);
      }
    }
  }
}

/* Runs the rounds of a fill from number `round` on. Each round moves the panel and the terms on. */
static void write_rounds(const mhagen_packing *packing, const mhagen_pack_fill *fill, int bits,
                         const mhagen_weights *weights, int round, const mhagen_pack_term *at,
                         write_columns write, float *panel) {
  if (round == MHAGEN_PACK_ROUNDS) {
    write_panel(packing, fill, bits, weights, at, write, panel);
    return;
  }
  const mhagen_pack_round r = fill->rounds[round];
  mhagen_pack_term terms[MHAGEN_PACK_TERMS];
  for (int i = 0; i < fill->terms; ++i) terms[i] = at[i];
  for (ptrdiff_t n = 0; n == 0 || n < r.count; ++n) {
    write_rounds(packing, fill, bits, weights, round + 1, terms, write, panel + n * r.to);
    for (int i = 0; i < fill->terms; ++i) {
      terms[i].row += r.row;
      terms[i].column += r.column;
      terms[i].first += r.first;
    }
  }
}

/* bits: those of a number. */
static void write_fills(const mhagen_packing *packing, const mhagen_pack_fill *fills, int count,
                        int bits, const mhagen_weights *weights, write_columns write,
                        float *packed) {
  for (int i = 0; i < count; ++i) {
    const mhagen_pack_term *terms = packing->terms + fills[i].term;
    write_rounds(packing, &fills[i], bits, weights, 0, terms, write, packed + fills[i].to);
  }
}

static void write_all(const mhagen_packing *p, const mhagen_weights *weights, float *packed) {
  write_fills(p, p->fills, p->fill_count, 32, weights, write_floats, packed);
  write_fills(p, p->rounded, p->rounded_count, 32, weights,
              p->f16 ? write_rounded_f16 : write_rounded_bf16, packed);
  write_fills(p, p->pairs, p->pair_count, 16, weights, p->f16 ? write_f16 : write_bf16, packed);
  write_fills(p, p->quants, p->quant_count, p->quant_bits, weights, write_scales, packed);
  if (p->quant_bits == 4) write_fills(p, p->quants, p->quant_count, 4, weights, write_fits, packed);
  write_fills(p, p->quants, p->quant_count, p->quant_bits, weights, write_quants, packed);
  write_fills(p, p->value_quants, p->value_quant_count, 8, weights, write_scales, packed);
  write_fills(p, p->value_quants, p->value_quant_count, 8, weights, write_quants, packed);
}

/* Compilers may divide by zero where the quotient is not used, so traps are off. */
void mhagen_pack(const mhagen_packing *p, const mhagen_weights *weights, void *packed) {
  const environment before = get_environment();
  set_environment(without_traps(before));
  if (p->bytes > 0) {
    memset(packed, 0, p->bytes); /* the gaps between sections too */
    memcpy(packed, &p->fingerprint, sizeof p->fingerprint);
  }
  for (; p; p = p->beside) write_all(p, weights, packed);
  set_environment(before);
}
