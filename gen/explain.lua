-- A checked config -> the plan as text.

local describe = require "describe"
local record = require "record"

return function(cfg) return describe.explain(record(cfg)) end
