// The training program behind `zerosharp train`.
#pragma once
#include <string>

#include "engine/cli/command_line.h"

namespace zerosharp {

/// Trains what `arguments.config` describes and returns the exit code: 0, or 128 + signal when
/// asked to stop. Collective over the ranks the launcher started. Throws ConfigError before any
/// weight changes, and Error when the first loss is not finite.
int train(const TrainArguments& arguments);

/// Versions of the library, LibTorch, compiler, and which of CUDA, NCCL and MPI are built in.
std::string version_text();

}  // namespace zerosharp
