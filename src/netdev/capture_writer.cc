#include "netdev/capture_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.hpp"

namespace nobounce {

Result<std::unique_ptr<CaptureWriter>> CaptureWriter::open(const std::string& path,
                                                           size_t buffer_bytes,
                                                           CounterRegistry& counters) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (fd.get() < 0) {
    const int error = errno;
    return std::unexpected(Error{.code = static_cast<std::errc>(error),
                                 .operation = "create capture file " + path,
                                 .cause = std::strerror(error),
                                 .hint = "name a file in a directory you may write to"});
  }
  return std::unique_ptr<CaptureWriter>(
      new CaptureWriter(std::move(fd), path, buffer_bytes, counters));
}

CaptureWriter::CaptureWriter(UniqueFd fd, std::string path, size_t buffer_bytes,
                             CounterRegistry& counters)
    : fd_(std::move(fd)),
      path_(std::move(path)),
      capacity_(buffer_bytes),
      filling_(std::make_unique_for_overwrite<std::byte[]>(buffer_bytes)),
      draining_(std::make_unique_for_overwrite<std::byte[]>(buffer_bytes)),
      write_errors_(counters.counter("capture.write_errors")),
      thread_([this] { run(); }) {}

CaptureWriter::~CaptureWriter() {
  {
    const std::lock_guard guard(lock_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool CaptureWriter::append(Bytes bytes) noexcept {
  {
    const std::lock_guard guard(lock_);
    if (has_failed_ || bytes.size() > capacity_ - filled_) return false;
    std::ranges::copy(bytes, filling_.get() + filled_);
    filled_ += bytes.size();
    if (is_writing_) return true;  // the writer looks again by itself
  }
  changed_.notify_all();
  return true;
}

void CaptureWriter::drain() noexcept {
  std::unique_lock guard(lock_);
  changed_.wait(guard, [this] { return filled_ == 0 && !is_writing_; });
}

void CaptureWriter::run() noexcept {
  std::unique_lock guard(lock_);
  while (true) {
    changed_.wait(guard, [this] { return filled_ > 0 || is_stopping_; });
    if (filled_ == 0) return;
    std::swap(filling_, draining_);
    const size_t size = std::exchange(filled_, 0);
    is_writing_ = true;
    const bool may_write = !has_failed_;
    guard.unlock();
    const bool is_written = may_write && write_all({draining_.get(), size});
    guard.lock();
    is_writing_ = false;
    if (may_write && !is_written) has_failed_ = true;
    changed_.notify_all();
  }
}

bool CaptureWriter::write_all(Bytes bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      write_errors_.add();
      log_warning("capture stopped: " + path_ + ": " + std::strerror(errno));
      return false;
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace nobounce
