#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/clock.hpp"
#include "base/unique_fd.hpp"
#include "cli/connect.hpp"
#include "cli/payload.hpp"
#include "cli/perf.hpp"
#include "cli/progress.hpp"
#include "cli/sha256.hpp"
#include "cli/stop.hpp"

namespace nobounce::cli {
namespace {

// A socket call looks up this often: for Ctrl-C, for the end of its time, for the other thread.
constexpr auto kLookUp = std::chrono::milliseconds(100);
constexpr auto kConnectTimeout = std::chrono::seconds(5);
constexpr uint64_t kQuietNs = 10 * kNsPerSecond;  // nothing moves for that long: an error
// After Ctrl-C, for what is under way to arrive: long enough for a lost segment to be sent again,
// short enough that nobody asks twice.
constexpr uint64_t kStopGraceNs = kNsPerSecond;

bool is_pause(std::errc code) { return code == std::errc::operation_would_block; }

// When to stop, and whether anything still moves.
class Limit {
 public:
  explicit Limit(const PerfOptions& options)
      : bytes_(options.bytes.value_or(UINT64_MAX)),
        deadline_ns_(options.time ? clock_.now_ns() + static_cast<uint64_t>(options.time->count())
                                  : UINT64_MAX),
        moved_ns_(clock_.now_ns()) {}

  [[nodiscard]] uint64_t now_ns() noexcept { return clock_.now_ns(); }
  [[nodiscard]] bool is_reached(uint64_t done, uint64_t now_ns) const noexcept {
    return done >= bytes_ || now_ns >= deadline_ns_ || stop_requested();
  }
  [[nodiscard]] uint64_t left(uint64_t done) const noexcept { return bytes_ - done; }
  void moved(uint64_t now_ns) noexcept { moved_ns_ = now_ns; }
  [[nodiscard]] bool is_quiet(uint64_t now_ns) const noexcept {
    return now_ns > moved_ns_ + kQuietNs;
  }
  // Ctrl-C, and time enough for what was under way.
  [[nodiscard]] bool is_cut(uint64_t now_ns) noexcept {
    if (!stop_requested()) return false;
    stopped_ns_ = std::min(stopped_ns_, now_ns);
    return now_ns > stopped_ns_ + kStopGraceNs;
  }

 private:
  MonotonicClock clock_;
  uint64_t bytes_;
  uint64_t deadline_ns_;
  uint64_t moved_ns_;
  uint64_t stopped_ns_ = UINT64_MAX;  // when Ctrl-C was first seen
};

std::unexpected<Error> stalled(const std::string& operation) {
  return fail(std::errc::timed_out, operation, "nothing has moved for 10 seconds",
              "is the far end still running?");
}

struct Transfer {
  Stack& stack;
  TcpSocket& socket;
  const PerfOptions& options;
  const Meter& meter;
  std::string peer;

  [[nodiscard]] std::unexpected<Error> failed(const char* what, std::errc code) const {
    return std::unexpected(socket_error(stack, fmt::format("{} {}", what, peer), code));
  }
  // Nothing has moved for too long, and not because the device is waited for.
  [[nodiscard]] bool has_stalled(Limit& limit, uint64_t now_ns) const {
    if (!limit.is_quiet(now_ns)) return false;
    if (stack.counter("reconnect.waiting") == 0) return true;
    limit.moved(now_ns);
    return false;
  }
};

// All of the piece, as far as time allows. Returns what was taken.
Result<uint64_t> send_piece(const Transfer& transfer, Bytes piece, Limit& limit) {
  uint64_t taken = 0;
  while (taken < piece.size()) {
    const auto sent = transfer.socket.send(piece.subspan(taken));
    const uint64_t now_ns = limit.now_ns();
    if (sent) {
      taken += *sent;
      limit.moved(now_ns);
    } else if (!is_pause(sent.error())) {
      return transfer.failed("send to", sent.error());
    } else if (transfer.has_stalled(limit, now_ns)) {
      return stalled("send to " + transfer.peer);
    }
    if (limit.is_reached(0, now_ns)) break;
  }
  return taken;
}

// After our FIN: the far end's FIN says that everything has arrived.
Result<void> await_end(const Transfer& transfer, Limit& limit) {
  std::byte scrap[4096];
  limit.moved(limit.now_ns());
  for (;;) {
    const auto got = transfer.socket.recv(scrap);
    if (got && *got == 0) return {};
    if (!got && !is_pause(got.error())) return transfer.failed("await the end from", got.error());
    if (limit.is_cut(limit.now_ns())) return {};
    if (transfer.has_stalled(limit, limit.now_ns())) {
      return stalled("await the end from " + transfer.peer);
    }
  }
}

Result<void> end_stream(const Transfer& transfer) {
  if (const auto shut = transfer.socket.shutdown(Shutdown::send); !shut) {
    return transfer.failed("end the stream to", shut.error());
  }
  return {};
}

// What has come, at most `bytes`; empty at the end of the stream, nothing while there is none.
Result<std::optional<Bytes>> receive_piece(const Transfer& transfer, Rotation& buffer,
                                           uint64_t bytes, Limit& limit) {
  const MutableBytes piece = buffer.next(bytes);
  const auto got = transfer.socket.recv(piece);
  buffer.unused(piece.size() - got.value_or(0));
  const uint64_t now_ns = limit.now_ns();
  if (got) {
    limit.moved(now_ns);
    return Bytes(piece).first(*got);
  }
  if (!is_pause(got.error())) return transfer.failed("receive from", got.error());
  if (transfer.has_stalled(limit, now_ns)) return stalled("receive from " + transfer.peer);
  return std::nullopt;
}

Result<Metrics> transmit(const Transfer& transfer, Rotation& payload) {
  const PerfOptions& options = transfer.options;
  Limit limit(options);
  Progress progress("send", options.bytes.value_or(0),
                    options.time ? static_cast<uint64_t>(options.time->count()) : 0);
  uint64_t done = 0;
  for (uint64_t now_ns = limit.now_ns(); !limit.is_reached(done, now_ns); now_ns = limit.now_ns()) {
    const MutableBytes piece = payload.next(std::min(options.chunk_bytes, limit.left(done)));
    const auto taken = send_piece(transfer, piece, limit);
    if (!taken) return std::unexpected(taken.error());
    payload.unused(piece.size() - *taken);
    done += *taken;
    progress.update(done, now_ns);
  }
  if (const auto ended = end_stream(transfer); !ended) return std::unexpected(ended.error());
  if (const auto end = await_end(transfer, limit); !end) return std::unexpected(end.error());
  return transfer.meter.stop(done);
}

Result<Metrics> receive(const Transfer& transfer, Rotation& buffer) {
  const PerfOptions& options = transfer.options;
  Limit limit(options);
  Progress progress("receive", options.bytes.value_or(0),
                    options.time ? static_cast<uint64_t>(options.time->count()) : 0);
  uint64_t done = 0;
  for (uint64_t now_ns = limit.now_ns(); !limit.is_reached(done, now_ns); now_ns = limit.now_ns()) {
    const auto got =
        receive_piece(transfer, buffer, std::min(options.chunk_bytes, limit.left(done)), limit);
    if (!got) return std::unexpected(got.error());
    const Bytes piece = got->value_or(Bytes());
    if (got->has_value() && piece.empty()) {
      return fail(std::errc::connection_aborted, "receive from " + transfer.peer,
                  "the far end ended the stream", "is a source service on that port?");
    }
    done += piece.size();
    progress.update(done, now_ns);
  }
  Metrics metrics = transfer.meter.stop(done);
  transfer.socket.abort();  // the source has no end
  return metrics;
}

// ---- out and back ----

// Where an echoed stream comes from: a file, or the rotating payload up to a limit.
class Source {
 public:
  static Result<Source> open(const PerfOptions& options) {
    Source source;
    if (options.file.empty()) {
      source.payload_ = Rotation::seeded(kRotationBytes, options.seed);
      return source;
    }
    const std::string operation = "read " + options.file;
    source.fd_ = UniqueFd(::open(options.file.c_str(), O_RDONLY | O_CLOEXEC));
    if (!source.fd_.is_open()) return fail_errno(operation);
    struct stat status{};
    if (fstat(source.fd_.get(), &status) != 0) return fail_errno(operation);
    if (!S_ISREG(status.st_mode)) {
      return fail(std::errc::invalid_argument, operation, "it is not a regular file");
    }
    source.size_ = static_cast<uint64_t>(status.st_size);
    source.buffer_.resize(1 << 20);
    return source;
  }

  [[nodiscard]] uint64_t size() const noexcept { return size_; }  // 0: no file

  // The next piece, empty at the end of the file.
  Result<Bytes> next(const PerfOptions& options, uint64_t left) {
    if (payload_) return Bytes(payload_->next(std::min(options.chunk_bytes, left)));
    const ssize_t got = ::read(fd_.get(), buffer_.data(), buffer_.size());
    if (got < 0) return fail_errno("read " + options.file);
    return Bytes(buffer_).first(static_cast<size_t>(got));
  }

 private:
  Source() = default;
  std::optional<Rotation> payload_;
  UniqueFd fd_;
  uint64_t size_ = 0;
  std::vector<std::byte> buffer_;
};

struct Sent {
  Result<std::string> sha256 = std::string();
  std::atomic<uint64_t> bytes{0};
  std::atomic<bool> failed{false};
};

Result<std::string> send_all(const Transfer& transfer, Source& source, Sent& sent) {
  const PerfOptions& options = transfer.options;
  Limit limit(options);
  Sha256 hash;
  for (uint64_t done = 0; !limit.is_reached(done, limit.now_ns());) {
    const auto piece = source.next(options, limit.left(done));
    if (!piece) return std::unexpected(piece.error());
    if (piece->empty()) break;
    const auto taken = send_piece(transfer, *piece, limit);
    if (!taken) return std::unexpected(taken.error());
    hash.update(piece->first(*taken));
    done += *taken;
    sent.bytes.store(done, std::memory_order_relaxed);
  }
  if (const auto ended = end_stream(transfer); !ended) return std::unexpected(ended.error());
  return hash.hex();
}

Result<std::string> receive_all(const Transfer& transfer, Rotation& buffer, const Sent& sent,
                                uint64_t total, uint64_t& done) {
  const PerfOptions unlimited{};
  Limit limit(unlimited);
  Progress progress(total > 0 ? "file out and back" : "echo", total, 0);
  Sha256 hash;
  for (;;) {
    const auto got = receive_piece(transfer, buffer, transfer.options.chunk_bytes, limit);
    if (!got) return std::unexpected(got.error());
    const Bytes piece = got->value_or(Bytes());
    if (got->has_value() && piece.empty()) return hash.hex();
    hash.update(piece);
    done += piece.size();
    const uint64_t now_ns = limit.now_ns();
    if (limit.is_cut(now_ns)) return std::string();
    if (sent.failed.load(std::memory_order_acquire)) return std::string();  // its error is told
    progress.update(done, now_ns);
  }
}

Result<Metrics> echo(const Transfer& transfer, Source& source, Rotation& buffer,
                     PerfResult& result) {
  Sent sent;
  std::jthread sender([&] {
    sent.sha256 = send_all(transfer, source, sent);
    if (!sent.sha256) sent.failed.store(true, std::memory_order_release);
  });
  uint64_t received = 0;
  const auto sha256 = receive_all(transfer, buffer, sent, source.size(), received);
  // The sender must not wait for a far end that is gone, nor after Ctrl-C.
  if (!sha256 || sha256->empty()) transfer.socket.abort();
  sender.join();
  if (!sha256) return std::unexpected(sha256.error());
  if (stop_requested() && sha256->empty())
    return transfer.meter.stop(received);  // cut: nothing to compare
  if (!sent.sha256) return std::unexpected(sent.sha256.error());
  if (received < sent.bytes) {
    return fail(std::errc::message_size, "receive from " + transfer.peer,
                fmt::format("{} bytes were sent and {} came back", sent.bytes.load(), received));
  }
  result.sha256_sent = *sent.sha256;
  result.sha256_received = *sha256;
  return transfer.meter.stop(received);
}

}  // namespace

Result<PerfResult> run_perf_client(Stack& stack, const PerfOptions& options) {
  // Memory is made before the connection is: a source begins at once, and filling is no streaming.
  std::optional<Source> source;
  if (options.job == PerfJob::echo) {
    auto opened = Source::open(options);
    if (!opened) return std::unexpected(opened.error());
    source = std::move(*opened);
  }
  Rotation memory = options.job == PerfJob::transmit
                        ? Rotation::seeded(kRotationBytes, options.seed)
                        : Rotation::blank(kRotationBytes);
  Meter meter(stack);
  const std::string peer = options.client.to_string();
  auto socket = connect_to(stack, options.client, kConnectTimeout);
  if (!socket) return std::unexpected(socket.error());
  socket->set_send_timeout(kLookUp);
  socket->set_receive_timeout(kLookUp);
  meter.begin();
  const Transfer transfer{stack, *socket, options, meter, peer};
  PerfResult result;
  auto metrics = options.job == PerfJob::transmit  ? transmit(transfer, memory)
                 : options.job == PerfJob::receive ? receive(transfer, memory)
                                                   : echo(transfer, *source, memory, result);
  if (!metrics) return std::unexpected(metrics.error());
  result.metrics = *std::move(metrics);
  result.interrupted = stop_requested();
  return result;
}

}  // namespace nobounce::cli
