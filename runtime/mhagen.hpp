/* mhagen.hpp: kernels from C++17, for those who want it: nothing else needs this file.
 *
 * This file may be used, changed and shipped without conditions; it comes without warranty
 * (SPDX-License-Identifier: 0BSD).
 *
 *   mhagen::attention layer(minilm_kernel, weights);   packs; owns packed weights and a workspace
 *   layer.run(x, y);                                   throws mhagen::error
 *
 * With -fno-exceptions, or where errors are values:
 *
 *   auto made = mhagen::attention::make(minilm_kernel, weights);
 *   if (!made) return made.status();
 *   mhagen_status status = made.value().try_run(x, y);
 *
 * MHAGEN_ERR_NULL stands for lack of memory too, MHAGEN_ERR_LENGTH for a view that is too short.
 * Runs do not allocate.
 */
#ifndef MHAGEN_HPP
#define MHAGEN_HPP

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#if defined(__cpp_exceptions)
#include <stdexcept>
#endif
#ifndef MHAGEN_H /* the header of a kernel of `gen --single` has it, and stands before */
#include "mhagen.h"
#endif

namespace mhagen {

/* Numbers that somebody else owns: of a vector, an array, a std::span. */
template <class T>
class view {
public:
  constexpr view() noexcept = default;
  constexpr view(T *data, std::size_t size) noexcept : data_(data), size_(size) {}
  template <class C, class = std::enable_if_t<std::is_convertible_v<
                         decltype(std::data(std::declval<C &>())), T *>>>
  constexpr view(C &&whole) noexcept : data_(std::data(whole)), size_(std::size(whole)) {}
  constexpr T *data() const noexcept { return data_; }
  constexpr std::size_t size() const noexcept { return size_; }
  constexpr T *begin() const noexcept { return data_; }
  constexpr T *end() const noexcept { return data_ + size_; }
  constexpr T &operator[](std::size_t i) const noexcept { return data_[i]; }

private:
  T *data_ = nullptr;
  std::size_t size_ = 0;
};

#if defined(__cpp_exceptions)
class error : public std::runtime_error {
public:
  explicit error(mhagen_status status)
      : std::runtime_error(mhagen_status_text(status)), status_(status) {}
  mhagen_status status() const noexcept { return status_; }

private:
  mhagen_status status_;
};
#endif

/* Throws, or ends the program where there are no exceptions. */
inline void require(mhagen_status status) {
  if (status == MHAGEN_OK) return;
#if defined(__cpp_exceptions)
  throw error(status);
#else
  std::abort();
#endif
}

/* A T, or the status that says why there is none. */
template <class T>
class result {
public:
  result(mhagen_status status) noexcept : status_(status) {}
  result(T &&value) noexcept : value_(std::move(value)) {}
  explicit operator bool() const noexcept { return value_.has_value(); }
  mhagen_status status() const noexcept { return status_; }
  T &value() & { return require(status_), *value_; }
  T &&value() && { return require(status_), std::move(*value_); }

private:
  mhagen_status status_ = MHAGEN_OK;
  std::optional<T> value_;
};

/* Aligned memory for packed weights, workspaces and caches. get() is null if there was none. */
struct release {
  void operator()(void *memory) const noexcept {
    ::operator delete(memory, std::align_val_t{MHAGEN_ALIGN});
  }
};
using memory = std::unique_ptr<void, release>;
inline memory allocate(std::size_t bytes) noexcept {
  return memory(::operator new(bytes, std::align_val_t{MHAGEN_ALIGN}, std::nothrow));
}

/* The bytes of a file of packed weights of the kernel, or of its tables, in which mhagen_packed_layer
 * finds those of a layer. MHAGEN_ERR_PACKED stands for a file that cannot be read too. */
inline result<memory> read_packed(const mhagen_kernel &kernel, const std::string &path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff end = file.tellg();
  const auto size = static_cast<std::size_t>(end);
  alignas(MHAGEN_ALIGN) mhagen_packed_head head;
  file.seekg(0).read(reinterpret_cast<char *>(&head), sizeof head);
  if (!file || static_cast<std::streamoff>(size) != end) return MHAGEN_ERR_PACKED;
  mhagen_status status = mhagen_packed_check_head(&kernel, &head, size); /* so the size is good */
  if (status != MHAGEN_OK) return status;
  memory bytes = allocate(size);
  if (!bytes) return MHAGEN_ERR_NULL;
  if (!file.seekg(0).read(static_cast<char *>(bytes.get()), end)) return MHAGEN_ERR_PACKED;
  status = mhagen_packed_check(&kernel, bytes.get(), size);
  if (status != MHAGEN_OK) return status;
  return bytes;
}

/* Threads for runs; one run at a time. Without threads get() is null, and the caller runs all. */
struct end_threads {
  void operator()(mhagen_pool *pool) const noexcept { mhagen_pool_destroy(pool); }
};
using thread_pool = std::unique_ptr<mhagen_pool, end_threads>;
inline thread_pool make_pool(int threads) noexcept {
  return thread_pool(mhagen_pool_create(threads));
}

/* A kernel with packed weights, which copies share, and a workspace, which each has of its own:
 * another thread takes a copy. */
class attention {
public:
  /* tables: with rope_tables=apart those of a layer with the same angles, else they are packed. */
  static result<attention> make(const mhagen_kernel &kernel, const mhagen_weights &weights,
                                std::shared_ptr<const void> tables = nullptr) {
    memory packed = allocate(kernel.packed_bytes), workspace = allocate(kernel.workspace_bytes);
    if (!packed || !workspace) return MHAGEN_ERR_NULL;
    mhagen_status status = kernel.pack(&weights, packed.get());
    if (status == MHAGEN_OK && kernel.pack_tables && !tables) {
      memory own = allocate(kernel.tables_bytes);
      status = own ? kernel.pack_tables(&weights, own.get()) : MHAGEN_ERR_NULL;
      tables = std::move(own);
    }
    if (status != MHAGEN_OK) return status;
    return attention(kernel, std::move(packed), std::move(tables), std::move(workspace));
  }
  attention(const mhagen_kernel &kernel, const mhagen_weights &weights,
            std::shared_ptr<const void> tables = nullptr)
      : attention(make(kernel, weights, std::move(tables)).value()) {}
  result<attention> copy() const noexcept {
    memory workspace = allocate(kernel_->workspace_bytes);
    if (!workspace) return MHAGEN_ERR_NULL;
    return attention(*kernel_, packed_, tables_, std::move(workspace));
  }

  const mhagen_kernel &kernel() const noexcept { return *kernel_; }
  const std::shared_ptr<const void> &tables() const noexcept { return tables_; }

  /* Numbers in q (of self-attention x) and in y, of all batch entries. */
  std::size_t q_size() const noexcept { return numbers(kernel_->d_model); }
  std::size_t y_size() const noexcept { return numbers(kernel_->y_width); }

  /* Everything but packed, tables and workspace is the caller's: inputs of other kinds, lengths,
   * caches. */
  mhagen_status try_run(mhagen_args args, mhagen_pool *pool = nullptr) noexcept {
    args.packed = packed_.get();
    args.tables = tables_.get();
    args.workspace = workspace_.get();
    return mhagen_run_parallel(kernel_, &args, pool);
  }
  /* With one input. MHAGEN_ERR_LENGTH stands for numbers of another size than the kernel's, too. */
  mhagen_status try_run(view<const float> x, view<float> y, mhagen_pool *pool = nullptr) noexcept {
    return run_one(x, y, !kernel_->io_dtype, pool);
  }
  mhagen_status try_run(view<const std::uint16_t> x, view<std::uint16_t> y,
                        mhagen_pool *pool = nullptr) noexcept {
    return run_one(x, y, kernel_->io_dtype != nullptr, pool);
  }
  void run(const mhagen_args &args, mhagen_pool *pool = nullptr) { require(try_run(args, pool)); }
  void run(view<const float> x, view<float> y, mhagen_pool *pool = nullptr) {
    require(try_run(x, y, pool));
  }
  void run(view<const std::uint16_t> x, view<std::uint16_t> y, mhagen_pool *pool = nullptr) {
    require(try_run(x, y, pool));
  }

private:
  attention(const mhagen_kernel &kernel, std::shared_ptr<const void> packed,
            std::shared_ptr<const void> tables, memory workspace) noexcept
      : kernel_(&kernel), packed_(std::move(packed)), tables_(std::move(tables)),
        workspace_(std::move(workspace)) {}
  template <class X, class Y>
  mhagen_status run_one(view<X> x, view<Y> y, bool fits, mhagen_pool *pool) noexcept {
    if (!fits || x.size() < q_size() || y.size() < y_size()) return MHAGEN_ERR_LENGTH;
    mhagen_args args{};
    args.q = static_cast<const float *>(static_cast<const void *>(x.data()));
    args.y = static_cast<float *>(static_cast<void *>(y.data()));
    return try_run(args, pool);
  }
  std::size_t numbers(int width) const noexcept {
    return static_cast<std::size_t>(kernel_->batch) * static_cast<std::size_t>(kernel_->seq) *
           static_cast<std::size_t>(width);
  }

  const mhagen_kernel *kernel_;
  std::shared_ptr<const void> packed_, tables_;
  memory workspace_;
};

} // namespace mhagen

#endif
