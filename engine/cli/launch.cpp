#include "engine/cli/launch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "engine/cli/child_processes.h"
#include "engine/cli/mpirun_output.h"
#include "engine/cli/rank_output.h"
#include "engine/cli/signals.h"
#include "engine/config/config.h"

namespace zerosharp {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kPollInterval(100);

// --- What to start ------------------------------------------------------------------------------

/// One command for all ranks, and how it is to be started.
struct Plan {
  std::vector<std::string> command;
  bool under_mpirun = false;
};

bool has_nvidia_driver() {
  return fs::exists("/dev/nvidiactl") || fs::exists("/proc/driver/nvidia/version");
}

/// The program itself was named although its commands are enough: `-- zerosharp train CONFIG`.
bool names_own_program(const std::vector<std::string>& command, const std::string& own_path) {
  return command.size() > 1 && command[1] == "train" &&
         fs::path(command[0]).filename() == fs::path(own_path).filename();
}

bool overrides_device(const TrainArguments& train) {
  for (const std::string& word : train.overrides) {
    if (word.rfind("train.device=", 0) == 0) return true;
  }
  return false;
}

/// Reads the command line and the configuration of the training as each rank will, so that what is
/// wrong with them is said once, before any rank starts. Returns the device the ranks will use.
/// --device becomes an override unless the command has one.
std::string prepare_train(const LaunchArguments& arguments, std::vector<std::string>& command) {
  TrainArguments train = parse_train({command.begin() + 1, command.end()});
  if (arguments.device != "auto" && !overrides_device(train)) {
    command.push_back("train.device=" + arguments.device);
    train.overrides.push_back(command.back());
  }
  return load_config(train.config, train.overrides, arguments.num_ranks).train.device;
}

Plan make_plan(const LaunchArguments& arguments, const std::string& own_path) {
  Plan plan;
  plan.command = arguments.command;
  if (names_own_program(plan.command, own_path)) plan.command.erase(plan.command.begin());
  std::string device = arguments.device;
  if (plan.command[0] == "train") {
    device = prepare_train(arguments, plan.command);
  } else if (plan.command[0] != "version") {
    return plan;  // a foreign program finds its ranks in the environment
  }
  plan.command.insert(plan.command.begin(), own_path);
  plan.under_mpirun = device == "cpu" || (device == "auto" && !has_nvidia_driver());
  return plan;
}

bool any_running(const std::vector<Child>& children) {
  for (const Child& child : children) {
    if (child.running) return true;
  }
  return false;
}

// --- Ranks as processes of ours -----------------------------------------------------------------

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

std::vector<std::string> rank_environment(int rank, int size, int port) {
  return {"RANK=" + std::to_string(rank),
          "WORLD_SIZE=" + std::to_string(size),
          "LOCAL_RANK=" + std::to_string(rank),
          "LOCAL_WORLD_SIZE=" + std::to_string(size),
          "MASTER_ADDR=127.0.0.1",
          "MASTER_PORT=" + std::to_string(port)};
}

std::optional<int> first_failed(const std::vector<Child>& ranks) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!ranks[i].running && ranks[i].status.code != 0) return static_cast<int>(i);
  }
  return std::nullopt;
}

int launch_processes(const LaunchArguments& arguments, const std::vector<std::string>& command) {
  RankOutput output;
  const LineSink sink = [&](size_t child, bool is_error, const std::string& line) {
    output.print(static_cast<int>(child), is_error, line);
  };
  const int port = free_port();
  std::vector<Child> ranks;
  try {
    for (int rank = 0; rank < arguments.num_ranks; ++rank) {
      ranks.push_back(
          start_child(command, rank_environment(rank, arguments.num_ranks, port), SIGKILL));
    }
  } catch (const UsageError& error) {
    end_descendants(ranks, /*grace_seconds=*/0, sink);
    throw UsageError("launch: " + std::string(error.what()) +
                     "; after `--` write train CONFIG, or a program by its path or in PATH");
  }
  std::optional<int> failed;
  while (any_running(ranks) && !failed && stop_signal() == 0) {
    pump(ranks, kPollInterval, sink);
    failed = first_failed(ranks);
  }
  end_descendants(ranks, arguments.grace_seconds, sink);
  if (failed) {
    const ExitStatus status = ranks[static_cast<size_t>(*failed)].status;
    output.report(*failed, status);
    return status.code;
  }
  return stop_signal() != 0 ? 128 + stop_signal() : 0;
}

// --- Ranks under mpirun --------------------------------------------------------------------------

/// Where ranks under mpirun tell how they ended: a pipe that they open by its name in /proc.
class RankReport {
 public:
  RankReport() { fcntl(pipe_.read, F_SETFL, O_NONBLOCK); }
  ~RankReport() {
    close(pipe_.read);
    close(pipe_.write);
  }
  RankReport(const RankReport&) = delete;
  RankReport& operator=(const RankReport&) = delete;

  std::string path() const {
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(pipe_.write);
  }
  /// The first lines that were written.
  std::string text() const {
    char buffer[4096];
    const ssize_t got = read(pipe_.read, buffer, sizeof buffer);
    return {buffer, static_cast<size_t>(std::max<ssize_t>(got, 0))};
  }

 private:
  Pipe pipe_;
};

std::vector<std::string> mpirun_command(int num_ranks, const std::vector<std::string>& command) {
  std::vector<std::string> words = {"mpirun",          "-n",        std::to_string(num_ranks),
                                    "--oversubscribe", "--bind-to", "none",
                                    "--tag-output"};
  if (geteuid() == 0) words.push_back("--allow-run-as-root");
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

Child start_mpirun(const LaunchArguments& arguments, const std::vector<std::string>& command) {
  // Ranks take themselves for what RANK and its kin say, should this shell have them.
  const std::vector<std::string> environment = {"OMPI_MCA_btl_vader_single_copy_mechanism=none",
                                                "RANK",
                                                "WORLD_SIZE",
                                                "LOCAL_RANK",
                                                "LOCAL_WORLD_SIZE",
                                                "LOCAL_SIZE"};
  try {
    return start_child(mpirun_command(arguments.num_ranks, command), environment, SIGTERM);
  } catch (const UsageError& error) {
    throw UsageError("launch: " + std::string(error.what()) +
                     "; CPU ranks run under mpirun: install the package openmpi-bin");
  }
}

/// Says which rank failed, or what mpirun said if it was none. Returns the exit code.
int report_mpirun(const MpirunVerdict& verdict, const RankOutput& output, ExitStatus ended,
                  bool verbose) {
  const ExitStatus status = verdict.status(ended);
  if (verdict.rank()) {
    output.report(*verdict.rank(), status);
    return status.code;
  }
  if (!verbose) {
    for (const std::string& line : verdict.last_words()) {
      std::fprintf(stderr, "mpirun: %s\n", line.c_str());
    }
  }
  std::fprintf(stderr, "zerosharp launch: mpirun ended with exit code %d and named no rank\n",
               ended.code);
  return status.code;
}

int launch_mpirun(const LaunchArguments& arguments, const std::vector<std::string>& command) {
  RankOutput output;
  RankReport report;
  MpirunVerdict verdict;
  const LineSink sink = [&](size_t, bool is_error, const std::string& line) {
    if (const auto tagged = parse_tag(line)) {
      verdict.read_rank_line(tagged->rank, tagged->text);
      return output.print(tagged->rank, tagged->is_error, tagged->text);
    }
    verdict.read(line);
    if (arguments.verbose) std::fprintf(is_error ? stderr : stdout, "mpirun: %s\n", line.c_str());
  };
  std::vector<Child> children = {start_mpirun(arguments, reporting_rank(report.path(), command))};
  while (any_running(children) && stop_signal() == 0) pump(children, kPollInterval, sink);
  // Asked to stop, the ranks finish their step; a SIGTERM to mpirun would cut that short.
  end_descendants(children, arguments.grace_seconds, sink, /*spared=*/children[0].pid);
  if (stop_signal() != 0) return 128 + stop_signal();
  verdict.read_report(report.text());
  const ExitStatus ended = children[0].status;
  return ended.code == 0 ? 0 : report_mpirun(verdict, output, ended, arguments.verbose);
}

}  // namespace

int launch(const LaunchArguments& arguments, const std::string& own_path) {
  const Plan plan = make_plan(arguments, own_path);
  install_stop_signals();
  adopt_orphans();
  return plan.under_mpirun ? launch_mpirun(arguments, plan.command)
                           : launch_processes(arguments, plan.command);
}

}  // namespace zerosharp
