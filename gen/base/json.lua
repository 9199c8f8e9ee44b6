-- JSON in one line. dkjson writes objects in a given order. lua-cjson, which is C, reads JSON and writes lists.
--
-- The host configures lua-cjson so that a number without a fraction is an integer and null is nil. Invalid JSON and
-- deep nesting are refused.

local host = require "host"
local dkjson = require "dkjson"

return { null = dkjson.null, encode = dkjson.encode, decode = host.json.decode, list = host.json.list }
