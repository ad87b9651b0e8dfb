// Ranks on one machine: what they are told, how they end, and that none is ever left behind.
#include "engine/cli/launch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/running_program.h"

namespace zerosharp {
namespace {

using testing::becomes_true;
using testing::RunningProgram;
using testing::TemporaryFolder;

constexpr double kSoon = 10;  // seconds within which the end of one rank must end all

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string last_line(const std::string& text) {
  const auto lines = lines_of(text);
  return lines.empty() ? "" : lines.back();
}

/// `zerosharp launch` on ranks that run a shell script.
std::vector<std::string> launch_shell(int num_ranks, const std::string& script,
                                      const std::string& grace = "5") {
  return {LAUNCH_DRIVER,
          "no-own-program",
          "launch",
          "-n",
          std::to_string(num_ranks),
          "--grace",
          grace,
          "--",
          "sh",
          "-c",
          script};
}

// --- Ranks as processes --------------------------------------------------------------------------

TEST(Launch, FailingRankEndsAllWithItsCode) {  // pytorch #49305
  RunningProgram program(launch_shell(4, "if [ $RANK = 2 ]; then exit 7; fi; sleep 600"));
  EXPECT_EQ(program.exit_code(kSoon), 7);
  EXPECT_EQ(program.family().size(), 0u);
  EXPECT_EQ(last_line(program.err()), "zerosharp launch: rank 2 failed with exit code 7");
}

TEST(Launch, RankKilledBySignalIsNamedWithIt) {
  RunningProgram program(launch_shell(3, "[ $RANK = 1 ] && kill -9 $$; sleep 600"));
  EXPECT_EQ(program.exit_code(kSoon), 128 + 9);
  EXPECT_EQ(program.family().size(), 0u);
  EXPECT_EQ(last_line(program.err()), "zerosharp launch: rank 1 was killed by signal 9 (Killed)");
}

TEST(Launch, DeafRanksAndTheirChildrenAreGoneAfterTheGrace) {  // DeepSpeed #1995
  RunningProgram program(
      launch_shell(2, "trap '' TERM; echo ready $RANK; sleep 600 & wait; sleep 600", "1"));
  ASSERT_TRUE(program.prints("ready 0", kSoon) && program.prints("ready 1", kSoon));
  ASSERT_TRUE(becomes_true(kSoon, [&] { return program.family().size() == 5; }));
  program.send(SIGTERM);
  EXPECT_EQ(program.exit_code(1 + 5), 128 + SIGTERM);
  EXPECT_EQ(program.family().size(), 0u);
}

TEST(Launch, RanksAskedToStopMayFinish) {
  for (const int signal : {SIGINT, SIGTERM}) {
    RunningProgram program(launch_shell(
        2,
        "trap 'sleep 0.5; echo bye $RANK; exit 0' TERM; echo ready $RANK; while :; do sleep "
        "0.1; done"));
    ASSERT_TRUE(program.prints("ready 0", kSoon) && program.prints("ready 1", kSoon));
    program.send(signal);
    EXPECT_EQ(program.exit_code(kSoon), 128 + signal);
    EXPECT_TRUE(program.prints("bye 0", 0) && program.prints("bye 1", 0)) << program.out();
    EXPECT_EQ(program.family().size(), 0u);
  }
}

TEST(Launch, SecondSignalEndsAtOnce) {
  RunningProgram program(launch_shell(2, "trap '' TERM; echo ready $RANK; sleep 600", "300"));
  ASSERT_TRUE(program.prints("ready 0", kSoon) && program.prints("ready 1", kSoon));
  program.send(SIGINT);
  EXPECT_FALSE(program.exit_code(0.5));  // the grace has begun
  program.send(SIGINT);
  EXPECT_EQ(program.exit_code(kSoon), 128 + SIGINT);
}

TEST(Launch, KilledLauncherLeavesNoRank) {
  RunningProgram program(launch_shell(3, "trap '' TERM; echo ready $RANK; read never < /dev/zero"));
  for (const char* ready : {"ready 0", "ready 1", "ready 2"}) {
    ASSERT_TRUE(program.prints(ready, kSoon));
  }
  program.send(SIGKILL);
  EXPECT_EQ(program.exit_code(kSoon), 1000 + SIGKILL);
  EXPECT_TRUE(becomes_true(kSoon, [&] { return program.family().empty(); }));
}

TEST(Launch, WhatSuccessfulRanksLeaveRunningIsEnded) {
  RunningProgram program(launch_shell(2, "setsid sleep 600 & exit 0"));
  EXPECT_EQ(program.exit_code(kSoon), 0);
  EXPECT_EQ(program.family().size(), 0u);
}

TEST(Launch, ExitCodesSurviveAnIgnoredSigchld) {
  auto command = launch_shell(2, "exit $((RANK * 3))");
  command.insert(command.begin(), {"/bin/bash", "-c", "trap '' CHLD; exec \"$@\"", "sh"});
  RunningProgram program(command);
  EXPECT_EQ(program.exit_code(kSoon), 3);
}

TEST(Launch, RanksAreToldWhoTheyAre) {
  RunningProgram program(
      launch_shell(3, "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR"),
      {"RANK=9", "WORLD_SIZE=10"});
  ASSERT_EQ(program.exit_code(kSoon), 0);
  auto lines = lines_of(program.out());
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (std::vector<std::string>{"0/3 0/3 127.0.0.1", "[r1] 1/3 1/3 127.0.0.1",
                                             "[r2] 2/3 2/3 127.0.0.1"}));
}

TEST(Launch, LaunchesAtOnceTakeDifferentPorts) {  // DeepSpeed #191
  std::vector<std::unique_ptr<RunningProgram>> programs;
  for (int i = 0; i < 3; ++i) {
    programs.push_back(
        std::make_unique<RunningProgram>(launch_shell(2, "echo $MASTER_PORT; sleep 0.5")));
  }
  std::set<std::string> ports;
  for (const auto& program : programs) {
    ASSERT_EQ(program->exit_code(kSoon), 0);
    auto lines = lines_of(program->out());
    ASSERT_EQ(lines.size(), 2u);
    std::sort(lines.begin(), lines.end());  // digits come before "["
    EXPECT_EQ(lines[1], "[r1] " + lines[0]);
    ports.insert(lines[0]);
  }
  // Free ports are drawn from some 28000: two may be equal once in a long while, three never.
  EXPECT_GE(ports.size(), 2u);
}

TEST(Launch, LinesStayWhole) {
  const std::string script =
      "i=0; while [ $i -lt 200 ]; do echo $RANK-out-$i; echo $RANK-err-$i >&2; i=$((i+1)); done; "
      "head -c 100000 /dev/zero | tr '\\0' x; echo; printf 'no end of line'";
  RunningProgram program(launch_shell(3, script));
  ASSERT_EQ(program.exit_code(kSoon), 0);
  const auto out = lines_of(program.out());
  const auto err = lines_of(program.err());
  EXPECT_EQ(out.size(), 3u * 202);
  EXPECT_EQ(err.size(), 3u * 200);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string number = std::to_string(rank);
    const std::string prefix = rank == 0 ? "" : "[r" + number + "] ";
    std::vector<std::string> expected;
    for (int i = 0; i < 200; ++i) {
      expected.push_back(prefix + number + "-out-" + std::to_string(i));
    }
    expected.push_back(prefix + std::string(100000, 'x'));
    expected.push_back(prefix + "no end of line");
    std::vector<std::string> printed;
    for (const auto& line : out) {
      const bool tagged = line.rfind("[r", 0) == 0;
      if (rank == 0 ? !tagged : line.rfind(prefix, 0) == 0) printed.push_back(line);
    }
    EXPECT_TRUE(printed == expected) << "rank " << rank << " printed " << printed.size();
  }
}

TEST(Launch, LastWordsOfTheFailingRankStandLast) {
  RunningProgram program(launch_shell(
      2,
      "if [ $RANK = 0 ]; then echo 'disk is full' >&2; sleep 1; exit 4; fi; sleep 0.5; echo noise "
      ">&2; sleep 600"));
  EXPECT_EQ(program.exit_code(kSoon), 4);
  EXPECT_EQ(program.err(),
            "disk is full\n"
            "[r1] noise\n"
            "zerosharp launch: last lines of rank 0:\n"
            "  disk is full\n"
            "zerosharp launch: rank 0 failed with exit code 4\n");
}

TEST(Launch, ErrorThatAllRanksReportIsShownOnce) {
  RunningProgram program(launch_shell(
      3, "echo \"zerosharp: error: [rank $RANK] no such key\" >&2; sleep 0.5; exit 2"));
  EXPECT_EQ(program.exit_code(kSoon), 2);
  const auto lines = lines_of(program.err());
  const auto is_report = [](const std::string& line) {
    return line.find("no such key") != std::string::npos && line[0] != ' ';
  };
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), is_report), 1) << program.err();
}

TEST(Launch, UnknownProgramIsNamed) {
  RunningProgram program({LAUNCH_DRIVER, "own", "launch", "-n", "2", "--", "no-such-program"});
  EXPECT_EQ(program.exit_code(kSoon), 2);
  EXPECT_EQ(program.err(),
            "zerosharp: error: launch: no-such-program cannot be started: No such file or "
            "directory; after `--` write train CONFIG, or a program by its path or in PATH\n");
}

// --- Ranks under mpirun --------------------------------------------------------------------------

/// `zerosharp launch … -- train CONFIG` where a shell script takes the place of the program. Under
/// mpirun, $r is its rank.
class LaunchMpirun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::string(MPIRUN) == "") GTEST_SKIP() << "no mpirun was found when this was configured";
    write("config.json", R"({"train_batch_size": 12, "train": {"steps": 1}})");
  }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
  }

  std::vector<std::string> command(const std::string& script, int num_ranks,
                                   const std::vector<std::string>& options = {"--device", "cpu"}) {
    const std::string program = folder_ / "zerosharp";
    write("zerosharp", "#!/bin/sh\nr=$OMPI_COMM_WORLD_RANK\n" + script + "\n");
    std::filesystem::permissions(program, std::filesystem::perms::owner_all);
    std::vector<std::string> words = {LAUNCH_DRIVER, program, "launch", "-n",
                                      std::to_string(num_ranks)};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", "train", folder_ / "config.json"});
    return words;
  }

  TemporaryFolder folder_;
};

TEST_F(LaunchMpirun, OutputIsPrefixedAndRankVariablesOfTheShellAreRemoved) {
  RunningProgram program(
      command("echo $r of $OMPI_COMM_WORLD_SIZE [$RANK$WORLD_SIZE$LOCAL_RANK]", 3),
      {"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0"});
  EXPECT_EQ(program.exit_code(kSoon), 0) << program.err();
  auto lines = lines_of(program.out());
  std::sort(lines.begin(), lines.end());
  EXPECT_EQ(lines, (std::vector<std::string>{"0 of 3 []", "[r1] 1 of 3 []", "[r2] 2 of 3 []"}));
  EXPECT_EQ(program.err(), "");
}

TEST_F(LaunchMpirun, FailingRankEndsAllWithItsCodeAndItsErrorLast) {
  RunningProgram program(command(
      "if [ $r = 1 ]; then echo 'zerosharp: error: [rank 1] the disk is full' >&2; exit 7; fi\n"
      "sleep 600",
      3));
  EXPECT_EQ(program.exit_code(kSoon), 7);
  EXPECT_EQ(program.family().size(), 0u);
  EXPECT_EQ(program.err(),
            "[r1] zerosharp: error: [rank 1] the disk is full\n"
            "zerosharp launch: rank 1 failed with exit code 7\n");
}

TEST_F(LaunchMpirun, RankKilledBySignalIsNamedWithIt) {
  RunningProgram program(command("[ $r = 2 ] && kill -9 $$\nsleep 600", 3));
  EXPECT_EQ(program.exit_code(kSoon), 128 + 9);
  EXPECT_EQ(program.family().size(), 0u);
  EXPECT_EQ(program.err(), "zerosharp launch: rank 2 was killed by signal 9 (Killed)\n");
}

TEST_F(LaunchMpirun, RanksAskedToStopAreAskedOnceAndMayFinish) {
  RunningProgram program(
      command("n=0; trap 'n=$((n+1))' TERM; echo ready $r\n"
              "while [ $n = 0 ]; do sleep 0.1; done; sleep 2; echo $r was asked $n time; exit 0",
              2, {"--device", "cpu", "--grace", "8"}));
  ASSERT_TRUE(program.prints("ready 0", kSoon) && program.prints("ready 1", kSoon));
  program.send(SIGTERM);
  EXPECT_EQ(program.exit_code(kSoon), 128 + SIGTERM);
  EXPECT_TRUE(program.prints("0 was asked 1 time", 0)) << program.out();
  EXPECT_TRUE(program.prints("1 was asked 1 time", 0)) << program.out();
  EXPECT_EQ(program.family().size(), 0u);
}

TEST_F(LaunchMpirun, DeafRanksAreGoneAfterTheGrace) {
  RunningProgram program(command("trap '' TERM; echo ready $r; sleep 600 & wait; sleep 600", 2,
                                 {"--device", "cpu", "--grace", "1"}));
  ASSERT_TRUE(program.prints("ready 0", kSoon) && program.prints("ready 1", kSoon));
  program.send(SIGTERM);
  EXPECT_EQ(program.exit_code(1 + 5), 128 + SIGTERM);
  EXPECT_EQ(program.family().size(), 0u);
}

TEST_F(LaunchMpirun, KilledLauncherLeavesNoRank) {
  RunningProgram program(command("echo ready $r; sleep 600", 2));
  ASSERT_TRUE(program.prints("ready 0", kSoon) && program.prints("ready 1", kSoon));
  program.send(SIGKILL);
  EXPECT_EQ(program.exit_code(kSoon), 1000 + SIGKILL);
  EXPECT_TRUE(becomes_true(kSoon, [&] { return program.family().empty(); }));
}

TEST_F(LaunchMpirun, MissingMpirunNamesThePackage) {
  RunningProgram program(command("exit 0", 2), {"PATH=/nonexistent"});
  EXPECT_EQ(program.exit_code(kSoon), 2);
  EXPECT_EQ(program.err(),
            "zerosharp: error: launch: mpirun cannot be started: No such file or directory; CPU "
            "ranks run under mpirun: install the package openmpi-bin\n");
}

TEST_F(LaunchMpirun, FailureOfMpirunItselfShowsItsWords) {
  RunningProgram program(command("exit 0", 2), {"OMPI_MCA_plm=no-such-way"});
  const auto code = program.exit_code(kSoon);
  ASSERT_TRUE(code);
  EXPECT_NE(*code, 0);
  const auto lines = lines_of(program.err());
  EXPECT_GT(std::count_if(lines.begin(), lines.end(),
                          [](const auto& line) { return line.rfind("mpirun: ", 0) == 0; }),
            1)
      << program.err();
  EXPECT_EQ(lines.back(), "zerosharp launch: mpirun ended with exit code " + std::to_string(*code) +
                              " and named no rank");
}

TEST_F(LaunchMpirun, BadConfigurationStartsNoRank) {
  auto words = command("touch " + (folder_ / "started"), 5);  // 12 samples on 5 ranks
  RunningProgram program(words);
  EXPECT_EQ(program.exit_code(kSoon), 2);
  EXPECT_NE(program.err().find("train_batch_size"), std::string::npos) << program.err();
  EXPECT_EQ(program.err().rfind("zerosharp: error: ", 0), 0u) << program.err();
  EXPECT_FALSE(std::filesystem::exists(folder_ / "started"));
}

TEST_F(LaunchMpirun, DeviceBecomesAnOverrideUnlessOneIsGiven) {
  auto plain = command("echo \"$@\"", 1);
  RunningProgram with_option(plain);
  EXPECT_EQ(with_option.exit_code(kSoon), 0);
  EXPECT_EQ(with_option.out(), "train " + (folder_ / "config.json") + " train.device=cpu\n");

  auto overridden = command("echo \"$@\"", 1, {"--device", "cuda"});
  overridden.push_back("train.device=cpu");
  RunningProgram with_override(overridden);
  EXPECT_EQ(with_override.exit_code(kSoon), 0);
  EXPECT_EQ(with_override.out(), "train " + (folder_ / "config.json") + " train.device=cpu\n");
}

TEST_F(LaunchMpirun, ConfigurationOrTheProgramsOwnNameLeadToMpirunToo) {
  auto words = command("echo $OMPI_COMM_WORLD_SIZE \"$@\"", 2, {});
  write("config.json", R"({"train_batch_size": 12, "train": {"steps": 1, "device": "cpu"}})");
  words.insert(std::find(words.begin(), words.end(), "train"), "zerosharp");
  RunningProgram program(words);
  EXPECT_EQ(program.exit_code(kSoon), 0) << program.err();
  auto lines = lines_of(program.out());
  std::sort(lines.begin(), lines.end());
  const std::string line = "2 train " + (folder_ / "config.json");
  EXPECT_EQ(lines, (std::vector<std::string>{line, "[r1] " + line}));
}

TEST_F(LaunchMpirun, CudaRanksAreProcesses) {
  RunningProgram program(command("echo $RANK of $WORLD_SIZE \"$3\"", 2, {"--device", "cuda"}));
  EXPECT_EQ(program.exit_code(kSoon), 0) << program.err();
  EXPECT_TRUE(program.prints("[r1] 1 of 2 train.device=cuda", 0)) << program.out();
}

}  // namespace
}  // namespace zerosharp
