-- JSON, in one line. dkjson writes objects in the order that is wanted. lua-cjson, which is C, reads, and
-- writes lists; how the host has set it up: a number without a fraction is an integer, null is nil, and
-- what is not JSON by the letter, or nested deeper than a row can be, is refused.

local host = require "host"
local dkjson = require "dkjson"

return { null = dkjson.null, encode = dkjson.encode, decode = host.json.decode, list = host.json.list }
