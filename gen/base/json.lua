-- JSON in one line. dkjson writes objects in a given order. lua-cjson, which is C, reads, and writes lists.
--
-- As the host sets lua-cjson up: a number without a fraction is an integer, and null is nil. It refuses invalid
-- JSON, and nesting deeper than a row can have.

local host = require "host"
local dkjson = require "dkjson"

return { null = dkjson.null, encode = dkjson.encode, decode = host.json.decode, list = host.json.list }
