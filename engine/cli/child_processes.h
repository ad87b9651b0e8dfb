// Child processes with piped output, and the end of a whole family of them.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace zerosharp {

/// A pipe that children do not inherit. The ends stay open until they are closed by hand.
struct Pipe {
  int read = -1, write = -1;

  /// Throws UsageError if the system has none left.
  Pipe();
};

/// How a process ended.
struct ExitStatus {
  int code = 0;    ///< exit code, or 128 + signal
  int signal = 0;  ///< 0 if it exited by itself
};

/// One running child.
struct Child {
  pid_t pid = -1;
  int out = -1;  ///< read end of its stdout, -1 once closed
  int err = -1;
  std::string partial_out, partial_err;  ///< an unfinished line
  bool running = true;
  ExitStatus status;
};

/// Starts `command` in a process group of its own, with `environment` changed: "NAME=value" sets,
/// a bare "NAME" removes. The child gets `death_signal` should this process die. A terminal is not
/// passed on as its stdin. Throws UsageError if the program cannot be started.
Child start_child(const std::vector<std::string>& command,
                  const std::vector<std::string>& environment, int death_signal);

/// Called with a complete line, without its end.
using LineSink = std::function<void(size_t child, bool is_error, const std::string& line)>;

/// Reads what the children printed for up to `wait`, and reaps those that ended.
void pump(std::vector<Child>& children, std::chrono::milliseconds wait, const LineSink& sink);

/// Makes orphaned grandchildren children of this process, so that none can be lost.
void adopt_orphans();
/// Sends `signal` (0: none) to every descendant of this process but `spared` itself, whose own
/// descendants still get it. Returns how many there were.
int signal_descendants(int signal, pid_t spared = -1);

/// Ends every descendant of this process: SIGTERM, up to `grace_seconds` to end in order, SIGKILL.
/// `spared` is not sent the SIGTERM: a mpirun hurries its ranks when it gets one. What `children`
/// print meanwhile goes to `sink`.
void end_descendants(std::vector<Child>& children, double grace_seconds, const LineSink& sink,
                     pid_t spared = -1);

}  // namespace zerosharp
