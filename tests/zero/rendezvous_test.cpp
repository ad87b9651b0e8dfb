// How ranks are found in the environment.
#include "zero/rendezvous.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "kernels/error.h"

namespace zerosharp {
namespace {

using Environment = std::map<std::string, std::string>;

std::string config_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

TEST(Rendezvous, NothingSetIsOneRank) {
  const RankInfo info = discover_ranks({});
  EXPECT_EQ(info.world_size, 1);
  EXPECT_EQ(info.rank, 0);
  EXPECT_STREQ(connect(info, false)->name(), "single");
}

TEST(Rendezvous, TorchrunDeepSpeedAndOwnLauncher) {
  const RankInfo info = discover_ranks({{"RANK", "5"},
                                        {"WORLD_SIZE", "8"},
                                        {"LOCAL_RANK", "1"},
                                        {"LOCAL_WORLD_SIZE", "4"},
                                        {"MASTER_ADDR", "node1"},
                                        {"MASTER_PORT", "1234"}});
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.world_size, 8);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 4);
  EXPECT_EQ(info.master_addr, "node1");
  EXPECT_EQ(info.master_port, 1234);
  const RankInfo deepspeed = discover_ranks(
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_SIZE", "2"}});
  EXPECT_EQ(deepspeed.local_world_size, 2);
}

TEST(Rendezvous, ExplicitOptionsWin) {
  ExplicitRanks options;
  options.rank = 1;
  options.world_size = 2;
  options.master_port = 99;
  const RankInfo info = discover_ranks({{"RANK", "5"}, {"WORLD_SIZE", "8"}}, options);
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.world_size, 2);
  EXPECT_EQ(info.master_port, 99);
  options.world_size.reset();
  EXPECT_NE(config_error([&] { discover_ranks({}, options); }).find("--world-size"),
            std::string::npos);
}

TEST(Rendezvous, SlurmOnlyInsideAJobStep) {
  Environment env = {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}};
  EXPECT_EQ(discover_ranks(env).world_size, 1);  // an allocation's shell
  env["SLURM_STEP_ID"] = "interactive";
  EXPECT_EQ(discover_ranks(env).world_size, 1);
  env["SLURM_STEP_ID"] = "0";
  EXPECT_EQ(discover_ranks(env).world_size, 4);
  EXPECT_EQ(discover_ranks(env).rank, 2);
}

TEST(Rendezvous, OpenMpiAndMpich) {
  const RankInfo open = discover_ranks({{"OMPI_COMM_WORLD_RANK", "1"},
                                        {"OMPI_COMM_WORLD_SIZE", "2"},
                                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(open.source, RankInfo::Source::kMpi);
  EXPECT_EQ(open.rank, 1);
  EXPECT_EQ(discover_ranks({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}}).world_size, 3);
}

TEST(Rendezvous, WhatIsMissingOrWrongIsNamed) {  // DeepSpeed #8444
  const auto message = [](Environment env) { return config_error([&] { discover_ranks(env); }); };
  EXPECT_NE(message({{"RANK", "0"}}).find("WORLD_SIZE is missing"), std::string::npos);
  EXPECT_NE(message({{"WORLD_SIZE", "2"}}).find("RANK is missing"), std::string::npos);
  EXPECT_NE(message({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).find("\"x\""), std::string::npos);
  EXPECT_NE(message({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).find("rank 2 is outside"),
            std::string::npos);
  EXPECT_NE(message({{"RANK", "0"}, {"WORLD_SIZE", "0"}}).find("at least 1, got 0"),
            std::string::npos);
}

TEST(Rendezvous, CpuRanksWithoutMpiAreToldHowToStart) {
  const RankInfo info = discover_ranks({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  const std::string message = config_error([&] { connect(info, false); });
  EXPECT_NE(message.find("zerosharp launch -n 2"), std::string::npos) << message;
  EXPECT_NE(message.find("mpirun -n 2"), std::string::npos) << message;
}

}  // namespace
}  // namespace zerosharp
