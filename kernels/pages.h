// Pages by address, as Python passes them. Nothing here owns memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace leto {

using Address = uintptr_t;
using Addresses = std::vector<Address>;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// The same pages, `offset` bytes further on.
inline Addresses advanced(const Addresses& pages, size_t offset) {
  Addresses moved(pages);
  for (Address& page : moved) page += offset;
  return moved;
}

// Refuses calls that would touch memory nobody named; a caller's bug, ValueError in Python.
inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

}  // namespace leto
