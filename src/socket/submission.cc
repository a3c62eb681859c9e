#include "socket/submission.hpp"

#include <vector>

namespace nobounce {
namespace {

std::atomic<uint64_t> next_id{1};

// The calling thread's rings, one a shard it has used. At thread exit they are left for reuse.
struct ThreadRings {
  struct Entry {
    uint64_t id = 0;
    std::shared_ptr<SubmissionQueue> queue;
  };
  std::vector<Entry> entries;

  ~ThreadRings();
};

thread_local ThreadRings thread_rings;
// Sockets in static storage are closed after the thread's rings have gone, and so are those that
// another destructor of the thread closes. They get rings that stay with the process.
thread_local bool rings_are_gone = false;
thread_local ThreadRings* late_rings = nullptr;

ThreadRings::~ThreadRings() {
  rings_are_gone = true;
  for (Entry& entry : entries) {
    entry.queue->has_owner.store(false, std::memory_order_release);  // [orphan]
  }
}

ThreadRings& rings_of_this_thread() {
  if (!rings_are_gone) return thread_rings;
  if (late_rings == nullptr) late_rings = new ThreadRings;
  return *late_rings;
}

}  // namespace

SubmissionQueues::SubmissionQueues() : id_(next_id.fetch_add(1, std::memory_order_relaxed)) {}
SubmissionQueues::~SubmissionQueues() = default;

SubmissionQueue* SubmissionQueues::mine() noexcept {
  auto& entries = rings_of_this_thread().entries;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].id == id_) {
      if (i != 0) std::swap(entries[0], entries[i]);
      return entries[0].queue.get();
    }
  }
  std::shared_ptr<SubmissionQueue> queue = adopt_or_make();
  if (queue == nullptr) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  // Rings whose shard has gone are held by nobody but this thread: forget them here.
  std::erase_if(entries,
                [](const ThreadRings::Entry& entry) { return entry.queue.use_count() == 1; });
  entries.push_back({id_, queue});
  return queue.get();
}

std::shared_ptr<SubmissionQueue> SubmissionQueues::adopt_or_make() {
  const std::lock_guard guard(lock_);
  const size_t count = count_.load(std::memory_order_relaxed);
  for (size_t i = 0; i < count; ++i) {
    SubmissionQueue& queue = *owners_[i];
    // Reused only when drained, so that what the old thread left is applied first.
    if (!queue.has_owner.load(std::memory_order_acquire) &&  // pairs with [orphan]
        queue.ring.empty()) {
      queue.has_owner.store(true, std::memory_order_relaxed);
      return owners_[i];
    }
  }
  if (count == kThreadsMax) return nullptr;
  owners_[count] = std::make_shared<SubmissionQueue>();
  queues_[count].store(owners_[count].get(), std::memory_order_release);
  count_.store(count + 1, std::memory_order_release);
  return owners_[count];
}

bool SubmissionQueues::any_pending() noexcept {
  const size_t rings = count();
  for (size_t i = 0; i < rings; ++i) {
    if (!at(i).ring.empty()) return true;
  }
  return false;
}

}  // namespace nobounce
