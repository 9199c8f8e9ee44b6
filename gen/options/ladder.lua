-- What a ladder (length buckets) requires. Its config has several lengths in seq or seq_kv, and its kernels share the
-- buffers of the longest one.
--
--   key, must, why   the value that a key must have, and the reason
--   row              only for a ladder of this key
--   differs          only if the lengths change this key
--   beside           only if one of these keys is on
--   unless           not with this key and value

return {
  { key = "q_len", must = true, row = "seq", why = "which chooses the kernel by it" },
  { key = "kv_len", must = true, differs = "seq_kv", unless = { "attention", "none" },
    why = "which chooses the kernel by it" },
  { key = "cache", must = "none", differs = "seq_kv", why = "since its layout depends on the length" },
  { key = "batch", must = 1, why = "since the next entry begins after all rows" },
  { key = "probs", must = false, why = "since the length of its rows would differ" },
  { key = "scores", must = "none", why = "since the length of their rows would differ" },
  { key = "mask_dims", must = "k", beside = { "mask" }, why = "since the length of its rows would differ" },
  { key = "layout", must = "bshd", why = "since the next head begins after all rows" },
  { key = "rope", must = "none", differs = "seq_kv", unless = { "rope_at", "run" },
    why = "since its tables depend on the length" },
  { key = "causal_align", must = "top_left",
    beside = { "causal", "window_left", "window_right", "alibi", { key = "rope", but = { "rope_at", "run" } } },
    unless = { "cache", "append" }, why = "since the position of a row depends on the lengths" },
}
