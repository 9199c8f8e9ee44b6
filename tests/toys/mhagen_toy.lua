-- build/mhagen-toy: build/mhagen with a toy ISA, way, stage, end of a tile, option and type, which must pass the tests
-- of every one, and with checks that take too much time for build/mhagen.
require("tape.init").verify = true
require("isa.init").add(require "tests.toys.toy")
local toy_way = require "tests.toys.toy_way"
require("way.init").add("fours", toy_way)
require("isa.init").add(toy_way.isa(require "tests.toys.toy"))
local toy_stage, toy_feed_forward = require "tests.toys.toy_stage", require "tests.toys.toy_feed_forward"
require("stage.init").add("added", toy_stage)
require("stage.init").add("plain_norm", toy_feed_forward.norm)
for _, matrix in ipairs(toy_feed_forward.matrices) do require("graph.matrices").add(matrix) end
for _, toy in ipairs { toy_stage, toy_feed_forward } do
  require("options.init").add(toy.option)
  table.insert(require("plan.rewrites").of_formula, { toy.option.key, toy.applies, toy.rewrite })
end
require("machine.types").add(require "tests.toys.toy_type")
require("options.init").add(require "tests.toys.toy_option")
return require "main"
