-- sink: a logit of each head that takes weight and has no value, as in gpt-oss. Logits of zero are PyTorch's
-- add_zero_attn.

local types = require "machine.types"

return {
  key = "sink",
  packed = { name = "sink", matrix = "sink", doc = "sinks", scale = types.LOG2E },
  extra = function(t, w, name, reads) return t:op("dup", w, name, reads.sink) end,
}
