-- build/mhagen-toy: build/mhagen with a toy ISA, way, option and type, which must pass the tests of every
-- one, and with checks that take too much time for build/mhagen.
require("tape.init").verify = true
require("isa.init").add(require "tests.toy")
local toy_way = require "tests.toy_way"
require("way.init").add("fours", toy_way)
require("isa.init").add(toy_way.isa(require "tests.toy"))
require("machine.types").add(require "tests.toy_type")
require("options.init").add(require "tests.toy_option")
return require "main"
