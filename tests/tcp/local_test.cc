// Connections of a stack with itself (N-9, T-10; virtio.md 13).
#include "support/frames.hpp"
#include "tcp/script.hpp"

namespace nobounce::test {
namespace {

class TcpLocal : public testing::Test {
 protected:
  ~TcpLocal() override {
    if (client != nullptr) script.tcp->abort(*client);
    script.pump();
  }
  void connect(const Endpoint& from) {
    client = script.tcp->connect(from, {kOurAddress, script.our_port}, recorder, {}).value();
  }
  void send(size_t bytes) {
    const Frag frag = script.end.make_frag(pattern(bytes));
    ASSERT_TRUE(script.tcp->send(*client, frag, false));
    script.tcp->push(*client);
  }
  size_t received_by_client() {
    size_t got = 0;
    Frag frag;
    while (script.tcp->pop_received(*client, frag)) {
      ByteVector bytes(frag.size);
      page_read(*frag.page, frag.offset, bytes);
      EXPECT_EQ(bytes, pattern(frag.size));
      page_return(*frag.page);
      got += frag.size;
      script.tcp->consumed(*client, frag.size);
    }
    return got;
  }
  [[nodiscard]] std::string state() const { return script.tcp->info(*client).state; }
  uint64_t segments() { return script.end.count("tcp.segments_out"); }

  Script script;
  Recorder recorder;
  tcp::Connection* client = nullptr;
};

TEST_F(TcpLocal, N9_the_link_is_none_of_its_business) {
  script.listen();
  script.device.set_link_up(false);
  script.tcp->link_down();
  std::vector<PacketPtr> hoard;
  while (PacketPtr packet = script.end.packets.make()) hoard.push_back(std::move(packet));
  connect({});  // its SYN finds no packet
  hoard.clear();
  script.advance(3 * kNsPerSecond);  // and goes again, link or not
  EXPECT_EQ(recorder.connected, 1);
  ASSERT_NE(script.acceptor.connection, nullptr);
  script.connection = script.acceptor.connection;
  send(5000);
  size_t got = 0;  // slowly: a SYN was lost
  for (int i = 0; i < 10; ++i) {
    script.advance(50 * kMilli);
    got += script.read();
  }
  EXPECT_EQ(got, 5000U);
  EXPECT_EQ(recorder.acked, 5000U);
  const uint64_t before = segments();
  script.device.set_link_up(true);
  script.tcp->link_up();
  script.pump();
  EXPECT_EQ(segments(), before);  // nothing to say
  EXPECT_TRUE(script.quiet());
}

// A simultaneous open with nobody else: both ends are one connection.
TEST_F(TcpLocal, T10_a_port_connected_to_itself) {
  connect({kOurAddress, script.our_port});
  script.pump();
  EXPECT_EQ(state(), "ESTABLISHED");
  EXPECT_EQ(recorder.connected, 1);
  send(3000);
  script.pump();
  script.advance(kNsPerSecond);
  EXPECT_EQ(received_by_client(), 3000U);
  EXPECT_EQ(recorder.acked, 3000U);
  const uint64_t before = segments();
  script.advance(10 * kNsPerSecond);
  EXPECT_EQ(segments(), before);  // no war of acknowledgements
  script.tcp->shutdown_send(*client);
  script.pump();
  EXPECT_EQ(state(), "TIME-WAIT");
  EXPECT_LT(segments(), before + 10);
  EXPECT_TRUE(script.quiet());
}

}  // namespace
}  // namespace nobounce::test
