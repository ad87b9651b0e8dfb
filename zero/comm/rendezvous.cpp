#include "zero/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "kernels/error.h"
#include "zero/comm/mpi_communicator.h"
#include "zero/comm/nccl_communicator.h"

extern char** environ;

namespace zerosharp {
namespace {

using Environment = std::map<std::string, std::string>;

int parse(const std::string& name, const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    fail_config("environment variable ", name, " must be an integer, got \"", text, "\"");
  }
  return value;
}

bool has(const Environment& env, const std::string& name) { return env.count(name) != 0; }

int required(const Environment& env, const std::string& name, const std::string& because) {
  const auto found = env.find(name);
  if (found == env.end()) {
    fail_config("environment variable ", name, " is missing, but ", because,
                " is set; a launcher sets both");
  }
  return parse(name, found->second);
}

int optional(const Environment& env, const std::string& name, int fallback) {
  const auto found = env.find(name);
  return found == env.end() ? fallback : parse(name, found->second);
}

void check(const RankInfo& info) {
  if (info.world_size < 1) {
    fail_config("the number of ranks must be at least 1, got ", info.world_size, " (", info.how,
                ")");
  }
  if (info.rank < 0 || info.rank >= info.world_size) {
    fail_config("rank ", info.rank, " is outside 0 … ", info.world_size - 1, " (", info.how, ")");
  }
  if (info.local_world_size < 1 || info.local_rank < 0 ||
      info.local_rank >= info.local_world_size) {
    fail_config("local rank ", info.local_rank, " is outside 0 … ", info.local_world_size - 1, " (",
                info.how, ")");
  }
  if (info.master_port < 1 || info.master_port > 65535) {
    fail_config("the master port must be between 1 and 65535, got ", info.master_port,
                "; set it with --master-port or MASTER_PORT");
  }
}

void read_master(const Environment& env, RankInfo& info) {
  if (has(env, "MASTER_ADDR")) info.master_addr = env.at("MASTER_ADDR");
  info.master_port = optional(env, "MASTER_PORT", info.master_port);
}

RankInfo from_variables(const Environment& env, const std::string& rank, const std::string& size,
                        const std::string& local_rank, const std::string& local_size) {
  RankInfo info;
  info.rank = required(env, rank, size);
  info.world_size = required(env, size, rank);
  info.local_world_size = optional(env, local_size, info.world_size);
  info.local_rank = optional(env, local_rank, info.rank % std::max(info.local_world_size, 1));
  read_master(env, info);
  return info;
}

/// Slurm also sets its variables in interactive shells; only a numbered job step starts ranks.
bool in_slurm_step(const Environment& env) {
  if (!has(env, "SLURM_PROCID") || !has(env, "SLURM_STEP_ID")) return false;
  const std::string& step = env.at("SLURM_STEP_ID");
  return !step.empty() && step.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

Environment environment_map() {
  Environment env;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) env[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return env;
}

RankInfo discover_ranks(const Environment& env, const ExplicitRanks& options) {
  RankInfo info;
  if (options.rank || options.world_size) {
    if (!options.rank) fail_config("--world-size is given, so --rank is needed too");
    if (!options.world_size) fail_config("--rank is given, so --world-size is needed too");
    info.source = RankInfo::Source::kExplicit;
    info.rank = *options.rank;
    info.world_size = *options.world_size;
    info.local_rank = info.rank;
    info.local_world_size = info.world_size;
    read_master(env, info);
    info.how = "options --rank and --world-size";
  } else if (has(env, "RANK") || has(env, "WORLD_SIZE")) {
    info = from_variables(env, "RANK", "WORLD_SIZE", "LOCAL_RANK",
                          has(env, "LOCAL_WORLD_SIZE") ? "LOCAL_WORLD_SIZE" : "LOCAL_SIZE");
    info.source = RankInfo::Source::kEnvironment;
    info.how = "environment RANK, WORLD_SIZE (torchrun, deepspeed, zerosharp launch)";
  } else if (in_slurm_step(env)) {
    info = from_variables(env, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                          "SLURM_NTASKS_PER_NODE");
    info.source = RankInfo::Source::kSlurm;
    info.how = "Slurm job step";
  } else if (has(env, "OMPI_COMM_WORLD_SIZE")) {
    info = from_variables(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                          "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
    info.source = RankInfo::Source::kMpi;
    info.how = "Open MPI";
  } else if (has(env, "PMI_SIZE")) {
    info = from_variables(env, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
    info.source = RankInfo::Source::kMpi;
    info.how = "MPICH (PMI)";
  } else {
    info.how = "one process, no launcher";
  }
  if (options.local_rank) info.local_rank = *options.local_rank;
  if (options.master_addr) info.master_addr = *options.master_addr;
  if (options.master_port) info.master_port = *options.master_port;
  check(info);
  return info;
}

std::unique_ptr<Communicator> connect(const RankInfo& info, bool cuda,
                                      const std::function<void(std::string&)>& exchange) {
  if (info.world_size == 1) return make_single_communicator();
  if (cuda) return make_nccl_communicator(info.rank, info.world_size, exchange);
  const bool by_mpi =
      info.source == RankInfo::Source::kMpi || info.source == RankInfo::Source::kSlurm;
  if (!by_mpi) {
    fail_config(info.world_size, " CPU ranks were started without MPI (", info.how,
                "); CPU ranks talk over MPI: start them with `zerosharp launch -n ",
                info.world_size, " -- train …` or `mpirun -n ", info.world_size,
                " zerosharp train …`");
  }
  auto communicator = make_mpi_communicator();
  if (communicator->size() != info.world_size || communicator->rank() != info.rank) {
    fail_comm("MPI says rank ", communicator->rank(), " of ", communicator->size(),
              " but the environment says rank ", info.rank, " of ", info.world_size,
              "; start the ranks with the mpirun of the MPI this program was built with");
  }
  return communicator;
}

}  // namespace zerosharp
