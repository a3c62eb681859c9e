#include "base/siphash.hpp"

namespace nobounce {
namespace {

struct State {
  uint64_t v0, v1, v2, v3;

  void round() noexcept {
    v0 += v1;
    v1 = std::rotl(v1, 13) ^ v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1;
    v1 = std::rotl(v1, 17) ^ v2;
    v2 = std::rotl(v2, 32);
  }
  void absorb(uint64_t word) noexcept {
    v3 ^= word;
    round();
    round();
    v0 ^= word;
  }
};

}  // namespace

uint64_t siphash(const SipKey& key, Bytes bytes) noexcept {
  State state{key.k0 ^ 0x736f6d6570736575, key.k1 ^ 0x646f72616e646f6d, key.k0 ^ 0x6c7967656e657261,
              key.k1 ^ 0x7465646279746573};
  const size_t whole = bytes.size() & ~size_t{7};
  for (size_t i = 0; i < whole; i += 8) state.absorb(load_le<uint64_t>(bytes, i));
  uint64_t last = uint64_t{bytes.size()} << 56;
  for (size_t i = whole; i < bytes.size(); ++i) {
    last |= uint64_t{std::to_integer<uint8_t>(bytes[i])} << (8 * (i - whole));
  }
  state.absorb(last);
  state.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) state.round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

}  // namespace nobounce
