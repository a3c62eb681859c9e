// Waking, and guests that lie.
#include <poll.h>

#include "port_fixture.hpp"

namespace nobounce::backend::test {
namespace {

using Fixture = PortFixture;

// ---- waking -------------------------------------------------------------------------------------

bool is_readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST(GuestPort, C022_kicks_wake_by_edge_and_are_never_read) {
  Fixture f;
  const int wait = f.port->wait_handle(0).fd;
  EXPECT_TRUE(f.port->arm(0));
  f.port->acknowledge(0);  // what was signalled while the rings were set up
  const uint64_t before = f.registry.value("backend.kicks");
  EXPECT_FALSE(is_readable(wait));
  for (int i = 0; i < 3; ++i) {
    const uint64_t one = 1;
    ASSERT_EQ(::write(f.kicks[1].get(), &one, sizeof one), 8);
    EXPECT_TRUE(is_readable(wait));
    f.port->acknowledge(0);
    EXPECT_FALSE(is_readable(wait));
  }
  EXPECT_EQ(f.registry.value("backend.kicks"), before + 3);
  EXPECT_GE(event_count(f.kicks[1].get()), 3u);  // still all there
}

TEST(GuestPort, a_replaced_kick_is_watched_and_the_old_one_is_not) {
  Fixture f;
  const size_t fds = open_fds();
  const int wait = f.port->wait_handle(0).fd;
  EXPECT_TRUE(f.port->arm(0));
  f.port->acknowledge(0);
  const UniqueFd fresh = make_event();
  f.driver.expect_accepted(f.driver.set_event(Request::set_vring_kick, 1, fresh.get()));
  EXPECT_TRUE(f.port->arm(0));
  f.port->acknowledge(0);
  const uint64_t one = 1;
  ASSERT_EQ(::write(f.kicks[1].get(), &one, sizeof one), 8);
  EXPECT_FALSE(is_readable(wait));
  ASSERT_EQ(::write(fresh.get(), &one, sizeof one), 8);
  EXPECT_TRUE(is_readable(wait));
  EXPECT_LE(open_fds(), fds + 4);
}

// ---- hostile ------------------------------------------------------------------------------------

#ifdef NOBOUNCE_SHARED_LOAD_HOOK

// The guest rewrites what is about to be read, headers included: a frame or a drop or a latch.
TEST(GuestPort, C018_TM79_hostile_guest) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    Fixture f({.features = random.below(2) == 0 ? kAll : kAll & ~kMrg,
               .ring_size = static_cast<uint16_t>(1u << (2 + random.below(5)))});
    set_shared_load_hook(
        [](void* context, std::byte* address, size_t bytes) {
          auto& source = *static_cast<SeededRandom*>(context);
          if (source.below(40) != 0) return;
          const size_t at = source.below(static_cast<uint32_t>(bytes));
          address[at] = static_cast<std::byte>(source.below(source.below(2) == 0 ? 3 : 256));
        },
        &random);
    for (int i = 0; i < 40; ++i) {
      wire::VirtioNetHeader header{.flags = static_cast<uint8_t>(random.below(4)),
                                   .gso_type = static_cast<uint8_t>(random.below(6)),
                                   .gso_size = static_cast<uint16_t>(random.next_u32()),
                                   .csum_start = static_cast<uint16_t>(random.below(80)),
                                   .csum_offset = static_cast<uint16_t>(random.below(20))};
      f.guest_sends(header, make_frame(1 + random.below(9000), seed),
                    {1 + random.below(64), 4096 + random.below(9000)});
      static_cast<void>(f.receive());
      f.burst.clear();
      f.post(random.below(4), random.below(5000));
      PacketBurst out;
      out.push(f.make_packet(60 + random.below(9000), seed));
      static_cast<void>(f.port->transmit(0, out));
      static_cast<void>(f.port->arm(0));
      f.port->disarm(0);
    }
    set_shared_load_hook(nullptr, nullptr);
  }
}

#endif

}  // namespace
}  // namespace nobounce::backend::test
