-- The contract between the emitters and the ISAs: every primitive, its signature, its meaning.
--
-- Signature: letters of the operands, and left of the arrow that of the result.
--
--   f, i, m        vector of float32; vector of int32; mask
--   c              condition (C int)
--   a, y, b, u, h  address of floats or words; of bytes; of signed bytes; of bfloat16; of half precision
--   e              a float or word in memory
--   n, s, x        integer literal; float literal; integer expression, converted to float
--   t              a tile register by its name
--
-- `ref` is the meaning of lane i of the result, valid both as Lua and as C. A NaN is as good as any other.
--
--   a, b, c                  lane i of the operands in order; A(j), B(j): another lane
--   M(j), Y(j), S(j)         at the address: float j; byte j; signed byte j
--   U(j), H(j)               at the address: number j of bfloat16; of half precision
--   n, s, e, x               the literals, the float in memory, the integer
--   word, N(j)               the word in memory; number j of all operands in turn
--   F(x), BF16(x), F16(x)    x rounded to a type, ties to even
--   pick(c, x, y)            x if c, else y
--   BITS(x), FLOAT(x)        the bits of a float; the float of bits
--   WORD(x)                  the 32-bit word that lies in a float
--   BYTE, NIBBLE (a, n)      signed part n of a word, from the lowest on; UBYTE(a, n): unsigned; SHORT(a, n): a half
--   SHORTS(x, y)             the word of two nearest integers, the first in the low bits
--   QUAD(w, x, y, z)         the word of four bytes likewise
--   LOW(x), HIGH(x)          the halves of a word as floats; PAIR(x, y): the word of both
--   LOW_F16(x), HIGH_F16(x)  the halves of a word as half precision; PAIR_F16(x, y): the word of both
--   FLUSHED(x)               x, or zero if x is below 2^-126; LOW and HIGH are flushed too
--   POWER(x)                 the bits of 2^(x/256 - 127) as bfloat16
--   ODD(x, y)                x + y rounded to odd, and flushed: if inexact, the neighbour with an odd last bit
--
-- Other fields:
--
--   alt            another correct result
--   unfused        a result that is correct where the ISA is not fused
--   domain         a condition, written like ref: operands outside it have no meaning
--   full           the operand that is of the full width at any width
--   halves         memory has half as many words as there are lanes
--   fours          memory has four numbers for each lane
--   hint           it changes nothing
--   counted        a loop may count n
--   port           the port of a core: default "load" if it reads memory, "store" without a result, else "vector"
--   vectors        how many vectors it takes
--
-- A tile has 16 rows of 16 words. The meaning of its ops is for word i of all, row by row. A(j) and B(j) are words of
-- the first and second tile that is read, D(j) of the tile that is written. `fold` names values that start at 0; for
-- each k from 0 to 15, its expressions replace them. tiles_on comes before all other tile ops, and tiles_off after
-- them. Between calls no tiles are configured.

local list = {}
local function op(def)
  local name, sig, doc = def[1], def[2], def[3]
  local result, args = sig:match("^(.) <%-%s*(.*)$")
  local o = { name = name, sig = sig, doc = doc, result = result, args = {}, ref = def.ref,
              alt = def.alt, halves = def.halves, unfused = def.unfused, domain = def.domain,
              optional = def.optional, by = def.by, full = def.full, hint = def.hint, tile = def.tile,
              fours = def.fours, fold = def.fold, counted = def.counted, vectors = def.vectors or 1 }
  o.port = def.port or result == "-" and "store" or args:find "[aybuhe]" and "load" or "vector"
  for letter in args:gmatch("%S") do o.args[#o.args + 1] = letter end
  list[#list + 1] = o
  list[name] = o
end

-- The sum of c and the products of both halves of two words; and the words of block n of two in a vector.
local function odd(c, x, y)
  return ("ODD(FLUSHED(%s), ODD(FLUSHED(F(LOW(%s) * LOW(%s))), FLUSHED(F(HIGH(%s) * HIGH(%s)))))"):format(c, x, y, x, y)
end
local function first_word(of, n) return ("%s(2 * (%s))"):format(of, n) end
local function second_word(of, n) return ("%s(2 * (%s) + 1)"):format(of, n) end

-- Half n of the words of a vector.
local function half(of, n)
  return ("pick(%s %% 2 == 0, LOW_F16(%s(idiv(%s, 2))), HIGH_F16(%s(idiv(%s, 2))))"):format(n, of, n, of, n)
end

-- Bytes, and halves of words, of a and b in turn, of half n of each four words.
local word = "WORD(%s(4 * idiv(i, 4) + 2 * n + idiv(i %% 4, 2)))"
local a_word, b_word = word:format "A", word:format "B"
local zipped_bytes = ("QUAD(F(BYTE(%s, 2 * (i %% 2))), F(BYTE(%s, 2 * (i %% 2))), F(BYTE(%s, 2 * (i %% 2) + 1)), " ..
  "F(BYTE(%s, 2 * (i %% 2) + 1)))"):format(a_word, b_word, a_word, b_word)
local zipped_shorts = ("SHORTS(F(SHORT(%s, i %% 2)), F(SHORT(%s, i %% 2)))"):format(a_word, b_word)

local function bytes(x, y)
  local sum = {}
  for k = 0, 3 do sum[k + 1] = ("BYTE(%s, %d) * BYTE(%s, %d)"):format(x, k, y, k) end
  return table.concat(sum, " + ")
end

-- memory
op { "load",    "f <- a",     "L floats from any float-aligned address", ref = "M(i)" }
op { "load_pinned", "f <- a",   "the same, into a register: no use of the result reads memory again",
     ref = "M(i)", optional = true }
op { "load_n",  "f <- a n",   "the first n < L floats, zeros behind; touches no other float",
     ref = "pick(i < n, M(i), 0.0)" }
op { "load_bytes", "f <- y",  "L unsigned bytes from any address, each as a float", ref = "Y(i)" }
op { "load_bytes_n", "f <- y n", "the first n < L bytes, zeros behind; touches no other byte",
     ref = "pick(i < n, Y(i), 0.0)" }
op { "load_words", "i <- a",  "L words from any float-aligned address", ref = "WORD(M(i))" }
op { "store",   "- <- a f",   "all lanes to any float-aligned address", ref = "b" }
op { "store_n", "- <- a f n", "the first n < L lanes; touches no other float", ref = "b" }
-- numbers of smaller types in memory; what is stored is the nearest one: NaN stays NaN, what is beyond them becomes
-- infinite
op { "load_bf16", "f <- u",   "L bfloat16 from any 2-byte address", optional = true, ref = "U(i)" }
op { "load_bf16_n", "f <- u n", "the first n < L, zeros behind; touches no other", optional = true,
     ref = "pick(i < n, U(i), 0.0)" }
op { "store_bf16", "- <- u f", "the nearest bfloat16 of all lanes, ties to even", optional = true, ref = "BF16(b)" }
op { "store_bf16_n", "- <- u f n", "the same of the first n < L lanes; touches no other", optional = true,
     ref = "BF16(b)" }
op { "load_f16", "f <- h",    "L numbers of half precision from any 2-byte address", optional = true, ref = "H(i)" }
op { "load_f16_n", "f <- h n", "the first n < L, zeros behind; touches no other", optional = true,
     ref = "pick(i < n, H(i), 0.0)" }
op { "store_f16", "- <- h f", "the nearest number of half precision of all lanes, ties to even", optional = true,
     ref = "F16(b)" }
op { "store_f16_n", "- <- h f n", "the same of the first n < L lanes; touches no other", optional = true,
     ref = "F16(b)" }
op { "load_int8", "f <- b",   "L signed bytes from any address, each as a float", optional = true, ref = "S(i)" }
op { "load_int8_n", "f <- b n", "the first n < L, zeros behind; touches no other", optional = true,
     ref = "pick(i < n, S(i), 0.0)" }
op { "store_int8", "- <- b f", "the nearest integers of all lanes, ties to even, from -127 to 127", optional = true,
     ref = "rintf(b) + 0.0", domain = "fabsf(b) < 127.5" }
op { "store_int8_n", "- <- b f n", "the same of the first n < L lanes; touches no other", optional = true,
     ref = "rintf(b) + 0.0", domain = "fabsf(b) < 127.5" }
op { "prefetch", "- <- a",    "a hint that what is at the address, of any type, will be read", optional = true,
     hint = true, ref = "0.0", port = "load" }
op { "prefetch_far", "- <- a", "the same, for the second-level cache alone", optional = true,
     hint = true, ref = "0.0", port = "load" }
op { "dup",     "f <- e",     "one float of memory in every lane", ref = "e" }
-- constants
op { "zero",    "f <-",       "zeros", ref = "0.0", port = "none" }
op { "set",     "f <- s",     "a literal in every lane", ref = "s", port = "none" }
op { "index",   "f <- x",     "an integer in every lane, its magnitude below 2^24", ref = "x" }
op { "iota",    "f <-",       "the lane number", ref = "i", port = "none" }
-- arithmetic, round to nearest even
op { "add",     "f <- f f",   "a + b", ref = "F(a + b)" }
op { "sub",     "f <- f f",   "a - b", ref = "F(a - b)" }
op { "mul",     "f <- f f",   "a * b", ref = "F(a * b)" }
op { "div",     "f <- f f",   "a / b", ref = "F(a / b)" }
op { "sqrt",    "f <- f",     "the square root, for a from 2^-126 on", ref = "F(sqrt(a))",
     domain = "a >= FLT_MIN or isnan(a)" }
op { "fma",     "f <- f f f", "a * b + c; rounded once where the ISA says fused",
     ref = "fmaf(a, b, c)", unfused = "F(F(a * b) + c)", port = "fma" }
op { "fma_lane", "f <- f f f n", "a * (lane n of b) + c, rounded once; b is of the full width",
     ref = "fmaf(a, B(n), c)", optional = true, full = 2, counted = true, port = "fma" }
op { "max",     "f <- f f",   "the larger; NaN where b is, b or NaN where only a is; either zero",
     ref = "pick(a > b, a, b)", alt = "pick(a >= b or isnan(a), a, b)" }
op { "min",     "f <- f f",   "the smaller; NaN where b is, b or NaN where only a is; either zero",
     ref = "pick(a < b, a, b)", alt = "pick(a <= b or isnan(a), a, b)" }
op { "round",   "f <- f",     "to the nearest integer, ties to even, for |a| < 2^22; NaN stays NaN; " ..
                              "a zero of either sign",
     ref = "rintf(a)", alt = "rintf(a) + 0.0", domain = "fabsf(a) < 4194304.0 or isnan(a)" }
op { "scale2",  "f <- f f",   "a * 2^b for a in [0.5, 2) and an integer b up to 127, where that is " ..
                              "a normal number, or infinity for a = 1 and b = 128; NaN where both are; where the " ..
                              "ISA says saturates, at least 2^126 for what exp2 passes with a b above 127",
     ref = "F(a * exp2(b))",
     domain = "(isnan(a) and isnan(b)) or (a == 1.0 and b == 128.0) or (a >= 0.5 and a < 2.0 and rintf(b) == b " ..
              "and b <= 127.0 and a * exp2(b) >= FLT_MIN)" }
-- the nearest numbers of smaller types: NaN stays NaN, what is beyond them becomes infinite
op { "round_bf16", "f <- f",  "the nearest bfloat16, ties to even; a zero of either sign", optional = true,
     ref = "BF16(a)", alt = "BF16(a) + 0.0" }
op { "round_f16", "f <- f",   "the nearest number of half precision, ties to even; a zero of either sign",
     optional = true, ref = "F16(a)", alt = "F16(a) + 0.0" }
-- pairs of bfloat16 in the words of a vector, and their products, for which numbers below 2^-126 are zeros
op { "pair",    "f <- f f",   "the nearest bfloat16 of a in the low halves, of b in the high ones", optional = true,
     ref = "PAIR(BF16(FLUSHED(a)), BF16(FLUSHED(b)))", alt = "PAIR(BF16(a), BF16(b))",
     domain = "not (isnan(a) or isnan(b))" }
op { "powers",  "f <- f f",   "in the low halves 2^(a/256 - 127) as isa/powers.lua has it, in the high ones that " ..
                              "of b; NaN becomes infinity", optional = true, vectors = 9,
     ref = "FLOAT(POWER(a) + ishl(POWER(b), 16))" }
op { "store_pairs", "- <- a f", "L/2 words: the nearest bfloat16 of all lanes", optional = true, halves = true,
     ref = "PAIR(BF16(FLUSHED(B(2 * i))), BF16(FLUSHED(B(2 * i + 1))))",
     alt = "PAIR(BF16(B(2 * i)), BF16(B(2 * i + 1)))",
     domain = "not (isnan(B(2 * i)) or isnan(B(2 * i + 1)))" }
op { "dot",     "f <- f f f", "c plus the products of the high halves, plus those of the low halves of a and b",
     ref = "FLUSHED(fmaf(LOW(a), LOW(b), FLUSHED(fmaf(HIGH(a), HIGH(b), FLUSHED(c)))))", optional = true, port = "fma" }
op { "dot_odd", "f <- f f f", "c plus the sum of the products of the halves of a and b, both sums rounded to odd",
     ref = odd("c", "a", "b"), optional = true, port = "fma" }
op { "dot_odd_lane", "f <- f f f n", "the same with lane n of b, which is of the full width, for all lanes",
     ref = odd("c", "a", "B(n)"), optional = true, full = 2, port = "fma" }
op { "mmla_odd", "f <- f f f", "a block of two rows and two columns: c plus the products of two words of a row, " ..
     "which a has side by side, with two of a column, which b has; one word after the other", optional = true,
     ref = odd(odd("c", first_word("A", "idiv(i, 2)"), first_word("B", "i % 2")),
               second_word("A", "idiv(i, 2)"), second_word("B", "i % 2")), port = "fma" }
op { "low_half", "f <- f",    "the numbers in the low halves", optional = true, ref = "FLOAT(ishl(BITS(a), 16))" }
op { "high_half", "f <- f",   "the numbers in the high halves", optional = true,
     ref = "FLOAT(iand(BITS(a), 0xFFFF0000))" }
op { "zero_low_if", "f <- m f", "b, its low half zero where the mask is set", optional = true,
     ref = "pick(a, FLOAT(iand(BITS(b), 0xFFFF0000)), b)" }
op { "zero_high_if", "f <- m f", "b, its high half zero where the mask is set", optional = true,
     ref = "pick(a, FLOAT(iand(BITS(b), 0xFFFF)), b)" }
-- pairs of half precision in the words of a vector: the first number in the low half; and sums of their own type
op { "pair_f16", "f <- f f",  "the nearest numbers of half precision of a in the low halves, of b in the high ones",
     optional = true, ref = "PAIR_F16(F16(a), F16(b))", domain = "not (isnan(a) or isnan(b))" }
op { "store_pairs_f16", "- <- a f", "L/2 words: the nearest numbers of half precision of all lanes", optional = true,
     halves = true, ref = "PAIR_F16(F16(B(2 * i)), F16(B(2 * i + 1)))",
     domain = "not (isnan(B(2 * i)) or isnan(B(2 * i + 1)))" }
op { "fma_halves", "f <- f f f", "of the halves: a * b + c in half precision, rounded once", optional = true,
     port = "fma",
     ref = "PAIR_F16(F16(LOW_F16(a) * LOW_F16(b) + LOW_F16(c)), F16(HIGH_F16(a) * HIGH_F16(b) + HIGH_F16(c)))",
     domain = "not (isnan(LOW_F16(a) * LOW_F16(b) + LOW_F16(c)) or isnan(HIGH_F16(a) * HIGH_F16(b) + HIGH_F16(c)))" }
op { "fma_halves_lane", "f <- f f f n", "the same with half n of b, which is of the full width, for all halves",
     optional = true, full = 2, port = "fma",
     ref = ("PAIR_F16(F16(LOW_F16(a) * %s + LOW_F16(c)), F16(HIGH_F16(a) * %s + HIGH_F16(c)))"):format(half("B", "n"),
       half("B", "n")),
     domain = ("not (isnan(LOW_F16(a) * %s + LOW_F16(c)) or isnan(HIGH_F16(a) * %s + HIGH_F16(c)))"):format(
       half("B", "n"), half("B", "n")) }
op { "add_halves", "f <- f f", "of the halves: a + b in half precision", optional = true,
     ref = "PAIR_F16(F16(LOW_F16(a) + LOW_F16(b)), F16(HIGH_F16(a) + HIGH_F16(b)))",
     domain = "not (isnan(LOW_F16(a) + LOW_F16(b)) or isnan(HIGH_F16(a) + HIGH_F16(b)))" }
op { "load_halves", "f <- a", "the halves of L/2 words in their order, as floats", optional = true, halves = true,
     ref = "pick(i % 2 == 0, LOW_F16(M(idiv(i, 2))), HIGH_F16(M(idiv(i, 2))))" }
op { "add_pairs", "f <- f f", "the sum of each two lanes, those of a first", optional = true,
     ref = "F(N(2 * i) + N(2 * i + 1))" }
op { "mul_halves_lane", "f <- f f n", "a times half n of b, which is of the full width, in half precision",
     optional = true, full = 2, port = "fma",
     ref = ("PAIR_F16(F16(LOW_F16(a) * %s), F16(HIGH_F16(a) * %s))"):format(half("B", "n"), half("B", "n")),
     domain = ("not (isnan(LOW_F16(a) * %s) or isnan(HIGH_F16(a) * %s))"):format(half("B", "n"), half("B", "n")) }
op { "zip_halves", "f <- f f n", "words of the halves of a, from the n-th on, in the low halves, and of those of b",
     optional = true, port = "shuffle", ref = ("PAIR_F16(%s, %s)"):format(half("A", "(n + i)"), half("B", "(n + i)")),
     domain = ("not (isnan(%s) or isnan(%s))"):format(half("A", "(n + i)"), half("B", "(n + i)")) }
op { "dot_halves", "f <- f f f", "c plus the products of the low halves, plus those of the high halves, in float32",
     optional = true, port = "fma",
     ref = "fmaf(F(HIGH_F16(a)), F(HIGH_F16(b)), fmaf(F(LOW_F16(a)), F(LOW_F16(b)), c))" }
-- words of four bytes, and sums of their products
op { "store_words", "- <- a i", "all words to any float-aligned address", optional = true, ref = "b" }
op { "dup_word", "i <- e",    "one word of memory in every lane", optional = true, ref = "word" }
op { "zero_words", "i <-",    "zeros", optional = true, ref = "0", port = "none" }
op { "words",   "i <- f f f f", "L words of four numbers each, which follow each other in a, b, c and d: the " ..
                              "nearest integers as signed bytes; of NaN any bytes", optional = true,
     ref = "QUAD(N(4 * i), N(4 * i + 1), N(4 * i + 2), N(4 * i + 3))",
     domain = "fabsf(N(4 * i)) <= 127.0 and fabsf(N(4 * i + 1)) <= 127.0 and fabsf(N(4 * i + 2)) <= 127.0 and " ..
              "fabsf(N(4 * i + 3)) <= 127.0" }
op { "lane_words", "i <- f f f f", "in each lane the word of that lane of a, b, c and d, as above", optional = true,
     ref = "QUAD(a, b, c, d)",
     domain = "fabsf(a) <= 127.0 and fabsf(b) <= 127.0 and fabsf(c) <= 127.0 and fabsf(d) <= 127.0" }
op { "load_byte_words", "i <- b", "L words of four signed bytes each from any address", optional = true, fours = true,
     ref = "QUAD(S(4 * i), S(4 * i + 1), S(4 * i + 2), S(4 * i + 3))" }
op { "zip_bytes", "i <- i i n", "of each four words the bytes of a and b in turn, of the first two or (n = 1) the " ..
     "others", optional = true, port = "shuffle", ref = zipped_bytes }
op { "zip_shorts", "i <- i i n", "the same of halves of words", optional = true, port = "shuffle", ref = zipped_shorts }
-- words of two numbers, where an ISA multiplies halves of words alone. Of four neighbours the first
-- and the third are one word, the others the next, as two shifts find them in a word of bytes.
op { "short_words", "i <- f f", "L words of two numbers each of a and b, so in turn: the nearest integers as signed " ..
     "halves; of NaN any", optional = true,
     ref = "SHORTS(N(4 * idiv(i, 2) + i % 2), N(4 * idiv(i, 2) + i % 2 + 2))",
     domain = "fabsf(N(4 * idiv(i, 2) + i % 2)) <= 32767.0 and fabsf(N(4 * idiv(i, 2) + i % 2 + 2)) <= 32767.0" }
op { "lane_short_words", "i <- f f", "in each lane the word of that lane of a and b, as above", optional = true,
     ref = "SHORTS(a, b)", domain = "fabsf(a) <= 127.0 and fabsf(b) <= 127.0" }
op { "shorts",  "i <- i n",   "bytes n and n + 2 of each word as signed halves", optional = true,
     ref = "SHORTS(BYTE(a, n), BYTE(a, n + 2))" }
op { "dot_shorts", "i <- i i i", "c plus the products of the signed halves of a and b, modulo 2^32", optional = true,
     port = "fma", ref = "iadd(iadd(c, SHORT(a, 0) * SHORT(b, 0)), SHORT(a, 1) * SHORT(b, 1))" }
op { "dot_bytes", "i <- i i i", "c plus the products of the signed bytes of a and b, modulo 2^32; a has none of -128",
     optional = true, port = "fma", ref = ("iadd(c, %s)"):format(bytes("a", "b")),
     domain = "not (BYTE(a, 0) == 0 - 128 or BYTE(a, 1) == 0 - 128 or BYTE(a, 2) == 0 - 128 or BYTE(a, 3) == 0 - 128)" }
op { "dot_bytes_lane", "i <- i i i n", "the same with lane n of b, which is of the full width, for all lanes",
     optional = true, full = 2, port = "fma", ref = ("iadd(c, %s)"):format(bytes("a", "WORD(B(n))")) }
op { "mmla_bytes", "i <- i i i", "the same of a block as mmla_odd has them", optional = true, port = "fma",
     ref = ("iadd(iadd(c, %s), %s)"):format(
       bytes(("WORD(%s)"):format(first_word("A", "idiv(i, 2)")), ("WORD(%s)"):format(first_word("B", "i % 2"))),
       bytes(("WORD(%s)"):format(second_word("A", "idiv(i, 2)")), ("WORD(%s)"):format(second_word("B", "i % 2")))) }
op { "dot_unsigned", "i <- i i i", "as dot_bytes, a's bytes without a sign", optional = true, port = "fma",
     ref = "iadd(c, UBYTE(a, 0) * BYTE(b, 0) + UBYTE(a, 1) * BYTE(b, 1) + UBYTE(a, 2) * BYTE(b, 2) + " ..
           "UBYTE(a, 3) * BYTE(b, 3))" }
op { "dot_by_unsigned", "i <- i i i", "as dot_bytes, b's bytes without a sign", optional = true, port = "fma",
     ref = "iadd(c, BYTE(a, 0) * UBYTE(b, 0) + BYTE(a, 1) * UBYTE(b, 1) + BYTE(a, 2) * UBYTE(b, 2) + " ..
           "BYTE(a, 3) * UBYTE(b, 3))" }
op { "minus_eights", "i <- i i", "a less 8 times the sum of b's signed bytes", optional = true,
     ref = "iadd(a, 0 - 8 * (BYTE(b, 0) + BYTE(b, 1) + BYTE(b, 2) + BYTE(b, 3)))" }
op { "minus_128s", "i <- i i", "a less 128 times the sum of b's signed bytes", optional = true,
     ref = "iadd(a, 0 - 128 * (BYTE(b, 0) + BYTE(b, 1) + BYTE(b, 2) + BYTE(b, 3)))" }
op { "unsigned_bytes", "i <- i n", "signed bytes and 128 more: bytes without a sign", optional = true,
     ref = "ixor(a, 2155905152 + n)" }
-- signed nibbles, of which four steps are the low halves of a word's bytes, and the next four the high halves
op { "byte_nibbles", "i <- i n", "the halves n of all bytes, as signed bytes", optional = true,
     ref = "QUAD(F(NIBBLE(a, n)), F(NIBBLE(a, n + 2)), F(NIBBLE(a, n + 4)), F(NIBBLE(a, n + 6)))" }
op { "unsigned_nibbles", "i <- i n", "the same, and 8 more: bytes without a sign", optional = true,
     ref = "QUAD(F(NIBBLE(a, n) + 8), F(NIBBLE(a, n + 2) + 8), F(NIBBLE(a, n + 4) + 8), F(NIBBLE(a, n + 6) + 8))" }
op { "short_nibbles", "i <- i n", "as signed halves those of bytes n % 2 and n % 2 + 2: the low ones, from n = 2 on " ..
     "the high ones", optional = true,
     ref = "SHORTS(F(NIBBLE(a, 2 * (n % 2) + idiv(n, 2))), F(NIBBLE(a, 2 * (n % 2) + idiv(n, 2) + 4)))" }
op { "to_f",    "f <- i",     "the nearest float, ties to even", optional = true, ref = "F(a)" }
op { "larger_size", "f <- f f", "the larger of |a| and b, whose sign is not set; NaN where either is", optional = true,
     ref = "pick(fabsf(a) > b or isnan(a), fabsf(a), b)", domain = "BITS(b) >= 0" }
-- the parts of exp2 by a table, where an ISA looks up sixteen floats in a register
op { "root", "f <- f",        "2^(k/16), k being the low 4 bits of a's bits", optional = true, port = "shuffle",
     ref = "F(exp2(iand(BITS(a), 15) / 16.0))" }
op { "scale2_floor", "f <- m f f", "zero where the mask is set, else b * 2^floor(c) for b in [0.5, 2) and c from " ..
     "-125; inf for c from 129; NaN where either is, but for a NaN b and an infinite c", optional = true,
     ref = "pick(a, 0.0, F(b * exp2(floor(c))))",
     domain = "a or (isnan(b) and (c - c == 0.0 or isnan(c))) or (b >= 0.5 and b < 2.0 and (c >= 0.0 - 125.0 or " ..
       "isnan(c)))" }
-- integer lanes, for scale2 where it is not native
op { "to_i",    "i <- f",     "an integer-valued float as int32, for |a| < 2^22; of a NaN the low 9 bits are 0",
     ref = "a", domain = "fabsf(a) < 4194304.0 and rintf(a) == a", optional = true }
op { "ishl",    "i <- i n",   "shifted left by n bits", ref = "ishl(a, n)", optional = true }
op { "iadd",    "i <- i i",   "a + b modulo 2^32; also of sums of products of bytes", ref = "iadd(a, b)",
     optional = true }
op { "as_i",    "i <- f",     "the bits of a float", ref = "BITS(a)", optional = true, port = "none" }
op { "as_f",    "f <- i",     "the float with these bits", ref = "FLOAT(a)", optional = true, port = "none" }
-- signed integers in the words of a vector, as floats
op { "byte",    "f <- i n",   "byte n", ref = "BYTE(a, n)" }
op { "nibble",  "f <- i n",   "four bits, from bit 4 n on", ref = "NIBBLE(a, n)" }
-- numbers of 16 bits in the words of a vector, as floats
op { "bf16_half", "f <- i n", "half n of each word, a bfloat16", optional = true,
     ref = "pick(n == 0, FLOAT(ishl(a, 16)), FLOAT(iand(a, 4294901760)))" }
op { "f16_halves", "f <- i n", "of the halves of all words in their order, which are of half precision, those from " ..
     "the n-th on", optional = true,
     ref = "pick((n + i) % 2 == 0, LOW_F16(FLOAT(WORD(A(idiv(n + i, 2))))), HIGH_F16(FLOAT(WORD(A(idiv(n + i, 2))))))" }
-- comparison and choice
op { "lt",      "m <- f f",   "a < b; false where either is NaN", ref = "a < b" }
op { "sel",     "f <- m f f", "b where the mask is set, else c", ref = "pick(a, b, c)" }
op { "low",     "f <- f",     "the first lanes of a, which is of the full width", ref = "a", port = "none",
     optional = true, full = 1 }
op { "zero_if", "f <- m f",   "zero where the mask is set, else b", ref = "pick(a, 0.0, b)" }
op { "all",     "c <- m",     "whether the mask is set in every lane", ref = "all(A)" }
-- the two halves of one step of a transposition: exchange blocks of n lanes between two vectors
op { "trn_lo",  "f <- f f n", "even blocks of a, and those of b in the odd places",
     ref = "pick(idiv(i, n) % 2 == 0, A(i), B(i - n))", by = "n", port = "shuffle" }
op { "trn_hi",  "f <- f f n", "odd blocks of a in the even places, and those of b",
     ref = "pick(idiv(i, n) % 2 == 0, A(i + n), B(i))", by = "n", port = "shuffle" }
-- tiles: registers whose shapes are set once for a call; sums of products of pairs of bfloat16 and of bytes, in which
-- numbers below 2^-126 are zeros
op { "tiles_on", "- <-",      "takes the tile registers, all zeros", optional = true, tile = "on", port = "none" }
op { "tiles_off", "- <-",     "gives the tile registers back", optional = true, tile = "off", port = "none" }
op { "tile_zero", "- <- t",   "zeros", optional = true, tile = "writes", ref = "0.0", port = "none" }
op { "tile_load", "- <- t a x", "rows of words, each so many behind the one before", optional = true, tile = "writes",
     ref = "M(idiv(i, 16) * x + i % 16)", port = "load", vectors = 16 }
op { "tile_stream", "- <- t a x", "the same of rows that the nearest cache need not keep", optional = true,
     tile = "writes", ref = "M(idiv(i, 16) * x + i % 16)", port = "load", vectors = 16 }
op { "tile_store", "- <- t a x", "the same to memory", optional = true, tile = "stores", ref = "D(i)", vectors = 16 }
op { "tile_dot", "- <- t t t", "plus rows of pairs of a times columns of pairs of b, low and high halves apart",
     optional = true, tile = "writes", port = "tile",
     fold = { low = "FLUSHED(fmaf(LOW(A(i - i % 16 + k)), LOW(B(16 * k + i % 16)), low))",
              high = "FLUSHED(fmaf(HIGH(A(i - i % 16 + k)), HIGH(B(16 * k + i % 16)), high))" },
     ref = "FLUSHED(F(FLUSHED(D(i)) + FLUSHED(F(low + high))))" }
op { "tile_dot_bytes", "- <- t t t", "the same of words of four signed bytes, modulo 2^32", optional = true,
     tile = "writes", port = "tile",
     fold = { low = "iadd(low, BYTE(WORD(A(i - i % 16 + k)), 0) * BYTE(WORD(B(16 * k + i % 16)), 0) + " ..
                    "BYTE(WORD(A(i - i % 16 + k)), 1) * BYTE(WORD(B(16 * k + i % 16)), 1))",
              high = "iadd(high, BYTE(WORD(A(i - i % 16 + k)), 2) * BYTE(WORD(B(16 * k + i % 16)), 2) + " ..
                     "BYTE(WORD(A(i - i % 16 + k)), 3) * BYTE(WORD(B(16 * k + i % 16)), 3))" },
     ref = "iadd(WORD(D(i)), iadd(low, high))" }

return list
