-- q_len: the number of rows of a batch entry that a run computes.
--
-- It does not limit keys; functions that handle rows read it. An entry without rows is skipped.

return {
  key = "q_len", shown = "scaled",
  reads = { { name = "rows", kind = "int", from = "args->q_len", least = 1, most = function(cfg) return cfg.seq end } },
}
