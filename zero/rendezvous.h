// How ranks find each other.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "zero/communicator.h"

namespace zerosharp {

/// What one process knows about the group before it is connected.
struct RankInfo {
  enum class Source { kSingle, kExplicit, kEnvironment, kSlurm, kMpi };

  Source source = Source::kSingle;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  std::string how;  ///< one line for the run header: which way was taken
};

/// Given on the command line; rank and world size together, or neither. The others also replace
/// what a launcher's variables say.
struct ExplicitRanks {
  std::optional<int> rank, world_size, local_rank;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
};

/// First match wins: explicit options; RANK/WORLD_SIZE/LOCAL_RANK (torchrun, DeepSpeed, Composer,
/// `zerosharp launch`); Slurm inside a job step; Open MPI's, then MPICH's variables; else one rank.
/// Throws ConfigError naming the variable that is missing, no number, or out of range.
RankInfo discover_ranks(const std::map<std::string, std::string>& environment,
                        const ExplicitRanks& options = {});

/// The process's environment as a map.
std::map<std::string, std::string> environment_map();

/// Connects the ranks: one rank needs nobody; CPU ranks go over MPI; CUDA ranks over NCCL, whose
/// unique id `exchange` brings from rank 0 (it is called with the id's bytes filled in on rank 0).
/// Throws ConfigError where CPU ranks were started without MPI, naming the launchers that have it.
std::unique_ptr<Communicator> connect(const RankInfo& info, bool cuda,
                                      const std::function<void(std::string& bytes)>& exchange = {});

}  // namespace zerosharp
