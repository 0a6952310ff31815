// Kernels that move and compare bytes.
#pragma once

#include <optional>

#include "pages.h"
#include "park.h"

namespace leto {

// target[k] <- source[k], on at most `threads` threads. Progress: bytes of the target pages in their order.
void copy_pages(size_t threads, const Addresses& source, const Addresses& target, size_t page_bytes, const std::optional<Park>& park);

// target <- xor of all source pages, on at most `threads` threads. Progress: bytes of the target page.
void xor_pages(size_t threads, const Addresses& source, Address target, size_t page_bytes, const std::optional<Park>& park);

// Positions k at which the pages differ in any bit.
std::vector<size_t> equal_pages(const Addresses& left, const Addresses& right, size_t page_bytes);

// Every 32-bit word of the range becomes `pattern`.
void fill(Address address, size_t byte_count, uint32_t pattern);

// Stores `value` at every address in order, each after everything that precedes it (U1).
void publish(const Addresses& addresses, uint64_t value);

}  // namespace leto
