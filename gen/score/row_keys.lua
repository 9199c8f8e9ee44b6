-- row_keys: a range of keys for each row, as packed sequences have it; a row sees no key outside of its own.

local types = require "machine.types"

return {
  on = function(cfg) return cfg.row_keys == "range" end, by_row = true,
  reads = { { name = "ranges", kind = "in", from = "args->row_keys", type = types.int,
              floats = function(cfg) return 2 * cfg.seq end,
              block = function(_, _, query) return 2 * query end } },
  first = function(s) return s.row_first end,
  last = function(s) return s.row_last end,
}
