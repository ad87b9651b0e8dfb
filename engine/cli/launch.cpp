#include "engine/cli/launch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "engine/cli/child_processes.h"
#include "engine/cli/signals.h"

namespace zerosharp {
namespace {

using Clock = std::chrono::steady_clock;

bool has_nvidia_driver() {
  return std::filesystem::exists("/dev/nvidiactl") ||
         std::filesystem::exists("/proc/driver/nvidia/version");
}

bool is_own_command(const std::string& word) { return word == "train" || word == "version"; }

/// The device the ranks will use: the last train.device override, else the launcher's option.
std::string device_of(const LaunchArguments& arguments) {
  std::string device = arguments.device;
  for (const std::string& word : arguments.command) {
    if (word.rfind("train.device=", 0) == 0) device = word.substr(std::strlen("train.device="));
  }
  return device;
}

int free_port() {
  const int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  int port = 29500;
  if (socket_fd >= 0 && bind(socket_fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
      getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    port = ntohs(address.sin_port);
  }
  if (socket_fd >= 0) close(socket_fd);
  return port;
}

/// Prints ranks' lines and remembers the last of each, for the end.
class Output {
 public:
  void print(int rank, bool is_error, const std::string& line) {
    if (is_error && is_repeated_error(line)) return;
    std::FILE* stream = is_error ? stderr : stdout;
    if (rank > 0) std::fprintf(stream, "[r%d] ", rank);
    std::fprintf(stream, "%s\n", line.c_str());
    std::fflush(stream);
    if (!is_error) return;
    auto& lines = errors_[rank];
    lines.push_back(line);
    if (lines.size() > 5) lines.pop_front();
    last_error_rank_ = rank;
  }

  /// The failing rank's last words, then what became of it.
  void report(int rank, ExitStatus status) const {
    const auto found = errors_.find(rank);
    if (found != errors_.end() && last_error_rank_ != rank) {
      std::fprintf(stderr, "zerosharp launch: last lines of rank %d:\n", rank);
      for (const auto& line : found->second) std::fprintf(stderr, "  %s\n", line.c_str());
    }
    if (status.signal != 0) {
      std::fprintf(stderr, "zerosharp launch: rank %d was killed by signal %d (%s)\n", rank,
                   status.signal, strsignal(status.signal));
    } else {
      std::fprintf(stderr, "zerosharp launch: rank %d failed with exit code %d\n", rank,
                   status.code);
    }
  }

 private:
  /// Ranks often fail of one cause: the same message but for its "[rank N]" is shown once.
  bool is_repeated_error(const std::string& line) {
    constexpr std::string_view kStart = "zerosharp: error: [rank ";
    if (line.rfind(kStart, 0) != 0) return false;
    return !messages_.insert(line.substr(line.find(']', kStart.size()) + 1)).second;
  }

  std::map<int, std::deque<std::string>> errors_;
  std::set<std::string> messages_;
  int last_error_rank_ = -1;
};

/// Ends every descendant: SIGTERM, the grace time, SIGKILL.
void end_all(std::vector<Child>& children, double grace_seconds, const LineSink& sink) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(grace_seconds);
  signal_descendants(SIGTERM);
  while (signal_descendants(0) > 0 && Clock::now() < deadline) {
    pump(children, std::chrono::milliseconds(50), sink);
  }
  for (int i = 0; i < 100 && signal_descendants(SIGKILL) > 0; ++i) {
    pump(children, std::chrono::milliseconds(50), sink);
  }
  for (int i = 0; i < 20; ++i) pump(children, std::chrono::milliseconds(1), sink);
}

bool any_running(const std::vector<Child>& children) {
  for (const Child& child : children) {
    if (child.running) return true;
  }
  return false;
}

// --- Ranks as processes of ours -----------------------------------------------------------------

std::vector<std::string> rank_environment(int rank, int size, int port) {
  return {"RANK=" + std::to_string(rank),
          "WORLD_SIZE=" + std::to_string(size),
          "LOCAL_RANK=" + std::to_string(rank),
          "LOCAL_WORLD_SIZE=" + std::to_string(size),
          "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=" + std::to_string(port)};
}

int launch_processes(const LaunchArguments& arguments, const std::vector<std::string>& command) {
  Output output;
  const LineSink sink = [&](size_t child, bool is_error, const std::string& line) {
    output.print(static_cast<int>(child), is_error, line);
  };
  const int port = free_port();
  std::vector<Child> ranks;
  std::optional<int> failed;
  while (static_cast<int>(ranks.size()) < arguments.num_ranks) {
    const int rank = static_cast<int>(ranks.size());
    ranks.push_back(
        start_child(command, rank_environment(rank, arguments.num_ranks, port), SIGKILL));
  }
  while (any_running(ranks) && !failed && stop_signal() == 0) {
    pump(ranks, std::chrono::milliseconds(100), sink);
    for (size_t i = 0; i < ranks.size() && !failed; ++i) {
      if (!ranks[i].running && ranks[i].status.code != 0) failed = static_cast<int>(i);
    }
  }
  end_all(ranks, arguments.grace_seconds, sink);
  if (failed) {
    const ExitStatus status = ranks[static_cast<size_t>(*failed)].status;
    output.report(*failed, status);
    return status.code;
  }
  return stop_signal() != 0 ? 128 + stop_signal() : 0;
}

// --- Ranks under mpirun --------------------------------------------------------------------------

/// Splits mpirun's "[job,rank]<stdout>:text".
struct TaggedLine {
  int rank = -1;
  bool is_error = false;
  std::string text;
};

std::optional<TaggedLine> parse_tag(const std::string& line) {
  int job = 0;
  TaggedLine tagged;
  char stream[8] = "";
  int length = 0;
  if (std::sscanf(line.c_str(), "[%d,%d]<%6[a-z]>:%n", &job, &tagged.rank, stream, &length) != 3 ||
      length == 0) {
    return std::nullopt;
  }
  tagged.is_error = std::strcmp(stream, "stderr") == 0;
  tagged.text = line.substr(static_cast<size_t>(length));
  return tagged;
}

/// Gathers from mpirun's own words which rank failed, and how.
class MpirunVerdict {
 public:
  void read(const std::string& line) {
    int rank = 0;
    int number = 0;
    if (std::sscanf(line.c_str(), "mpirun noticed that process rank %d", &rank) == 1) {
      rank_ = rank;
      if (const char* words = std::strstr(line.c_str(), "exited on signal ")) {
        if (std::sscanf(words, "exited on signal %d", &number) == 1) signal_ = number;
      }
    }
    int job = 0, family = 0;
    if (std::sscanf(line.c_str(), "  Process name: [[%d,%d],%d]", &job, &family, &rank) == 3 ||
        std::sscanf(line.c_str(), " Process name: [[%d,%d],%d]", &job, &family, &rank) == 3) {
      rank_ = rank;
    }
    if (const char* words = std::strstr(line.c_str(), "exited on signal "); words && !signal_) {
      if (std::sscanf(words, "exited on signal %d", &number) == 1) signal_ = number;
    }
  }
  /// A rank said itself that it failed, before mpirun did.
  void read_rank_line(int rank, const std::string& line) {
    if (!rank_ && line.rfind("zerosharp: error:", 0) == 0) rank_ = rank;
  }
  std::optional<int> rank() const { return rank_; }
  ExitStatus status(ExitStatus of_mpirun) const {
    if (!signal_) return of_mpirun;
    return {128 + *signal_, *signal_};
  }

 private:
  std::optional<int> rank_, signal_;
};

int launch_mpirun(const LaunchArguments& arguments, const std::vector<std::string>& command) {
  std::vector<std::string> words = {
      "mpirun", "-n",          std::to_string(arguments.num_ranks), "--oversubscribe", "--bind-to",
      "none",   "--tag-output"};
  if (geteuid() == 0) words.push_back("--allow-run-as-root");
  words.insert(words.end(), command.begin(), command.end());
  Output output;
  MpirunVerdict verdict;
  const LineSink sink = [&](size_t, bool is_error, const std::string& line) {
    if (const auto tagged = parse_tag(line)) {
      verdict.read_rank_line(tagged->rank, tagged->text);
      return output.print(tagged->rank, tagged->is_error, tagged->text);
    }
    verdict.read(line);
    if (arguments.verbose) std::fprintf(is_error ? stderr : stdout, "mpirun: %s\n", line.c_str());
  };
  std::vector<Child> children;
  try {
    children.push_back(
        start_child(words, {"OMPI_MCA_btl_vader_single_copy_mechanism=none"}, SIGTERM));
  } catch (const UsageError& error) {
    throw UsageError(std::string(error.what()) +
                     "; CPU ranks run under mpirun: install the package openmpi-bin");
  }
  while (any_running(children) && stop_signal() == 0) {
    pump(children, std::chrono::milliseconds(100), sink);
  }
  if (stop_signal() != 0) {
    end_all(children, arguments.grace_seconds, sink);
    return 128 + stop_signal();
  }
  end_all(children, arguments.grace_seconds, sink);
  const ExitStatus ended = children[0].status;
  if (ended.code == 0) return 0;
  const ExitStatus status = verdict.status(ended);
  if (verdict.rank()) {
    output.report(*verdict.rank(), status);
  } else {
    std::fprintf(stderr,
                 "zerosharp launch: mpirun ended with exit code %d; run again with "
                 "--verbose to see what it says\n",
                 ended.code);
  }
  return status.code;
}

}  // namespace

int launch(const LaunchArguments& arguments, const std::string& own_path) {
  install_stop_signals();
  adopt_orphans();
  std::vector<std::string> command = arguments.command;
  const bool own = is_own_command(command.front());
  if (own) command.insert(command.begin(), own_path);
  const std::string device = device_of(arguments);
  const bool cpu = device == "cpu" || (device == "auto" && !has_nvidia_driver());
  return own && cpu ? launch_mpirun(arguments, command) : launch_processes(arguments, command);
}

}  // namespace zerosharp
