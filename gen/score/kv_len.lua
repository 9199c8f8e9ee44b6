-- kv_len: a batch entry has so many valid keys, none at the least.

return {
  key = "kv_len", shown = "scaled",
  reads = { { name = "len", kind = "int", from = "args->kv_len", least = 0,
              most = function(cfg) return cfg.seq_kv end } },
  last = function(s) return s.len - 1 end,
}
