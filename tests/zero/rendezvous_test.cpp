// How ranks are found in the environment.
#include "zero/rendezvous.h"

#include <gtest/gtest.h>

#include <cstdlib>
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
  EXPECT_NE(message({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}).find("rank -1 is outside"),
            std::string::npos);
  EXPECT_NE(message({{"RANK", ""}, {"WORLD_SIZE", "2"}}).find("RANK must be an integer"),
            std::string::npos);
  EXPECT_NE(message({{"RANK", "1 "}, {"WORLD_SIZE", "2"}}).find("\"1 \""), std::string::npos);
  EXPECT_NE(message({{"RANK", "99999999999"}, {"WORLD_SIZE", "2"}}).find("RANK must be"),
            std::string::npos);
  EXPECT_NE(message({{"OMPI_COMM_WORLD_SIZE", "2"}}).find("OMPI_COMM_WORLD_RANK is missing"),
            std::string::npos);
  EXPECT_NE(message({{"PMI_SIZE", "2"}}).find("PMI_RANK is missing"), std::string::npos);
  EXPECT_NE(
      message({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}}).find("SLURM_NTASKS is missing"),
      std::string::npos);
}

TEST(Rendezvous, LocalRanksAndPortsAreChecked) {
  Environment env = {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}};
  EXPECT_EQ(discover_ranks(env).local_rank, 1);  // ranks of a node are consecutive
  env["LOCAL_RANK"] = "2";
  EXPECT_NE(config_error([&] { discover_ranks(env); }).find("local rank 2 is outside"),
            std::string::npos);
  env["LOCAL_RANK"] = "0";
  for (const char* port : {"0", "65536", "-1"}) {
    env["MASTER_PORT"] = port;
    const std::string message = config_error([&] { discover_ranks(env); });
    EXPECT_NE(message.find(std::string("got ") + port), std::string::npos) << message;
    EXPECT_NE(message.find("--master-port"), std::string::npos) << message;
  }
  env["MASTER_PORT"] = "65535";
  EXPECT_EQ(discover_ranks(env).master_port, 65535);
}

TEST(Rendezvous, OptionsReplaceWhatTheLauncherSays) {
  ExplicitRanks options;
  options.local_rank = 1;
  options.master_addr = "node7";
  options.master_port = 4000;
  const RankInfo info = discover_ranks({{"RANK", "2"},
                                        {"WORLD_SIZE", "4"},
                                        {"LOCAL_RANK", "0"},
                                        {"MASTER_ADDR", "node1"},
                                        {"MASTER_PORT", "1"}},
                                       options);
  EXPECT_EQ(info.rank, 2);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.master_addr, "node7");
  EXPECT_EQ(info.master_port, 4000);
}

// Every launcher's variables at once: the first of the documented order wins.
TEST(Rendezvous, OrderOfPrecedence) {
  Environment env = {
      {"RANK", "1"},         {"WORLD_SIZE", "2"},           {"SLURM_PROCID", "2"},
      {"SLURM_NTASKS", "3"}, {"SLURM_STEP_ID", "0"},        {"OMPI_COMM_WORLD_RANK", "3"},
      {"PMI_RANK", "4"},     {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMI_SIZE", "5"},
  };
  ExplicitRanks options;
  options.rank = 0;
  options.world_size = 1;
  EXPECT_EQ(discover_ranks(env, options).source, RankInfo::Source::kExplicit);
  EXPECT_EQ(discover_ranks(env).world_size, 2);
  EXPECT_EQ(discover_ranks(env).source, RankInfo::Source::kEnvironment);
  env.erase("RANK");
  env.erase("WORLD_SIZE");
  EXPECT_EQ(discover_ranks(env).world_size, 3);
  EXPECT_EQ(discover_ranks(env).source, RankInfo::Source::kSlurm);
  env.erase("SLURM_STEP_ID");
  EXPECT_EQ(discover_ranks(env).world_size, 4);
  EXPECT_EQ(discover_ranks(env).how, "Open MPI");
  env.erase("OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(discover_ranks(env).world_size, 5);
  EXPECT_EQ(discover_ranks(env).how, "MPICH (PMI)");
}

TEST(Rendezvous, EnvironmentMapHoldsTheProcessesVariables) {
  setenv("ZEROSHARP_RENDEZVOUS_TEST", "a=b", 1);
  EXPECT_EQ(environment_map().at("ZEROSHARP_RENDEZVOUS_TEST"), "a=b");
  unsetenv("ZEROSHARP_RENDEZVOUS_TEST");
  EXPECT_EQ(environment_map().count("ZEROSHARP_RENDEZVOUS_TEST"), 0u);
}

TEST(Rendezvous, CpuRanksWithoutMpiAreToldHowToStart) {
  const RankInfo info = discover_ranks({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  const std::string message = config_error([&] { connect(info, false); });
  EXPECT_NE(message.find("zerosharp launch -n 2"), std::string::npos) << message;
  EXPECT_NE(message.find("mpirun -n 2"), std::string::npos) << message;
}

}  // namespace
}  // namespace zerosharp
