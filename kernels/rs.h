// The erasure code over pages. Readable twin and the definition: leto/core/reed_solomon.py.
#pragma once

#include <optional>

#include "pages.h"
#include "park.h"

namespace leto {

using Indices = std::vector<uint32_t>;

struct Code {
  size_t page_bytes;
  uint32_t tier1_pages;
};

// Progress of encode and update is the same in every target page: an armed call parks when the first progress * page_bytes
// bytes (rounded down to a word) of all of them are new and nothing behind is touched.
void encode(const Code& code, const Indices& columns, const Addresses& data, const Addresses& target,
            const std::optional<Park>& park);

void update_parity(const Code& code, const Indices& columns, const Addresses& undo, const Addresses& data,
                   const Addresses& parity, const Addresses& target, const std::optional<Park>& park);

// Solves the lost pages with the first rows, then checks the spare ones. Needs at least as many rows as lost columns.
// Returns the first spare row that contradicts the result, or -1.
int reconstruct(const Code& code, const Indices& columns, const Addresses& data, const Indices& lost_columns,
                const Addresses& target, const Indices& rows, const Addresses& parity);

}  // namespace leto
