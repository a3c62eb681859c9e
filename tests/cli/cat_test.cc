// `nobounce cat` as a user runs it: two guests on a link, files and pipes at their ends.
#include "cli/cat.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/random.hpp"
#include "cli/process.hpp"
#include "support/paths.hpp"

namespace nobounce::cli {
namespace {

using std::chrono::seconds;

class CatTest : public testing::Test {
 protected:
  CatTest() {
    char path[] = "/tmp/nobounce-test-XXXXXX";
    directory_ = ::mkdtemp(path);
  }
  ~CatTest() override {
    device_.reset();
    std::filesystem::remove_all(directory_);
  }
  void SetUp() override { start_device({}); }

  void start_device(const std::vector<std::string>& more) {
    device_.reset();
    std::vector<std::string> words{test::kProgram, "backend", "--socket",
                                   socket(),       "--net",   "link"};
    words.insert(words.end(), more.begin(), more.end());
    auto device = Process::start(words);
    ASSERT_TRUE(device) << device.error().to_string();
    device_ = std::make_unique<Process>(std::move(*device));
    for (int i = 0; i < 1000 && !std::filesystem::exists(socket()); ++i) ::usleep(10'000);
  }
  [[nodiscard]] std::string socket() const { return directory_ + "/nb.sock"; }
  [[nodiscard]] std::string file(const std::string& name) const { return directory_ + "/" + name; }
  void make_file(const std::string& name, size_t bytes, uint64_t seed) const {
    SeededRandom random(seed);
    std::vector<std::byte> content(bytes);
    random.fill(content);
    std::ofstream out(file(name), std::ios::binary);
    for (const std::byte byte : content) out.put(static_cast<char>(byte));
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ifstream in(file(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // A shell line in which CAT stands for the command with its network.
  [[nodiscard]] Process shell(int host, std::string line,
                              const std::string& mode = "nocopy") const {
    const std::string cat = std::string(test::kProgram) + " cat --net vhost-user:" + socket() +
                            " --mode " + mode + " --ip 10.77.0." + std::to_string(host) + "/24";
    for (size_t at = line.find("CAT"); at != std::string::npos; at = line.find("CAT", at)) {
      line.replace(at, 3, cat);
      at += cat.size();
    }
    auto process = Process::start({"/bin/sh", "-c", "cd " + directory_ + " && " + line});
    EXPECT_TRUE(process) << process.error().to_string();
    return std::move(*process);
  }
  static int wait(Process& process) {
    const auto output = process.finish(seconds(60), [](const std::string&) {});
    EXPECT_TRUE(output) << output.error().to_string();
    if (output && output->status != 0) error_ = output->error;
    return output ? output->status : -1;
  }
  // The listener says so on its standard error.
  static void wait_until_listening(Process& process) {
    std::string text;
    for (int i = 0; i < 1000 && text.find("listening") == std::string::npos; ++i) {
      text = process.error_text();
      ::usleep(10'000);
    }
    EXPECT_NE(text.find("listening"), std::string::npos) << text;
  }

  static inline std::string error_;
  std::string directory_;
  std::unique_ptr<Process> device_;
};

TEST_F(CatTest, a_file_each_way_at_once_in_both_modes) {
  make_file("a", 20'000'001, 1);
  make_file("b", 10'000'003, 2);
  for (const std::string mode : {"bounce", "nocopy"}) {
    SCOPED_TRACE(mode);
    Process server = shell(2, "CAT -v --listen 7000 < b > a.out", mode);
    wait_until_listening(server);
    Process client = shell(3, "CAT 10.77.0.2 7000 < a > b.out", mode);
    EXPECT_EQ(wait(client), 0) << error_;
    EXPECT_EQ(wait(server), 0) << error_;
    EXPECT_TRUE(content("a") == content("a.out"));
    EXPECT_TRUE(content("b") == content("b.out"));
  }
}

// C001: the far end answers only when it has seen our end.
TEST_F(CatTest, C001_half_close) {
  make_file("a", 3'000'000, 3);
  Process server = shell(2, "mkfifo p; CAT -v -l 7000 < p | sha256sum > p");
  wait_until_listening(server);
  Process client = shell(3, "CAT 10.77.0.2 7000 < a > sum");
  EXPECT_EQ(wait(client), 0) << error_;
  EXPECT_EQ(wait(server), 0) << error_;
  Process sum = shell(2, "sha256sum < a > expected");
  EXPECT_EQ(wait(sum), 0);
  EXPECT_EQ(content("sum"), content("expected"));
}

TEST_F(CatTest, an_empty_input_and_one_byte) {
  for (const size_t bytes : {0, 1}) {
    SCOPED_TRACE(bytes);
    make_file("a", bytes, 4);
    Process server = shell(2, "CAT -v -l 7000 < /dev/null > a.out");
    wait_until_listening(server);
    Process client = shell(3, "CAT 10.77.0.2 7000 < a");
    EXPECT_EQ(wait(client), 0) << error_;
    EXPECT_EQ(wait(server), 0) << error_;
    EXPECT_EQ(content("a.out"), content("a"));
  }
}

TEST_F(CatTest, over_a_bad_wire) {
  start_device({"--impair", "loss=1%,reorder=2%,duplicate=1%,corrupt=0.1%,seed=5"});
  make_file("a", 2'000'000, 5);
  Process server = shell(2, "CAT -v -l 7000 < a > a.out");
  wait_until_listening(server);
  Process client = shell(3, "CAT 10.77.0.2 7000 < a > b.out");
  EXPECT_EQ(wait(client), 0) << error_;
  EXPECT_EQ(wait(server), 0) << error_;
  EXPECT_TRUE(content("a") == content("a.out"));
  EXPECT_TRUE(content("a") == content("b.out"));
}

TEST_F(CatTest, datagrams) {
  make_file("a", 1200, 6);
  Process server = shell(2, "CAT -u -w 2 -l 7000 < /dev/null > a.out");
  ::usleep(500'000);  // a UDP server says nothing
  Process client = shell(3, "CAT -u 10.77.0.2 7000 < a");
  EXPECT_EQ(wait(client), 0) << error_;
  EXPECT_EQ(wait(server), 0) << error_;
  EXPECT_EQ(content("a.out"), content("a"));
}

// ---- ends that are not as planned ---------------------------------------------------------------

TEST_F(CatTest, nobody_listens_is_told_in_one_line) {
  Process other = shell(2, "CAT -l 7000 < /dev/null");
  ::usleep(500'000);
  Process client = shell(3, "CAT 10.77.0.2 7001 < /dev/null");
  EXPECT_EQ(wait(client), 1);
  EXPECT_NE(error_.find("connect to 10.77.0.2:7001"), std::string::npos) << error_;
  other.kill_now();
}

TEST_F(CatTest, a_full_disk_at_the_output_is_told_and_ends_both_directions) {
  make_file("a", 5'000'000, 7);
  Process server = shell(2, "CAT -v -l 7000 < /dev/null > /dev/full");
  wait_until_listening(server);
  Process client = shell(3, "CAT 10.77.0.2 7000 < a");
  EXPECT_EQ(wait(server), 1);
  EXPECT_NE(error_.find("standard output"), std::string::npos) << error_;
  EXPECT_EQ(wait(client), 1);  // reset: not everything arrived
}

// Nobody is there yet, or nobody comes.
TEST_F(CatTest, ctrl_c_is_heard_while_it_waits_for_the_far_end) {
  for (const char* line :
       {"exec CAT 10.77.0.99 7000 < /dev/null", "exec CAT -v -l 7000 < /dev/null"}) {
    SCOPED_TRACE(line);
    Process waiting = shell(3, line);
    ::usleep(1'000'000);
    const auto start = std::chrono::steady_clock::now();
    waiting.signal(SIGINT);
    EXPECT_EQ(wait(waiting), 130) << error_;
    EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(2));
    EXPECT_NE(error_.find("interrupted"), std::string::npos) << error_;
  }
}

// Open pipes: neither input ends. The far end must not take half for the whole.
TEST_F(CatTest, ctrl_c_resets_the_connection) {
  Process server = shell(2, "mkfifo p; exec CAT -v -l 7000 0<>p > a.out");
  wait_until_listening(server);
  Process client = shell(3, "mkfifo q; exec CAT -v 10.77.0.2 7000 0<>q");
  for (int i = 0; i < 1000 && client.error_text().find("connected") == std::string::npos; ++i) {
    ::usleep(10'000);
  }
  client.signal(SIGINT);
  EXPECT_EQ(wait(client), 130);
  EXPECT_EQ(wait(server), 1);
}

}  // namespace
}  // namespace nobounce::cli
