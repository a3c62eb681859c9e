#include "cli/kernel_side.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <fstream>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/bytes.hpp"
#include "base/unique_fd.hpp"
#include "cli/perf.hpp"

namespace nobounce::cli {
namespace {

constexpr size_t kPiece = 256 << 10;
constexpr int kBacklog = 16;
const std::string kOperation = "use the kernel's TCP";

sockaddr_in inet(const std::string& address, uint16_t port) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_port = htons(port);
  ::inet_pton(AF_INET, address.c_str(), &result.sin_addr);
  return result;
}

// All of it, or false when the connection is gone.
bool send_all(int fd, Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return true;
}

// To the end of the client's stream, or of the connection; then our own end.
void serve_connection(int fd, PerfJob job) {
  std::vector<std::byte> bytes(kPiece);
  if (job == PerfJob::receive) {  // the client receives: we are the source
    while (send_all(fd, bytes)) {
    }
    return;
  }
  for (;;) {
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (got <= 0) break;
    if (job == PerfJob::echo && !send_all(fd, Bytes(bytes).first(static_cast<size_t>(got)))) return;
  }
  ::shutdown(fd, SHUT_WR);
}

Result<UniqueFd> listen_on(const std::string& address, PerfJob job) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_in local = inet(address, service_port(job));
  if (!fd.is_open() ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&local), sizeof local) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    return fail_errno(kOperation);
  }
  return fd;
}

Result<void> bring_up(const std::string& name, const std::string& address) {
  const UniqueFd control(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  const auto set = [&](unsigned long what, const std::string& value) {
    const sockaddr_in in = inet(value, 0);
    std::memcpy(&request.ifr_addr, &in, sizeof in);
    return ::ioctl(control.get(), what, &request) == 0;
  };
  if (!set(SIOCSIFADDR, address) || !set(SIOCSIFNETMASK, "255.255.255.0") ||
      ::ioctl(control.get(), SIOCGIFFLAGS, &request) != 0) {
    return fail_errno(fmt::format("{}: set up {}", kOperation, name));
  }
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  if (::ioctl(control.get(), SIOCSIFFLAGS, &request) != 0) {
    return fail_errno(fmt::format("{}: bring up {}", kOperation, name));
  }
  return {};
}

}  // namespace

// The thread that lives in the namespace takes one job after the other.
struct KernelSide::State {
  void post(std::function<void()> work) {
    {
      const std::lock_guard guard(lock);
      job = std::move(work);
      done = false;
    }
    wake.notify_all();
    std::unique_lock guard(lock);
    wake.wait(guard, [this] { return done; });
  }
  void run() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock guard(lock);
        wake.wait(guard, [this] { return stopping || job; });
        if (!job) return;
        work = std::exchange(job, {});
      }
      work();
      {
        const std::lock_guard guard(lock);
        done = true;
      }
      wake.notify_all();
    }
  }
  void accept_all();

  std::mutex lock;
  std::condition_variable wake;
  std::function<void()> job;
  bool done = false;
  bool stopping = false;
  std::string netns;
  UniqueFd stop;
  std::array<UniqueFd, 3> listeners;
  std::thread acceptor;
  std::thread resident;
};

void KernelSide::State::accept_all() {
  struct Client {
    UniqueFd fd;
    std::thread thread;
  };
  std::list<Client> clients;
  constexpr std::array kJobs{PerfJob::transmit, PerfJob::receive, PerfJob::echo};
  for (;;) {
    std::array<pollfd, 4> fds{{{stop.get(), POLLIN, 0},
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
  if (::access("/dev/net/tun", R_OK | W_OK) != 0) {
    return fail_errno(kOperation + ": open /dev/net/tun");
  }
  auto state = std::make_unique<State>();
  state->stop = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!state->stop.is_open()) return fail_errno(kOperation);
  state->resident = std::thread([raw = state.get()] { raw->run(); });
  std::unique_ptr<KernelSide> side(new KernelSide(std::move(state)));
  int cause = 0;
  side->state_->post([&] {
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

Result<void> KernelSide::serve(const std::string& tap, const std::string& address) {
  Result<void> result;
  state_->post([&] {
    result = bring_up(tap, address);
    constexpr std::array kJobs{PerfJob::transmit, PerfJob::receive, PerfJob::echo};
    for (size_t i = 0; result && i < kJobs.size(); ++i) {
      auto listener = listen_on(address, kJobs[i]);
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

std::string kernel_congestion_control() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_congestion_control");
  std::string name;
  return file >> name ? name : "unknown congestion control";
}

}  // namespace nobounce::cli
