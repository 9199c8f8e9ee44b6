-- The ways in which an ISA multiplies: how an element of A meets the vectors of B in a K step of a tile.
--
-- A way is a function of (t, tile, block), block = { first, count, base } being K steps that follow each other in
-- the text; it returns { begin, multiply }: begin(k) records what step k reads before the vectors of B, and
-- multiply(r, k, b, acc) adds the products of row r with the vectors b[c] to acc[c].

return { outer = require "way.outer", lane = require "way.lane" }
