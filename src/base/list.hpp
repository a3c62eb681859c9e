// Intrusive doubly linked list. An object is in at most one list per hook; the list owns nothing.
// O(1) for everything but size checks; no allocation. Not thread-safe.
#pragma once

#include <cstddef>

#include "base/assert.hpp"

namespace nobounce {

struct ListHook {
  ListHook* previous = nullptr;
  ListHook* next = nullptr;

  ListHook() = default;
  ListHook(const ListHook&) = delete;
  ListHook& operator=(const ListHook&) = delete;
  ~ListHook() { NB_DEBUG_ASSERT(!is_linked()); }

  [[nodiscard]] bool is_linked() const noexcept { return next != nullptr; }

  void unlink() noexcept {
    NB_ASSERT(is_linked());
    previous->next = next;
    next->previous = previous;
    previous = next = nullptr;
  }
};

// T derives from Hook (a ListHook, or a type derived from it when T needs several hooks).
template <class T, class Hook = ListHook>
class List {
 public:
  List() noexcept { head_.previous = head_.next = &head_; }
  List(const List&) = delete;
  List& operator=(const List&) = delete;
  ~List() {
    NB_DEBUG_ASSERT(empty());
    head_.previous = head_.next = nullptr;
  }

  [[nodiscard]] bool empty() const noexcept { return head_.next == &head_; }
  [[nodiscard]] size_t size() const noexcept { return size_; }

  void push_back(T& item) noexcept { insert(head_.previous, hook(item)); }
  void push_front(T& item) noexcept { insert(&head_, hook(item)); }
  void insert_before(T& position, T& item) noexcept { insert(hook(position).previous, hook(item)); }

  [[nodiscard]] T* front() noexcept { return empty() ? nullptr : item(head_.next); }
  [[nodiscard]] T* back() noexcept { return empty() ? nullptr : item(head_.previous); }
  [[nodiscard]] T* next(T& position) noexcept {
    ListHook* following = hook(position).next;
    return following == &head_ ? nullptr : item(following);
  }
  [[nodiscard]] T* previous(T& position) noexcept {
    ListHook* preceding = hook(position).previous;
    return preceding == &head_ ? nullptr : item(preceding);
  }

  T* pop_front() noexcept {
    T* first = front();
    if (first != nullptr) remove(*first);
    return first;
  }
  T* pop_back() noexcept {
    T* last = back();
    if (last != nullptr) remove(*last);
    return last;
  }
  void remove(T& item) noexcept {
    hook(item).unlink();
    --size_;
  }

 private:
  static ListHook& hook(T& item) noexcept { return static_cast<Hook&>(item); }
  static T* item(ListHook* hook) noexcept { return static_cast<T*>(static_cast<Hook*>(hook)); }

  void insert(ListHook* after, ListHook& added) noexcept {
    NB_ASSERT(!added.is_linked());
    added.previous = after;
    added.next = after->next;
    after->next->previous = &added;
    after->next = &added;
    ++size_;
  }

  ListHook head_;
  size_t size_ = 0;
};

}  // namespace nobounce
