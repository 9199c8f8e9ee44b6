-- causal: a row sees the keys up to its own position.

return { key = "causal", last = function(s) return s.place end }
