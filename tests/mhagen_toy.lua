-- build/mhagen-toy: build/mhagen with the toy ISA, for the tests that every ISA must pass.
require("isa.init").add(require "tests.toy")
return require "main"
