-- build/mhagen-toy: build/mhagen with the toy ISA, for the tests that every ISA must pass, and with the checks
-- that take time.
require("tape").verify = true
require("isa.init").add(require "tests.toy")
return require "main"
