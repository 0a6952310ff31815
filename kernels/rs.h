// The erasure code over pages. Readable twin and the definition: leto/core/reed_solomon.py.
//
// Pages are 4-byte aligned and all of one length, a multiple of 4 bytes. Targets overlap neither inputs nor each other. All of
// a call's stores are ordered before its return, whatever they went through.
#pragma once

#include <optional>

#include "pages.h"
#include "park.h"
#include "points.h"
#include "scratch.h"

namespace leto {

struct Code {
  size_t page_bytes;
  uint32_t tier1_pages;
};

// How a call runs: in `scratch`, which no other call uses meanwhile, on at most `threads` threads.
struct Run {
  Scratch& scratch;
  size_t threads;
};

// Progress of encode and update is the same in every target page: an armed call parks when the first progress * page_bytes
// bytes (rounded down to a word) of all of them are new and nothing behind is touched.
void encode(const Run& run, const Code& code, const Indices& columns, const Addresses& data, const Addresses& target,
            const std::optional<Park>& park);

// `undo` is empty where `data` is the difference already.
void update_parity(const Run& run, const Code& code, const Indices& columns, const Addresses& undo, const Addresses& data,
                   const Addresses& parity, const Addresses& target, const std::optional<Park>& park);

// One group's pages, intact and lost. Columns in neither list are zeros; rows in neither list are left alone.
struct Erasure {
  const Indices& columns;
  const Addresses& data;
  const Indices& lost_columns;
  const Addresses& lost_data;  // written
  const Indices& rows;
  const Addresses& parity;
  const Indices& lost_rows;
  const Addresses& lost_parity;  // written
};

// Solves the lost columns with the first intact rows, checks the result with the others, which are spare, and encodes the
// lost rows, reading every page once. Needs at least as many intact rows as lost columns. Returns the first spare row that
// contradicts the result, or -1; after a contradiction the lost pages are not to be trusted.
int reconstruct(const Run& run, const Code& code, const Erasure& erasure);

}  // namespace leto
