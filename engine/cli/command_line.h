// The command line: what was asked for, help, and exit codes.
#pragma once
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "zero/rendezvous.h"

namespace zerosharp {

/// What `zerosharp train` was asked for.
struct TrainArguments {
  std::string config;
  std::vector<std::string> overrides;  ///< key.path=value, in order
  std::string out;                     ///< empty: nothing is written
  ExplicitRanks ranks;
};

/// What `zerosharp launch` was asked for.
struct LaunchArguments {
  int num_ranks = 0;
  std::string device = "auto";       ///< auto | cpu | cuda
  double grace_seconds = 5;          ///< between SIGTERM and SIGKILL
  bool verbose = false;              ///< also show what mpirun says
  std::vector<std::string> command;  ///< what follows "--"
};

/// What the program can do; set by main so that parsing needs no LibTorch.
struct Commands {
  std::function<int(const TrainArguments&)> train;
  std::function<int(const LaunchArguments&)> launch;
  std::function<std::string()> version;
};

/// Thrown for a wrong command line; exit code 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throw UsageError with the remedy. `words` is what follows the subcommand.
TrainArguments parse_train(const std::vector<std::string>& words);
LaunchArguments parse_launch(const std::vector<std::string>& words);

/// Help of one subcommand, or the overview for "" and "version". Throws UsageError for an unknown
/// one.
std::string help_text(const std::string& subcommand);

/// Runs the program. 0 done; 1 failed; 2 wrong usage or configuration; 128 + signal when stopped.
/// Any exception becomes one line on stderr; ranks other than 0 hold theirs back for a moment, so
/// that an error all ranks share is printed once.
int run_cli(int argc, char** argv, const Commands& commands);

}  // namespace zerosharp
