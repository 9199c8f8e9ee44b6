-- causal: a row sees the keys up to its place.

return { key = "causal", last = function(s) return s.place end }
