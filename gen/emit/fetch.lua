-- Prefetches n numbers of `bytes` bytes each at x, by one op for each cache line.

local LINE = require("schedule.fetch").LINE

return function(t, bytes, n, x, op)
  for line = 0, (n * bytes - 1) // LINE do t:op(op, t.isa.full, nil, x:at(line * LINE // bytes)) end
end
