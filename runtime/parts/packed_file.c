mhagen_packed_head mhagen_packed_begin(const mhagen_kernel *kernel) {
  const mhagen_kernel *const one = mhagen_kernel_of(kernel);
  mhagen_packed_head head = {.magic = MHAGEN_PACKED_MAGIC,
                             .version = MHAGEN_PACKED_VERSION,
                             .head_bytes = sizeof head,
                             .fingerprint = one->fingerprint,
                             .packed_bytes = one->packed_bytes};
  const size_t length = strlen(one->name), most = sizeof head.name - 1;
  memcpy(head.name, one->name, length < most ? length : most);
  return head;
}

/* Extends a checksum by more words. Each step is one-to-one, so no change of a single word is
 * missed. */
static uint64_t sum_words(uint64_t sum, const void *bytes, uint64_t size) {
  for (uint64_t i = 0; i < size; i += sizeof sum) {
    uint64_t word;
    memcpy(&word, (const char *)bytes + i, sizeof word);
    sum = (sum ^ word) * 0x9E3779B97F4A7C15u;
    sum ^= sum >> 32;
  }
  return sum;
}

void mhagen_packed_add(mhagen_packed_head *head, const void *packed) {
  head->layers += 1;
  head->checksum = sum_words(head->checksum, packed, head->packed_bytes);
}

mhagen_status mhagen_packed_check_head(const mhagen_kernel *kernel, const void *bytes,
                                       size_t size) {
  mhagen_packed_head head;
  if (!bytes) return MHAGEN_ERR_NULL;
  if ((uintptr_t)bytes % MHAGEN_ALIGN != 0) return MHAGEN_ERR_ALIGN;
  if (size < sizeof head) return MHAGEN_ERR_PACKED;
  memcpy(&head, bytes, sizeof head);
  const mhagen_kernel *const one = mhagen_kernel_of(kernel);
  const int of_weights = head.fingerprint == one->fingerprint &&
                         head.packed_bytes == one->packed_bytes;
  const int of_tables = one->tables_bytes > 0 && head.fingerprint == one->tables_fingerprint &&
                        head.packed_bytes == one->tables_bytes;
  const uint64_t rest = size - sizeof head;
  const uint64_t layers = head.packed_bytes > 0 ? rest / head.packed_bytes : head.layers;
  const int good = memcmp(head.magic, MHAGEN_PACKED_MAGIC, sizeof head.magic) == 0 &&
                   head.version == MHAGEN_PACKED_VERSION && head.head_bytes == sizeof head &&
                   (of_weights || of_tables) && head.layers == layers &&
                   rest == layers * head.packed_bytes;
  return good ? MHAGEN_OK : MHAGEN_ERR_PACKED;
}

mhagen_status mhagen_packed_check(const mhagen_kernel *kernel, const void *bytes, size_t size) {
  const mhagen_status found = mhagen_packed_check_head(kernel, bytes, size);
  mhagen_packed_head head;
  if (found != MHAGEN_OK) return found;
  memcpy(&head, bytes, sizeof head);
  for (size_t i = 0; i < head.layers && head.packed_bytes > 0; ++i) {
    if (fingerprint_in(mhagen_packed_layer(bytes, i)) != head.fingerprint) return MHAGEN_ERR_PACKED;
  }
  const uint64_t sum = sum_words(0, (const char *)bytes + sizeof head, size - sizeof head);
  return sum == head.checksum ? MHAGEN_OK : MHAGEN_ERR_PACKED;
}

const void *mhagen_packed_layer(const void *bytes, size_t layer) {
  mhagen_packed_head head;
  memcpy(&head, bytes, sizeof head);
  if (layer >= head.layers) return NULL;
  return (const char *)bytes + sizeof head + layer * (size_t)head.packed_bytes;
}
