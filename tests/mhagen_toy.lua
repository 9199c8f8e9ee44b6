-- build/mhagen-toy: build/mhagen with the toy ISA and the toy option, for the tests that every ISA and option must
-- pass, and with the checks that take time.
require("tape").verify = true
require("isa.init").add(require "tests.toy")
require("options.init").add(require "tests.toy_option")
return require "main"
