-- build/mhagen-toy: build/mhagen with a toy ISA, a toy option and a toy type, for the tests that every one must
-- pass, and with the checks that take time.
require("tape").verify = true
require("isa.init").add(require "tests.toy")
require("types").add(require "tests.toy_type")
require("options.init").add(require "tests.toy_option")
return require "main"
