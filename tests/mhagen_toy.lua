-- build/mhagen-toy: build/mhagen with the toy ISA, which must pass the tests of every ISA, and with checks that
-- take too much time for build/mhagen.
require("tape").verify = true
require("isa.init").add(require "tests.toy")
return require "main"
