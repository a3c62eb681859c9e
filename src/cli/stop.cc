#include "cli/stop.hpp"

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <thread>

namespace nobounce::cli {
namespace {

std::atomic<int> caught{0};

sigset_t stop_signals() noexcept {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

// Inherited by every later thread.
void hold_stop_signals() noexcept {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

std::stop_token catch_stop_signals() {
  // Never destroyed: the thread below may still be inside it when the program ends.
  static std::stop_source& source = *new std::stop_source;
  static bool started = false;
  if (started) return source.get_token();
  started = true;
  hold_stop_signals();
  std::thread([signals = stop_signals()] {
    int signal = 0;
    while (sigwait(&signals, &signal) != 0) {
    }
    caught.store(signal);
    source.request_stop();
    // Whoever asks twice means it.
    sigwait(&signals, &signal);
    sigset_t none;
    sigemptyset(&none);
    std::signal(signal, SIG_DFL);
    pthread_sigmask(SIG_SETMASK, &none, nullptr);
    raise(signal);
  }).detach();
  return source.get_token();
}

bool stop_requested() noexcept { return caught.load(std::memory_order_relaxed) != 0; }
int stop_signal() noexcept { return caught.load(std::memory_order_relaxed); }
int stop_status() noexcept { return 128 + stop_signal(); }

}  // namespace nobounce::cli
