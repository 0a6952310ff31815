// Splitting a range of bytes over threads. Threads are started for the call and joined before it returns: processes that
// fork hold none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

#include "pages.h"

namespace leto {

// How many of `threads` are worth starting for a call that moves this many bytes.
inline size_t useful_threads(size_t threads, size_t bytes) {
  constexpr size_t kThreadBytes = 1 << 20;  // below, starting one costs more than it saves
  require(threads >= 1, "code: threads is not positive");
  return std::min(threads, 1 + bytes / kThreadBytes);
}

// Runs work(thread, begin, end) over [first, last) cut at multiples of `unit` from `first`; `work` must not throw. Stores of
// every part are ordered before the return, streaming ones too.
template <class Work>
void split(size_t first, size_t last, size_t unit, size_t threads, const Work& work) {
  const size_t units = (last - first + unit - 1) / unit;
  const auto cut = [&](size_t n) { return std::min(last, first + units * n / threads * unit); };
  const auto part = [&](size_t n) {
    work(n, cut(n), cut(n + 1));
    fence_streaming_stores();
  };
  std::vector<std::thread> started;
  started.reserve(threads - 1);
  size_t own = 1;  // parts that the calling thread does: the first, and those that no thread could be started for
  try {
    for (size_t n = threads - 1; n >= own; --n) started.emplace_back(part, n);
  } catch (const std::system_error&) {
    own = threads - started.size();
  }
  for (size_t n = 0; n < own; ++n) part(n);
  for (std::thread& thread : started) thread.join();
}

}  // namespace leto
