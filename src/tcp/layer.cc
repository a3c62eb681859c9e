#include "tcp/machine.hpp"

namespace nobounce::tcp {

struct Layer::State : Machine {
  using Machine::Machine;
};

Layer::Layer(ShardContext& context, ip::Layer& ip, const LayerOptions& options)
    : state_(std::make_unique<State>(context, ip, options)) {
  ip.register_transport(ip::kProtocolTcp, *this);
}
Layer::~Layer() = default;

std::expected<Connection*, std::errc> Layer::connect(const Endpoint& local, const Endpoint& remote,
                                                     Owner& owner,
                                                     const ConnectionOptions& options) noexcept {
  return state_->connect(local, remote, owner, options);
}
std::expected<Listener*, std::errc> Layer::listen(const Endpoint& local, uint32_t backlog,
                                                  ListenerOwner& owner,
                                                  const ConnectionOptions& options) noexcept {
  return state_->listen(local, backlog, owner, options);
}
void Layer::close(Listener* listener) noexcept { state_->close(*listener); }
Endpoint Layer::local(const Listener& listener) const noexcept { return listener.local; }

bool Layer::send(Connection& connection, const Frag& frag, bool more, Notifier* notifier) noexcept {
  return state_->send(connection, frag, more, notifier);
}
void Layer::push(Connection& connection) noexcept { state_->push(connection); }
bool Layer::pop_received(Connection& connection, Frag& frag) noexcept {
  return state_->pop_received(connection, frag);
}
bool Layer::at_end(const Connection& connection) const noexcept {
  return connection.fin_received && connection.receive_queue.empty();
}
void Layer::consumed(Connection& connection, size_t bytes) noexcept {
  state_->consumed(connection, bytes);
}

void Layer::shutdown_send(Connection& connection) noexcept { state_->shutdown_send(connection); }
void Layer::release(Connection& connection) noexcept { state_->release(connection); }
void Layer::abort(Connection& connection) noexcept { state_->abort(connection); }
bool Layer::is_draining() noexcept { return state_->is_draining(); }
bool Layer::repeat_last_acks() noexcept { return state_->repeat_last_acks(); }
void Layer::reset_all() noexcept { state_->reset_all(); }
void Layer::fail_all(std::errc reason) noexcept { state_->fail_all(reason); }
void Layer::link_down() noexcept { state_->link_down(); }
void Layer::link_up() noexcept { state_->link_up(); }
void Layer::set_options(Connection& connection, const ConnectionOptions& options) noexcept {
  state_->set_options(connection, options);
}
ConnectionInfo Layer::info(const Connection& connection) const noexcept {
  return state_->info(connection);
}
size_t Layer::connections() const noexcept { return state_->connections(); }

void Layer::receive(PacketPtr packet, const ip::Ingress& ingress) noexcept {
  state_->receive(std::move(packet), ingress);
}
void Layer::icmp_error(const ip::IcmpError& error) noexcept { state_->icmp_error(error); }
void Layer::transmit_ready() noexcept { state_->transmit_ready(); }
void Layer::end_of_burst() noexcept { state_->end_of_burst(); }

}  // namespace nobounce::tcp
