#include "base/counters.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/random.hpp"

namespace nobounce {
namespace {

// Each test has a runtime directory of its own on memory-backed storage.
class Counters : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/dev/shm/nobounce_test_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    base_ = name;
    if (const char* before = std::getenv("XDG_RUNTIME_DIR")) before_ = before;
    setenv("XDG_RUNTIME_DIR", base_.c_str(), 1);
  }
  void TearDown() override {
    before_.empty() ? unsetenv("XDG_RUNTIME_DIR") : setenv("XDG_RUNTIME_DIR", before_.c_str(), 1);
    std::filesystem::remove_all(base_);
  }
  std::string file(const std::string& name) const { return base_ + "/nobounce/" + name; }
  std::string write_file(const std::string& content) const {
    const std::string path = base_ + "/forged";
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::string base_, before_;
};

TEST_F(Counters, one_name_one_counter) {
  CounterRegistry registry;
  Counter a = registry.counter("rx.packets");
  Counter b = registry.counter("rx.packets");
  Counter other = registry.counter("tx.packets");
  a.add();
  b.add(4);
  other.set(7);
  other.raise_to(3);
  EXPECT_EQ(registry.value("rx.packets"), 5u);
  EXPECT_EQ(registry.value("tx.packets"), 7u);
  other.raise_to(9);
  EXPECT_EQ(other.value(), 9u);
  EXPECT_EQ(registry.value("rx"), 0u);
  EXPECT_EQ(registry.samples().size(), 2u);
}

TEST_F(Counters, unassigned_ones_count_into_nothing) {
  Counter counter;
  counter.add(3);
  CounterRegistry registry;
  EXPECT_TRUE(registry.samples().empty());
}

TEST_F(Counters, long_names_are_cut_the_same_way_every_time) {
  CounterRegistry registry;
  const std::string name(200, 'n');
  registry.counter(name).add(1);
  registry.counter(name).add(1);
  ASSERT_EQ(registry.samples().size(), 1u);
  EXPECT_EQ(registry.samples()[0].name, name.substr(0, CounterRegistry::kNameMax));
  EXPECT_EQ(registry.samples()[0].value, 2u);
}

TEST_F(Counters, a_full_table_counts_into_one_overflow) {
  CounterRegistry registry;
  for (size_t i = 0; i < CounterRegistry::kCountersMax + 50; ++i) {
    registry.counter("c" + std::to_string(i)).add(1);
  }
  EXPECT_EQ(registry.samples().size(), CounterRegistry::kCountersMax);
  EXPECT_EQ(registry.value("c0"), 1u);
  EXPECT_EQ(registry.value("counters.overflow"), 51u);
}

TEST_F(Counters, shared_ones_lose_nothing_between_threads) {
  CounterRegistry registry;
  SharedCounter counter = registry.counter("shared");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([copy = counter]() mutable {
      for (int i = 0; i < 10'000; ++i) copy.add(2);
      for (int i = 0; i < 10'000; ++i) copy.subtract(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.value("shared"), 40'000u);
}

TEST_F(Counters, registering_from_threads_makes_no_doubles) {
  CounterRegistry registry;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&registry] {
      for (int i = 0; i < 100; ++i) (void)registry.counter("c" + std::to_string(i));
    });
  }
  for (int i = 0; i < 50; ++i) (void)registry.samples();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.samples().size(), 100u);
}

TEST_F(Counters, TM88_published_private_and_removed_at_the_end) {
  {
    auto registry = CounterRegistry::publish("guest");
    ASSERT_TRUE(registry.has_value()) << registry.error().to_string();
    (*registry)->counter("rx.packets").add(41);
    (*registry)->counter("rx.packets").add(1);
    struct stat status{};
    ASSERT_EQ(stat(file("guest").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    ASSERT_EQ(stat((base_ + "/nobounce").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
    const auto samples = read_counters(file("guest"));
    ASSERT_TRUE(samples.has_value()) << samples.error().to_string();
    ASSERT_EQ(samples->size(), 1u);
    EXPECT_EQ(samples->at(0).name, "rx.packets");
    EXPECT_EQ(samples->at(0).value, 42u);
  }
  EXPECT_FALSE(std::filesystem::exists(file("guest")));
  EXPECT_FALSE(read_counters(file("guest")).has_value());
}

TEST_F(Counters, TM88_a_directory_that_others_can_write_is_refused) {
  std::filesystem::create_directory(base_ + "/nobounce");
  chmod((base_ + "/nobounce").c_str(), 0777);
  const auto directory = runtime_directory();
  ASSERT_FALSE(directory.has_value());
  EXPECT_EQ(directory.error().code, std::errc::permission_denied);
  EXPECT_FALSE(directory.error().hint.empty());
  EXPECT_FALSE(CounterRegistry::publish("guest").has_value());
}

TEST_F(Counters, TM88_a_link_instead_of_the_directory_is_refused) {
  std::filesystem::create_directory(base_ + "/elsewhere");
  std::filesystem::create_directory_symlink(base_ + "/elsewhere", base_ + "/nobounce");
  EXPECT_FALSE(runtime_directory().has_value());
}

TEST_F(Counters, TM88_storage_that_is_not_memory_is_refused) {
  // The build directory, where it lies on a disk.
  const auto disk = std::filesystem::current_path() / "counters_test_disk";
  std::filesystem::create_directories(disk);
  setenv("XDG_RUNTIME_DIR", disk.c_str(), 1);
  const auto directory = runtime_directory();
  if (directory.has_value()) {
    std::filesystem::remove_all(disk);
    GTEST_SKIP() << "the build directory is memory-backed itself";
  }
  EXPECT_EQ(directory.error().code, std::errc::not_supported);
  std::filesystem::remove_all(disk);
}

TEST_F(Counters, a_link_instead_of_the_file_is_not_followed) {
  ASSERT_TRUE(runtime_directory().has_value());
  const std::string target = write_file("precious");
  std::filesystem::create_symlink(target, file("guest"));
  EXPECT_TRUE(CounterRegistry::publish("guest").has_value());
  EXPECT_EQ(std::filesystem::file_size(target), 8u);
}

TEST_F(Counters, a_second_registry_of_the_same_name_leaves_the_first_ones_memory_alone) {
  auto first = CounterRegistry::publish("guest");
  ASSERT_TRUE(first.has_value());
  Counter counter = (*first)->counter("x");
  counter.add(3);
  auto second = CounterRegistry::publish("guest");
  ASSERT_TRUE(second.has_value()) << second.error().to_string();
  counter.add(4);  // a truncated file would fault here
  EXPECT_EQ((*first)->value("x"), 7u);
  EXPECT_EQ((*second)->value("x"), 0u);
}

TEST_F(Counters, the_first_ones_end_leaves_the_second_ones_file_alone) {
  auto first = CounterRegistry::publish("guest");
  auto second = CounterRegistry::publish("guest");
  ASSERT_TRUE(first.has_value() && second.has_value());
  first->reset();
  EXPECT_TRUE(read_counters(file("guest")).has_value());
  second->reset();
  EXPECT_FALSE(std::filesystem::exists(file("guest")));
}

// A process that publishes and then waits to be killed.
class Publisher {
 public:
  explicit Publisher(const std::string& name) {
    int ready[2];
    if (pipe(ready) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      const auto registry = CounterRegistry::publish(name);
      if (registry && write(ready[1], "r", 1) == 1) pause();
      _exit(1);
    }
    close(ready[1]);
    char byte = 0;
    is_ready_ = read(ready[0], &byte, 1) == 1;
    close(ready[0]);
  }
  ~Publisher() { end(); }
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;
  [[nodiscard]] bool is_ready() const { return is_ready_; }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  bool is_ready_ = false;
};

TEST_F(Counters, TM88_what_a_killed_process_left_is_swept_and_nothing_else) {
  ASSERT_TRUE(runtime_directory().has_value());
  Publisher killed("killed-1");
  Publisher alive("alive-2");
  ASSERT_TRUE(killed.is_ready() && alive.is_ready());
  auto own = CounterRegistry::publish("own-3");
  ASSERT_TRUE(own.has_value()) << own.error().to_string();
  EXPECT_TRUE(std::filesystem::exists(file("killed-1"))) << "it lives still";
  killed.end();
  EXPECT_TRUE(std::filesystem::exists(file("killed-1"))) << "nobody could remove it";
  std::filesystem::copy_file(file("killed-1"), base_ + "/elsewhere");
  std::filesystem::create_symlink(base_ + "/elsewhere", file("link-4"));
  std::ofstream(file("notes")) << "no counters";
  ASSERT_EQ(mkfifo(file("pipe").c_str(), 0600), 0);

  auto next = CounterRegistry::publish("next-5");
  ASSERT_TRUE(next.has_value()) << next.error().to_string();
  EXPECT_FALSE(std::filesystem::exists(file("killed-1")));
  for (const char* name : {"alive-2", "own-3", "next-5", "notes", "pipe"}) {
    EXPECT_TRUE(std::filesystem::exists(file(name))) << name;
  }
  EXPECT_TRUE(std::filesystem::is_symlink(file("link-4"))) << "not followed, not ours to judge";
  EXPECT_TRUE(read_counters(file("alive-2")).has_value());
}

TEST_F(Counters, TM88_of_many_processes_the_dead_ones_files_go) {
  ASSERT_TRUE(runtime_directory().has_value());
  std::vector<std::unique_ptr<Publisher>> publishers;
  for (int i = 0; i < 8; ++i) {
    publishers.push_back(std::make_unique<Publisher>("many-" + std::to_string(i)));
    ASSERT_TRUE(publishers.back()->is_ready());
    if (i % 2 == 1) publishers.back()->end();
  }
  auto own = CounterRegistry::publish("own");
  ASSERT_TRUE(own.has_value()) << own.error().to_string();
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(std::filesystem::exists(file("many-" + std::to_string(i))), i % 2 == 0) << i;
  }
}

TEST_F(Counters, a_missing_runtime_directory_names_it) {
  setenv("XDG_RUNTIME_DIR", "/no/such/place", 1);
  const auto directory = runtime_directory();
  ASSERT_FALSE(directory.has_value());
  EXPECT_NE(directory.error().to_string().find("/no/such/place"), std::string::npos);
}

// ---- reading what another process wrote: any content at all ----

std::string header(uint64_t magic, uint64_t count) {
  std::string text(64, '\0');
  std::memcpy(text.data(), &magic, 8);
  std::memcpy(text.data() + 8, &count, 8);
  return text;
}
constexpr uint64_t kMagic = 0x6e6f626e63653031;

TEST_F(Counters, hostile_files_are_refused) {
  const std::string whole = header(kMagic, 1) + std::string(64, 'x');
  EXPECT_FALSE(read_counters(write_file("")).has_value());
  EXPECT_FALSE(read_counters(write_file("short")).has_value());
  EXPECT_FALSE(read_counters(write_file(header(kMagic + 1, 0))).has_value());
  EXPECT_FALSE(read_counters(write_file(header(kMagic, 1))).has_value()) << "one entry, none there";
  EXPECT_FALSE(read_counters(write_file(header(kMagic, 2) + std::string(64, 'x'))).has_value());
  EXPECT_FALSE(read_counters(write_file(whole.substr(0, whole.size() - 1))).has_value());
  EXPECT_FALSE(read_counters(write_file(header(kMagic, ~uint64_t{0}))).has_value());
  EXPECT_FALSE(read_counters(write_file(header(kMagic, uint64_t{1} << 58))).has_value())
      << "count * 64 wraps";
  EXPECT_FALSE(read_counters(write_file(header(kMagic, CounterRegistry::kCountersMax + 1) +
                                        std::string(70'000, 'x')))
                   .has_value());
  EXPECT_FALSE(read_counters(base_).has_value()) << "a directory";
}

TEST_F(Counters, a_name_without_an_end_is_cut) {
  const auto samples = read_counters(write_file(header(kMagic, 1) + std::string(64, 'x')));
  ASSERT_TRUE(samples.has_value());
  EXPECT_EQ(samples->at(0).name, std::string(CounterRegistry::kNameMax, 'x'));
}

TEST_F(Counters, a_pipe_does_not_hang_the_reader) {
  const std::string path = base_ + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(read_counters(path).has_value());
}

TEST_F(Counters, random_files_never_crash_the_reader) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    std::string text = header(kMagic, random.below(5));
    std::string rest(random.below(400), '\0');
    random.fill(std::as_writable_bytes(std::span(rest)));
    const auto samples = read_counters(write_file(text + rest));
    if (samples) {
      EXPECT_LE(samples->size(), 4u);
    }
  }
}

}  // namespace
}  // namespace nobounce
