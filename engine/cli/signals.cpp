#include "engine/cli/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>

namespace zerosharp {
namespace {

volatile std::sig_atomic_t g_signal = 0;

void on_signal(int signal) {
  if (g_signal != 0) _exit(128 + signal);
  g_signal = signal;
}

}  // namespace

void install_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int stop_signal() noexcept { return g_signal; }

}  // namespace zerosharp
