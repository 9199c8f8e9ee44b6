-- causal: row r sees keys 0..r.

return { key = "causal", last = function(s) return s.query end }
