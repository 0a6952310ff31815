// Working memory of one call at a time, owned by the caller and kept: it grows to the largest call, after which calls
// allocate nothing that depends on their size.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "code_strips.h"

namespace leto {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { release(); }

  // Starts a call: everything taken before is given up. Memory that had to be added piecemeal becomes one piece.
  void reset() {
    if (pieces_.size() > 1) {
      const size_t bytes = byte_count();
      release();
      add_piece(bytes);
    }
    used_ = 0;
  }

  // Uninitialised, aligned to vectors, and valid until the next reset.
  template <class T>
  T* take(size_t count) {
    const size_t bytes = rounded(count * sizeof(T), kVectorBytes);
    if (pieces_.empty() || used_ + bytes > pieces_.back().bytes) {
      add_piece(bytes);
      used_ = 0;
    }
    auto* taken = static_cast<uint8_t*>(pieces_.back().memory) + used_;
    used_ += bytes;
    return reinterpret_cast<T*>(taken);
  }

  size_t byte_count() const {
    size_t bytes = 0;
    for (const Piece& piece : pieces_) bytes += piece.bytes;
    return bytes;
  }

 private:
  struct Piece {
    void* memory;
    size_t bytes;
  };

  static constexpr size_t kPieceBytes = 256 << 10;
  static constexpr size_t kHugeBytes = 2 << 20;  // below one huge page the advice would only waste memory

  static size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

  void add_piece(size_t at_least) {
    const size_t bytes = rounded(at_least, kPieceBytes);
    pieces_.reserve(pieces_.size() + 1);
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    if (bytes >= kHugeBytes) madvise(memory, bytes, MADV_HUGEPAGE);  // advice: without it the call is only slower
    pieces_.push_back({memory, bytes});
  }

  void release() {
    for (const Piece& piece : pieces_) munmap(piece.memory, piece.bytes);
    pieces_.clear();
  }

  std::vector<Piece> pieces_;
  size_t used_ = 0;  // of the last piece
};

}  // namespace leto
