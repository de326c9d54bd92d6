// Anonymous memory: a Mapping of fixed size, and an Arena that grows inside one reserved range of addresses.
//
// Both are zero-filled by the system on first touch and aligned to huge pages. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spola {

// Gives memory that was freed by malloc's users back to the system, where the C library can (glibc). A tokenizer
// is built from tables several times its size, in small pieces, which would stay with the process otherwise.
void trim_heap();

// A private anonymous mapping, freed on destruction. Throws std::bad_alloc when the system refuses.
class Mapping {
 public:
  Mapping() = default;
  Mapping(size_t bytes, bool huge_pages);
  ~Mapping();
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* base_ = nullptr;
  size_t reserved_ = 0;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// A bump allocator: allocations follow each other in order, 64-byte aligned, and never move. Addresses for
// `limit` bytes are reserved at once without taking memory; pages are taken as allocations need them.
class Arena {
 public:
  Arena(size_t limit, bool huge_pages);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Throws std::bad_alloc beyond the limit or when the system refuses.
  uint8_t* allocate(size_t bytes);
  size_t used() const { return used_; }

 private:
  void* base_ = nullptr;
  size_t reserved_ = 0;
  uint8_t* data_ = nullptr;
  size_t limit_ = 0;
  size_t committed_ = 0;
  size_t used_ = 0;
  bool huge_pages_ = false;
};

}  // namespace spola
