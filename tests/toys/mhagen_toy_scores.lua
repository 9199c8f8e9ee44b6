-- build/mhagen-toy-scores: build/mhagen with toy rows of gen/score, for the tests that every row must pass.
require("tape.init").verify = true
for _, row in ipairs(require "tests.toys.toy_score") do require("score.init").add(row) end
return require "main"
