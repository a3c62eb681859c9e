#include "base/copies.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace nobounce {
namespace {

TEST(CopyLedger, counts_by_kind_and_by_thread) {
  CounterRegistry registry;
  CopyLedger ledger(registry);
  ledger.count(CopyKind::send, 100);
  std::thread io([&ledger] {
    set_this_thread_kind(ThreadKind::io);
    EXPECT_EQ(this_thread_kind(), ThreadKind::io);
    ledger.count(CopyKind::header, 54);
    ledger.count(CopyKind::bounce, 4096);
    ledger.count(CopyKind::bounce, 4096);
  });
  io.join();
  ledger.count(CopyKind::receive, 7);
  EXPECT_EQ(this_thread_kind(), ThreadKind::application);
  EXPECT_EQ(ledger.bytes(ThreadKind::application, CopyKind::send), 100u);
  EXPECT_EQ(ledger.bytes(ThreadKind::application, CopyKind::receive), 7u);
  EXPECT_EQ(ledger.bytes(ThreadKind::application, CopyKind::bounce), 0u);
  EXPECT_EQ(ledger.bytes(ThreadKind::io, CopyKind::header), 54u);
  EXPECT_EQ(registry.value("copy.io.bounce_bytes"), 8192u);
  EXPECT_EQ(registry.value("copy.application.send_bytes"), 100u);
}

TEST(CopyLedger, two_ledgers_on_one_registry_are_one_account) {
  CounterRegistry registry;
  CopyLedger first(registry);
  CopyLedger second(registry);
  first.count(CopyKind::send, 1);
  second.count(CopyKind::send, 2);
  EXPECT_EQ(first.bytes(ThreadKind::application, CopyKind::send), 3u);
}

}  // namespace
}  // namespace nobounce
