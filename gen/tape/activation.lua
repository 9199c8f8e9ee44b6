local exp = require "tape.exp"
local M = {}
M.relu = { name = "relu", apply = function(t, w, x, name) return t:op("max", w, "relu" .. name, t:op("set", w, "zero" .. name, 0.0), x) end }
M.gelu = M.relu M.gelu_tanh = M.relu M.quick_gelu = M.relu M.silu = M.relu M.relu2 = M.relu
return M
