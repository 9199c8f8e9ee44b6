-- q_len: so many rows of a batch entry are asked for. It bounds no keys itself; what is recorded for rows reads it.
-- An entry without rows is left out altogether.

return {
  key = "q_len", shown = "scaled",
  reads = { { name = "rows", kind = "int", from = "args->q_len", least = 1, most = function(cfg) return cfg.seq end } },
}
