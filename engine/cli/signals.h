// Stopping on request.
#pragma once

namespace zerosharp {

/// SIGINT and SIGTERM ask the run to stop after the current step; a second one ends the process at
/// once with 128 + signal.
void install_stop_signals();
/// The signal that asked to stop, or 0.
int stop_signal() noexcept;

}  // namespace zerosharp
