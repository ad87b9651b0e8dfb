// Starting ranks on this machine, and ending them together.
#pragma once
#include "engine/cli/command_line.h"

namespace zerosharp {

/// Runs the command on `arguments.num_ranks` ranks and returns the exit code: 0, or that of the
/// first rank that failed (128 + signal if a signal ended it), or 128 + the signal that asked the
/// launcher to stop. CPU ranks of `train` run under mpirun; anything else as processes with RANK,
/// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Every descendant is
/// gone when it returns. `own_path` is the program that has the commands train and version.
///
/// Throws UsageError if the program or mpirun cannot be found, and whatever is wrong with the
/// command line or configuration of a `train` (UsageError, ConfigError), before any rank starts.
int launch(const LaunchArguments& arguments, const std::string& own_path);

}  // namespace zerosharp
