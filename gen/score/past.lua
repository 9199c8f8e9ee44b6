-- The positions of queries among the keys. With a cache the keys are those of earlier rows, then those that this run
-- adds.

local M = {}

-- What the place of query 0 is.
function M.before(s)
  local cfg = s.cfg
  if cfg.cache == "append" then return s.past end
  return cfg.causal_align == "bottom_right" and cfg.seq_kv - cfg.seq or 0
end

M.row = {
  on = function(cfg) return cfg.cache == "append" end, shown = "scaled",
  reads = { { name = "past", kind = "int", from = "args->past", least = 0, moves = true,
              most = function(cfg) return cfg.seq_kv - cfg.seq end } },
  last = function(s) return s.past + (s.rows or s.cfg.seq) - 1 end,
}

return M
