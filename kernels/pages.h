// Pages by address, as Python passes them. Nothing here owns memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace leto {

using Address = uintptr_t;
using Addresses = std::vector<Address>;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

inline bool all_aligned(const Addresses& pages, size_t unit) {
  return std::all_of(pages.begin(), pages.end(), [&](Address page) { return page % unit == 0; });
}

// Streaming stores are ordered by no release store and no join; whoever made them calls this before saying that they are done.
inline void fence_streaming_stores() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Refuses calls that would touch memory nobody named; a caller's bug, ValueError in Python.
inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace leto
