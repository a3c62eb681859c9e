#include "virtio/reconnector.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <array>

#include "base/assert.hpp"

namespace nobounce::virtio {
namespace {

// Our own eventfds, non-blocking: full means that the news is out already.
void signal(const UniqueFd& event) noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(event.get(), &one, sizeof one);
}

void clear(const UniqueFd& event) noexcept {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = ::read(event.get(), &count, sizeof count);
}

UniqueFd new_event() { return UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)); }

// Nobody there yet: what waiting is for, and no news.
bool is_absence(const Error& error) noexcept {
  return error.code == std::errc::no_such_file_or_directory ||
         error.code == std::errc::connection_refused;
}

}  // namespace

Result<std::unique_ptr<Reconnector>> Reconnector::create(Open open, std::string name, Clock& clock,
                                                         CounterRegistry& counters, Drive drive) {
  std::unique_ptr<Reconnector> made(
      new Reconnector(std::move(open), std::move(name), clock, counters, drive));
  if (!made->news_.is_open() || !made->request_.is_open() || !made->cancel_.is_open()) {
    return fail_errno("make the events of a reconnection", "raise the limit of open files");
  }
  if (drive == Drive::thread) {
    made->helper_ = std::thread([reconnector = made.get()] { reconnector->run(); });
    pthread_setname_np(made->helper_.native_handle(), "nobounce-reconn");
  }
  return made;
}

Reconnector::Reconnector(Open open, std::string name, Clock& clock, CounterRegistry& counters,
                         Drive drive)
    : open_(std::move(open)),
      name_(std::move(name)),
      clock_(clock),
      drive_(drive),
      news_(new_event()),
      request_(new_event()),
      cancel_(new_event()),
      attempts_(counters.counter("reconnect.attempts")) {}

Reconnector::~Reconnector() {
  signal(cancel_);
  if (helper_.joinable()) helper_.join();
}

// ---- the device's thread ------------------------------------------------------------------------

void Reconnector::request(uint64_t held_ns) noexcept {
  NB_ASSERT(state_.load(std::memory_order_relaxed) == State::idle);
  lost_ns_ = clock_.now_ns();
  pace_.lost(lost_ns_, held_ns);
  state_.store(State::wanted, std::memory_order_release);
  signal(request_);
}

std::unique_ptr<VirtioNet> Reconnector::take() noexcept {
  if (state_.load(std::memory_order_acquire) != State::made) return nullptr;
  std::unique_ptr<VirtioNet> device = std::move(made_);
  state_.store(State::idle,
               std::memory_order_relaxed);  // the device's own next request() publishes
  return device;
}

void Reconnector::step() noexcept {
  if (drive_ != Drive::caller || state_.load(std::memory_order_relaxed) != State::wanted) return;
  if (clock_.now_ns() >= pace_.next_ns()) attempt();
}

void Reconnector::acknowledge() noexcept { clear(news_); }

// ---- the helper ---------------------------------------------------------------------------------

void Reconnector::run() noexcept {
  while (wait_for_request()) {
    while (state_.load(std::memory_order_acquire) == State::wanted) {
      if (!wait_for_turn()) return;
      attempt();
    }
  }
}

// False: the Reconnector goes.
bool Reconnector::wait_for_request() noexcept {
  std::array<pollfd, 2> events{{{.fd = cancel_.get(), .events = POLLIN, .revents = 0},
                                {.fd = request_.get(), .events = POLLIN, .revents = 0}}};
  while (::poll(events.data(), events.size(), -1) < 0) {
  }
  clear(request_);
  return events[0].revents == 0;
}

bool Reconnector::wait_for_turn() noexcept {
  pollfd cancel{.fd = cancel_.get(), .events = POLLIN, .revents = 0};
  for (;;) {
    const uint64_t now_ns = clock_.now_ns();
    const uint64_t left_ns = pace_.next_ns() > now_ns ? pace_.next_ns() - now_ns : 0;
    ::poll(&cancel, 1, static_cast<int>((left_ns + kNsPerMs - 1) / kNsPerMs));
    if (cancel.revents != 0) return false;
    if (left_ns == 0) return true;
  }
}

void Reconnector::attempt() noexcept {
  pace_.attempted(clock_.now_ns());
  attempts_.add();
  auto opened = open_(cancel_.get());
  if (opened) {
    made_ = std::move(*opened);
    log_warning(fmt::format("{}: the device is back after {:.1f} s", name_,
                            static_cast<double>(clock_.now_ns() - lost_ns_) / 1e9));
    told_.clear();
    publish(State::made);
  } else {
    failed(opened.error());
  }
}

void Reconnector::failed(const Error& error) noexcept {
  if (error.code == std::errc::not_supported) {
    refusal_ = error.to_string();
    log_warning(fmt::format("{}: {}: stopped", name_, refusal_));
    publish(State::refused);
    return;
  }
  // Something is there and does not work: said once, and again when it changes.
  std::string text = error.to_string();
  if (is_absence(error) || text == told_) return;
  warn_limited(log_limit_, clock_.now_ns(), fmt::format("{}: still waiting: {}", name_, text));
  told_ = std::move(text);
}

void Reconnector::publish(State state) noexcept {
  state_.store(state, std::memory_order_release);
  signal(news_);
}

}  // namespace nobounce::virtio
