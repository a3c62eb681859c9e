// Zero-copy notifiers (ubuf_info): who wants to know when attached payload has been let go.
//
// A packet's shared data carries at most one notifier and holds one reference on it. An operation
// table says what completion means (a ring's event, a socket's error-queue id) and how a further
// notifier is linked to one that a packet already has ("stacking").
// Threads: a notifier belongs to its shard; complete() runs on the shard's thread.
// Spec: zerocopy-notif.md ZN-1..ZN-14, ZN-19, ZN-27..ZN-42.
#pragma once

#include <cstdint>

namespace nobounce {

class PacketData;
struct Notifier;

// Packet flag bits (ZN, section 1).
enum NotifierFlags : uint8_t {
  kZerocopyEnabled = 1,
  kSharedFrag = 2,
  kPureZerocopy = 4,
  kDoNotOrphan = 8,
  kManagedFrags = 16,
  kZerocopyFrag = kZerocopyEnabled | kSharedFrag,
  kAllZerocopy = kZerocopyEnabled | kSharedFrag | kPureZerocopy | kDoNotOrphan | kManagedFrags,
};

enum class LinkResult : uint8_t { linked, exists };

struct NotifierOps {
  // Records the outcome and drops one reference; the last drop emits the notification (ZN-3).
  // success: the data left, or was dropped, without being copied (ZN-4).
  void (*complete)(Notifier& notifier, bool success) noexcept;
  // Tries to let `notifier` share a packet that already carries one (ZN-27..ZN-32). Null: never.
  LinkResult (*link)(PacketData& data, Notifier& notifier) noexcept;
};

struct Notifier {
  const NotifierOps* ops = nullptr;
  uint32_t references = 1;  // submitter 1; each packet data that carries it 1; each follower 1
  uint8_t flags = kZerocopyFrag | kDoNotOrphan;
};

}  // namespace nobounce
