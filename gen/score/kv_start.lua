-- kv_start: the first valid key of a batch entry; padding stands before it.

return {
  key = "kv_start", shown = "scaled",
  reads = { { name = "pad", kind = "int", from = "args->kv_start", least = 0,
              most = function(cfg) return cfg.seq_kv end } },
  first = function(s) return s.pad end,
}
