// Operations 9 and 10 of a chunk in one pass: every page is loaded once (paper 5.2).
#pragma once

#include <optional>

#include "adam.h"
#include "rs.h"

namespace leto {

// Updates the chunk in place and leaves in `target` the parity of the updated group, where `parity` is that of the old one:
// the bits of adam, then of update_parity from what the chunk was before.
//
// `columns` are those of the chunk's pages: all of master, then all of exp_avg, then all of exp_avg_sq. Elements behind the
// chunk's last one are padding of its last pages and stay as they are.
//
// Work goes strip by strip, a strip being the same bytes of all pages: its data, then its parity. Progress of both points is
// in bytes of a page, rounded down to a word; an armed call parks when everything before the point is done in all pages, data
// and parity, and of what lies behind it nothing but this:
//
//   adam_park      elements from the point on in the first page of each array are half updated, as a parked adam leaves them
//   parity_park    data of the strip that begins at the point are updated, its parity is not
void update_chunk(const Run& run, const Code& code, const Indices& columns, const AdamChunk& chunk, const Addresses& parity,
                  const Addresses& target, const std::optional<Park>& adam_park, const std::optional<Park>& parity_park);

}  // namespace leto
