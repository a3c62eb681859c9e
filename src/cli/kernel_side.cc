#include "cli/kernel_side.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "base/bytes.hpp"
#include "base/unique_fd.hpp"
#include "cli/kernel_sockets.hpp"
#include "cli/perf.hpp"

namespace nobounce::cli {
namespace {

constexpr std::array kJobs{PerfJob::transmit, PerfJob::receive, PerfJob::echo};
const std::string kOperation = "use the kernel's TCP";

// To the end of the client's stream, or of the connection; then our own end.
void serve_connection(int fd, PerfJob job) {
  std::vector<std::byte> bytes(kKernelPieceBytes);
  if (job == PerfJob::receive) {  // the client receives: we are the source
    while (kernel_send_all(fd, bytes)) {
    }
    return;
  }
  for (;;) {
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (got <= 0) break;
    const Bytes piece = Bytes(bytes).first(static_cast<size_t>(got));
    if (job == PerfJob::echo && !kernel_send_all(fd, piece)) return;
  }
  ::shutdown(fd, SHUT_WR);
}

}  // namespace

// The thread that lives in the namespace takes one job after the other.
struct KernelSide::State {
  void post(const std::function<void()>& work) {
    std::unique_lock guard(lock);
    job = &work;
    wake.notify_all();
    wake.wait(guard, [this] { return job == nullptr; });
  }
  void live() {
    std::unique_lock guard(lock);
    for (;;) {
      wake.wait(guard, [this] { return stopping || job != nullptr; });
      if (job == nullptr) return;
      guard.unlock();
      (*job)();
      guard.lock();
      job = nullptr;
      wake.notify_all();
    }
  }
  void accept_all();

  std::mutex lock;
  std::condition_variable wake;
  const std::function<void()>* job = nullptr;  // null again when it is done
  bool stopping = false;
  std::string netns;
  UniqueFd stop;
  std::array<UniqueFd, kJobs.size()> listeners;
  std::thread acceptor;
  std::thread resident;
};

void KernelSide::State::accept_all() {
  struct Client {
    UniqueFd fd;
    std::thread thread;
  };
  std::list<Client> clients;
  for (;;) {
    std::array<pollfd, 1 + kJobs.size()> fds{{{stop.get(), POLLIN, 0},
                                              {listeners[0].get(), POLLIN, 0},
                                              {listeners[1].get(), POLLIN, 0},
                                              {listeners[2].get(), POLLIN, 0}}};
    if (::poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) break;
    if (fds[0].revents != 0) break;
    for (size_t i = 0; i < kJobs.size(); ++i) {
      if (fds[i + 1].revents == 0) continue;
      UniqueFd fd(::accept4(listeners[i].get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd.is_open()) continue;
      Client& client = clients.emplace_back();
      client.fd = std::move(fd);
      client.thread = std::thread(serve_connection, client.fd.get(), kJobs[i]);
    }
  }
  for (Client& client : clients) {
    ::shutdown(client.fd.get(), SHUT_RDWR);
    client.thread.join();
  }
}

Result<std::unique_ptr<KernelSide>> KernelSide::start() {
  auto state = std::make_unique<State>();
  state->stop = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!state->stop.is_open()) return fail_errno(kOperation);
  state->resident = std::thread([raw = state.get()] { raw->live(); });
  std::unique_ptr<KernelSide> side(new KernelSide(std::move(state)));
  int cause = 0;
  side->run([&] {
    if (::unshare(CLONE_NEWNET) != 0) cause = errno;
    side->state_->netns = fmt::format("/proc/{}/task/{}/ns/net", ::getpid(), ::gettid());
  });
  if (cause != 0) {
    errno = cause;
    return fail_errno(kOperation + ": make a network namespace", "this part needs root");
  }
  return side;
}

KernelSide::KernelSide(std::unique_ptr<State> state) : state_(std::move(state)) {}

KernelSide::~KernelSide() {
  constexpr uint64_t kOne = 1;
  [[maybe_unused]] const ssize_t written = ::write(state_->stop.get(), &kOne, sizeof kOne);
  if (state_->acceptor.joinable()) state_->acceptor.join();
  {
    const std::lock_guard guard(state_->lock);
    state_->stopping = true;
  }
  state_->wake.notify_all();
  state_->resident.join();
}

const std::string& KernelSide::netns() const noexcept { return state_->netns; }

void KernelSide::run(const std::function<void()>& work) { state_->post(work); }

Result<void> KernelSide::set_up(const std::string& interface, const std::string& address) {
  Result<void> result;
  run([&] { result = bring_up(interface, address); });
  return result;
}

Result<void> KernelSide::serve() {
  Result<void> result;
  run([&] {
    for (size_t i = 0; result && i < kJobs.size(); ++i) {
      auto listener = kernel_listen(service_port(kJobs[i]));
      if (!listener) {
        result = std::unexpected(listener.error());
      } else {
        state_->listeners[i] = std::move(*listener);
      }
    }
    // Made here, so that it is in the namespace too.
    if (result) state_->acceptor = std::thread([this] { state_->accept_all(); });
  });
  return result;
}

}  // namespace nobounce::cli
