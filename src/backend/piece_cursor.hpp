// Reads or writes a scattered buffer front to back: each byte once, never beyond the pieces.
// Plain value; the caller has checked that the pieces hold what it moves (asserted).
#pragma once

#include <algorithm>
#include <span>

#include "base/bytes.hpp"
#include "memory/shared.hpp"

namespace nobounce::backend {

class PieceCursor {
 public:
  explicit PieceCursor(std::span<const SharedBytes> pieces) noexcept : pieces_(pieces) {}

  void read(MutableBytes to) noexcept {
    for_each_part(to.size(), [&](const SharedBytes& piece, size_t at, size_t done, size_t part) {
      piece.copy_out(at, to.subspan(done, part));
    });
  }
  void write(Bytes from) noexcept {
    for_each_part(from.size(), [&](const SharedBytes& piece, size_t at, size_t done, size_t part) {
      piece.copy_in(at, from.subspan(done, part));
    });
  }
  void write(const SharedBytes& from) noexcept {
    for_each_part(from.size(), [&](const SharedBytes& piece, size_t at, size_t done, size_t part) {
      piece.copy_from(at, from.sub(done, part));
    });
  }

 private:
  template <class Move>
  void for_each_part(size_t bytes, Move&& move) noexcept {
    size_t done = 0;
    while (done < bytes) {
      NB_ASSERT(!pieces_.empty());
      const SharedBytes& piece = pieces_.front();
      const size_t part = std::min(bytes - done, piece.size() - offset_);
      if (part > 0) move(piece, offset_, done, part);
      done += part;
      offset_ += part;
      if (offset_ == piece.size()) {
        pieces_ = pieces_.subspan(1);
        offset_ = 0;
      }
    }
  }

  std::span<const SharedBytes> pieces_;
  size_t offset_ = 0;
};

}  // namespace nobounce::backend
