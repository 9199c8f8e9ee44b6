-- A toy option: args->kv_len has not lengths but a tag for each batch entry, up to the number of heads, which
-- is checked and has no other meaning. It shows what a new option takes before it does anything.

return {
  key = "tagged", kind = "flag", default = false, name = "_tagged", word = "tagged",
  bit = "0x4000000000000000u", -- of which mhagen.h knows nothing
  args = { { pointer = "kv_len", most = "h" } },
  excludes = { { key = "kv_len", is = true, why = "which has its lengths there" } },
  also = { "labelled" }, doc = "a tag is given at run time, per batch entry", draw = { chance = 0.5 },
}
