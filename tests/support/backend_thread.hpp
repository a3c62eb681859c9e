// The back-end in a thread of the test, at a socket of its own; and a service for it that turns frames
// round.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "backend/backend.hpp"
#include "backend/guest_port.hpp"
#include "backend/service.hpp"
#include "base/log.hpp"
#include "support/wire_link.hpp"

namespace nobounce::test {

// Sends every frame back as it came.
class Mirror final : public backend::PortService {
 public:
  static Result<std::unique_ptr<backend::PortService>> open(const backend::ServicePlace& place) {
    return std::make_unique<Mirror>(place);
  }
  explicit Mirror(const backend::ServicePlace& place) : end_(clock_) {
    auto port = backend::GuestPort::open(place.session, end_.context, place.counters,
                                         {.mac = {{2, 0, 0, 0, 0, 1}}, .wake_fds = place.wake_fds});
    EXPECT_TRUE(port);
    port_ = std::move(*port);
  }
  size_t round() noexcept override {
    end_.context.now_ns = clock_.now_ns();
    static_cast<void>(port_->receive(0, burst_));
    return burst_.empty() ? 0 : port_->transmit(0, burst_);
  }
  void sleep(uint64_t limit_ns) noexcept override {
    if (burst_.empty() && port_->arm(0)) {
      pollfd entry{port_->wait_handle(0).fd, POLLIN, 0};
      ::poll(&entry, 1, static_cast<int>(limit_ns / kNsPerMs));
      port_->acknowledge(0);
    }
    port_->disarm(0);
  }
  [[nodiscard]] bool is_down() const noexcept override { return port_->is_broken(); }

 private:
  MonotonicClock clock_;
  StackEnd end_;
  std::unique_ptr<backend::GuestPort> port_;
  PacketBurst burst_;
};

class BackendThread : public testing::Test {
 protected:
  BackendThread() {
    set_log_level(LogLevel::quiet);
    char path[] = "/tmp/nobounce-test-XXXXXX";
    directory_ = ::mkdtemp(path);
    options_.sockets = {directory_ + "/vhost.sock"};
  }
  ~BackendThread() override {
    stop();
    set_log_level(LogLevel::info);
    std::filesystem::remove_all(directory_);
  }
  void start(backend::ServiceFactory services = &Mirror::open) {
    auto opened = backend::Backend::open(options_, backend::one_guest(std::move(services)));
    ASSERT_TRUE(opened) << opened.error().to_string();
    backend_ = std::move(*opened);
    thread_ = std::jthread([this](std::stop_token token) { result_ = backend_->run(token); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
    EXPECT_TRUE(result_);
    backend_.reset();
  }
  [[nodiscard]] uint64_t count(const std::string& name) const {
    return backend_->registry().value(name);
  }
  void wait_for(const char* counter, uint64_t value) const {
    for (int i = 0; i < 5000 && count(counter) < value; ++i) ::usleep(1000);
    EXPECT_GE(count(counter), value) << counter;
  }

  std::string directory_;
  backend::BackendOptions options_;
  std::unique_ptr<backend::Backend> backend_;
  std::jthread thread_;
  Result<void> result_;
};

}  // namespace nobounce::test
