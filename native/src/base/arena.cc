#include "base/arena.h"

#include <sys/mman.h>

#include <new>
#include <utility>

#include "base/align.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace spola {
namespace {

constexpr size_t kGrowth = size_t{16} << 20;

void* map(size_t bytes, int protection) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
  if (protection == PROT_NONE) flags |= MAP_NORESERVE;
#endif
  void* base = mmap(nullptr, bytes, protection, flags, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  return base;
}

uint8_t* align(void* base) {
  return reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(base), kHugePage));
}

void advise(void* data, size_t bytes, bool huge_pages) {
#ifdef MADV_HUGEPAGE
  if (bytes >= kHugePage) madvise(data, bytes, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
#else
  (void)data, (void)bytes, (void)huge_pages;
#endif
}

}  // namespace

void trim_heap() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

Mapping::Mapping(size_t bytes, bool huge_pages) : reserved_(round_up(bytes, 4096) + kHugePage), size_(bytes) {
  base_ = map(reserved_, PROT_READ | PROT_WRITE);
  data_ = align(base_);
  advise(data_, round_up(bytes, 4096), huge_pages);
}

Mapping::~Mapping() {
  if (base_) munmap(base_, reserved_);
}

Mapping::Mapping(Mapping&& other) noexcept { *this = std::move(other); }

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(reserved_, other.reserved_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Arena::Arena(size_t limit, bool huge_pages)
    : reserved_(round_up(limit, kGrowth) + kHugePage),
      limit_(round_up(limit, kGrowth)),
      huge_pages_(huge_pages) {
  base_ = map(reserved_, PROT_NONE);
  data_ = align(base_);
}

Arena::~Arena() { munmap(base_, reserved_); }

uint8_t* Arena::allocate(size_t bytes) {
  const size_t start = round_up(used_, kCacheLine);
  if (bytes > limit_ - start) throw std::bad_alloc();
  const size_t end = start + bytes;
  if (end > committed_) {
    const size_t target = round_up(end, kGrowth);
    if (mprotect(data_ + committed_, target - committed_, PROT_READ | PROT_WRITE) != 0)
      throw std::bad_alloc();
    advise(data_ + committed_, target - committed_, huge_pages_);
    committed_ = target;
  }
  used_ = end;
  return data_ + start;
}

}  // namespace spola
