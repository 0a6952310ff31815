// Parking inside a kernel (U50). An armed call does the work before the point, parks, and does the rest; work is cut at the
// point, so that nothing after it has been touched. Unarmed calls run the whole work in one piece and pay nothing.
//
// A parked thread waits without a deadline of its own: whoever armed it kills or releases it, and a parked trainer publishes
// no progress, so hang detection bounds the wait.
#pragma once

#include <time.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "pages.h"

namespace leto {

struct Park {
  Address word_address;
  uint64_t token;
  double progress;

  // How many of `units` lie before the point.
  size_t cut(size_t units) const {
    require(progress >= 0 && progress <= 1, "park: progress is not in [0, 1]");
    return static_cast<size_t>(progress * static_cast<double>(units));
  }

  // Stores the token after everything before it, then waits until somebody makes the word 0.
  void wait() const {
    auto* word = at<uint64_t>(word_address);
    __atomic_store_n(word, token, __ATOMIC_RELEASE);
    const timespec pause{0, 50'000};
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != 0) nanosleep(&pause, nullptr);
  }
};

// Runs work(first, last) over [0, units), parking at the cut of an armed call.
template <class Work>
void run_parked(size_t units, const std::optional<Park>& park, Work work) {
  if (!park) {
    work(size_t{0}, units);
    return;
  }
  const size_t cut = park->cut(units);
  work(size_t{0}, cut);
  park->wait();
  work(cut, units);
}

}  // namespace leto
