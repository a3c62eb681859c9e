#include "base/list.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "base/random.hpp"

namespace nobounce {
namespace {

struct ByAge : ListHook {};
struct ByName : ListHook {};
struct Item : ByAge, ByName {
  explicit Item(int n = 0) : number(n) {}
  int number;
};
struct Plain : ListHook {
  int number = 0;
};

template <class L>
std::vector<int> numbers(L& list) {
  std::vector<int> found;
  for (auto* item = list.front(); item != nullptr; item = list.next(*item)) {
    found.push_back(item->number);
  }
  return found;
}

TEST(List, order_of_pushes_and_pops) {
  List<Plain> list;
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.front(), nullptr);
  EXPECT_EQ(list.back(), nullptr);
  EXPECT_EQ(list.pop_front(), nullptr);
  EXPECT_EQ(list.pop_back(), nullptr);
  Plain a, b, c;
  a.number = 1, b.number = 2, c.number = 3;
  list.push_back(b);
  list.push_front(a);
  list.push_back(c);
  EXPECT_EQ(numbers(list), (std::vector{1, 2, 3}));
  EXPECT_EQ(list.size(), 3u);
  list.remove(b);
  EXPECT_FALSE(b.is_linked());
  list.insert_before(a, b);
  EXPECT_EQ(numbers(list), (std::vector{2, 1, 3}));
  EXPECT_EQ(list.pop_back(), &c);
  EXPECT_EQ(list.pop_front(), &b);
  EXPECT_EQ(list.pop_front(), &a);
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.size(), 0u);
}

TEST(List, one_item_in_two_lists) {
  List<Item, ByAge> ages;
  List<Item, ByName> names;
  Item one(1);
  Item two(2);
  ages.push_back(one);
  ages.push_back(two);
  names.push_back(two);
  names.push_back(one);
  EXPECT_EQ(numbers(ages), (std::vector{1, 2}));
  EXPECT_EQ(numbers(names), (std::vector{2, 1}));
  ages.remove(one);
  EXPECT_EQ(numbers(names), (std::vector{2, 1}));
  ages.remove(two);
  names.remove(two);
  names.remove(one);
}

TEST(List, against_a_model) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    std::vector<Plain> items(32);
    for (int i = 0; i < 32; ++i) items[static_cast<size_t>(i)].number = i;
    List<Plain> list;
    std::deque<int> model;
    for (int step = 0; step < 2000; ++step) {
      Plain& item = items[random.below(32)];
      if (item.is_linked()) {
        list.remove(item);
        std::erase(model, item.number);
      } else if (random.below(2) == 0) {
        list.push_back(item);
        model.push_back(item.number);
      } else {
        list.push_front(item);
        model.push_front(item.number);
      }
      ASSERT_EQ(list.size(), model.size());
      ASSERT_EQ(list.empty(), model.empty());
      if (!model.empty()) {
        ASSERT_EQ(list.front()->number, model.front());
        ASSERT_EQ(list.back()->number, model.back());
      }
    }
    EXPECT_EQ(numbers(list), std::vector<int>(model.begin(), model.end()));
    while (list.pop_front() != nullptr) {
    }
  }
}

TEST(List, an_item_is_in_one_list_at_most) {
  Plain item;
  List<Plain> list;
  EXPECT_DEATH(item.unlink(), "assertion failed");
  list.push_back(item);
  EXPECT_DEATH(list.push_back(item), "assertion failed");
  list.remove(item);
}

}  // namespace
}  // namespace nobounce
