#include "backend/service.hpp"

#include "backend/wait.hpp"
#include "base/assert.hpp"

namespace nobounce::backend {
namespace {

class OneGuest final : public Network {
 public:
  OneGuest(ServiceFactory services, const NetworkPlace& place)
      : services_(std::move(services)), counters_(place.counters), wake_fd_(place.wake_fd) {}

  [[nodiscard]] size_t guests_max() const noexcept override { return 1; }

  [[nodiscard]] Result<void> join(Session& session) override {
    NB_ASSERT(service_ == nullptr);
    auto service = services_({session, counters_, {&wake_fd_, 1}});
    if (!service) return std::unexpected(service.error());
    service_ = std::move(*service);
    session_ = &session;
    return {};
  }

  void leave(Session& session) noexcept override {
    if (&session != session_) return;
    service_.reset();
    session_ = nullptr;
  }

  [[nodiscard]] bool serves(const Session& session) const noexcept override {
    return &session == session_ && !service_->is_down();
  }

  size_t round() noexcept override { return service_ != nullptr ? service_->round() : 0; }

  void sleep(uint64_t limit_ns) noexcept override {
    if (service_ != nullptr) {
      service_->sleep(limit_ns);
      return;
    }
    wait_readable(wake_fd_, limit_ns);
  }

 private:
  ServiceFactory services_;
  BackendCounters& counters_;
  const int wake_fd_;
  Session* session_ = nullptr;
  std::unique_ptr<PortService> service_;
};

}  // namespace

NetworkFactory one_guest(ServiceFactory services) {
  return [services = std::move(services)](
             const NetworkPlace& place) mutable -> Result<std::unique_ptr<Network>> {
    return std::make_unique<OneGuest>(std::move(services), place);
  };
}

}  // namespace nobounce::backend
