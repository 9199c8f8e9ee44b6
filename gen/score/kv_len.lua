-- kv_len: the number of valid keys of a batch entry, 0 or more.

return {
  key = "kv_len", shown = "scaled",
  reads = { { name = "len", kind = "int", from = "args->kv_len", least = 0,
              most = function(cfg) return cfg.seq_kv end } },
  last = function(s) return s.len - 1 end,
}
