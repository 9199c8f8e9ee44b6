-- The ways in which an ISA multiplies: how an element of A meets the vectors of B in a K step of a tile.
--
-- A way is a function of (t, tile, block), block = { count, base } being K steps that follow each other in the
-- text; it returns { begin, multiply }: begin(step) records what a step reads before the vectors of B, and
-- multiply(r, step, b, acc) adds the products of row r with the vectors b[c] to acc[c]. step: i, its number in the
-- block, k, that from the pointers of A and B, and tag, what its values are told apart by. A way that reads B otherwise
-- than as rows of vectors also has read(step) -> what multiply is given as b.

return { outer = require "way.outer", lane = require "way.lane", block = require "way.block" }
