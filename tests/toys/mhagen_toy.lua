-- build/mhagen-toy: build/mhagen with a toy ISA, way, stage, end of a tile, option and type, which must pass the tests
-- of every one, and with checks that take too much time for build/mhagen.
require("tape.init").verify = true
require("isa.init").add(require "tests.toys.toy")
local toy_way = require "tests.toys.toy_way"
require("way.init").add("fours", toy_way)
require("isa.init").add(toy_way.isa(require "tests.toys.toy"))
local toy_stage = require "tests.toys.toy_stage"
require("stage.init").add("added", toy_stage)
require("options.init").add(toy_stage.option)
table.insert(require("plan.rewrites").of_formula, { toy_stage.option.key, toy_stage.applies, toy_stage.rewrite })
require("machine.types").add(require "tests.toys.toy_type")
require("options.init").add(require "tests.toys.toy_option")
return require "main"
