// Command lines: what they mean, what is wrong with them, and the exit codes that follow.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "engine/cli/command_line.h"
#include "engine/cli/signals.h"
#include "engine/config/key_table.h"
#include "kernels/error.h"

namespace zerosharp {
namespace {

using Words = std::vector<std::string>;

std::string usage_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

// --- train ---------------------------------------------------------------------------------------

TEST(ParseTrain, ConfigurationAndOverridesInAnyOrder) {
  const TrainArguments a =
      parse_train({"sam.rho=0.1", "c.json", "--out", "o", "data.path=a=b", "sam.rho=-1"});
  EXPECT_EQ(a.config, "c.json");
  EXPECT_EQ(a.overrides, (Words{"sam.rho=0.1", "data.path=a=b", "sam.rho=-1"}));
  EXPECT_EQ(a.out, "o");
  EXPECT_FALSE(a.ranks.rank || a.ranks.world_size || a.ranks.local_rank || a.ranks.master_addr ||
               a.ranks.master_port);
  EXPECT_EQ(parse_train({"c.json"}).out, "");
}

TEST(ParseTrain, RanksAndRendezvous) {
  const TrainArguments a = parse_train({"--rank=1", "--world-size", "4", "--local-rank", "0",
                                        "--master-addr", "node1", "--master-port=1234", "c.json"});
  EXPECT_EQ(a.ranks.rank, 1);
  EXPECT_EQ(a.ranks.world_size, 4);
  EXPECT_EQ(a.ranks.local_rank, 0);
  EXPECT_EQ(a.ranks.master_addr, "node1");
  EXPECT_EQ(a.ranks.master_port, 1234);
}

TEST(ParseTrain, WhatTorchrunAndDeepSpeedAppendIsAccepted) {
  for (const Words& words :
       {Words{"--local_rank=3", "c.json"}, Words{"--local_rank", "3", "c.json"},
        Words{"c.json", "--local-rank=3"}}) {
    EXPECT_EQ(parse_train(words).config, "c.json");
  }
}

TEST(ParseTrain, ErrorsNameTheWordAndTheRemedy) {
  const std::pair<Words, std::string> cases[] = {
      {{}, "train needs a configuration file, for example `zerosharp train configs/gpt-text.json`"},
      {{"sam.rho=1"},
       "train needs a configuration file, for example `zerosharp train configs/gpt-text.json`"},
      {{"a.json", "b.json"},
       "train takes one configuration file, got \"a.json\" and \"b.json\"; overrides have the form "
       "key.path=value"},
      {{"c.json", "--ouf", "x"}, "unrecognised option '--ouf'; see `zerosharp help train`"},
      {{"c.json", "--ou", "x"}, "unrecognised option '--ou'; see `zerosharp help train`"},
      {{"c.json", "--rank", "two"},
       "the argument ('two') for option '--rank' is invalid; see `zerosharp help train`"},
      {{"c.json", "--out"},
       "the required argument for option '--out' is missing; see `zerosharp help train`"},
      {{"c.json", "--out", "a", "--out", "b"},
       "option '--out' cannot be specified more than once; see `zerosharp help train`"},
  };
  for (const auto& [words, message] : cases) {
    EXPECT_EQ(usage_error([&, &given = words] { parse_train(given); }), message);
  }
}

// --- launch --------------------------------------------------------------------------------------

TEST(ParseLaunch, OptionsBeforeTheSeparatorCommandBehind) {
  const LaunchArguments a = parse_launch({"-n", "3", "--device", "cpu", "--grace", "0.5",
                                          "--verbose", "--", "train", "c.json", "-n", "--", "x=1"});
  EXPECT_EQ(a.num_ranks, 3);
  EXPECT_EQ(a.device, "cpu");
  EXPECT_EQ(a.grace_seconds, 0.5);
  EXPECT_TRUE(a.verbose);
  EXPECT_EQ(a.command, (Words{"train", "c.json", "-n", "--", "x=1"}));

  const LaunchArguments plain = parse_launch({"--num-ranks=2", "--", "p"});
  EXPECT_EQ(plain.num_ranks, 2);
  EXPECT_EQ(plain.device, "auto");
  EXPECT_EQ(plain.grace_seconds, 5);
  EXPECT_FALSE(plain.verbose);
  EXPECT_EQ(parse_launch({"-n2", "--", "p"}).num_ranks, 2);
}

TEST(ParseLaunch, ErrorsNameTheWordAndTheRemedy) {
  const std::pair<Words, std::string> cases[] = {
      {{"--", "train", "c.json"}, "launch needs the number of ranks: -n N"},
      {{"-n", "2"}, "launch needs a command after `--`: zerosharp launch -n 2 -- train CONFIG"},
      {{"-n", "2", "--"},
       "launch needs a command after `--`: zerosharp launch -n 2 -- train CONFIG"},
      {{"-n", "2", "train", "c.json"},
       "launch: \"train\" stands before `--`; write `zerosharp launch -n 2 -- train CONFIG`"},
      {{"-n", "0", "--", "p"}, "launch: -n must be at least 1, got 0"},
      {{"-n", "-2", "--", "p"}, "launch: -n must be at least 1, got -2"},
      {{"-n", "2.5", "--", "p"},
       "the argument ('2.5') for option '--num-ranks' is invalid; see `zerosharp help launch`"},
      {{"-n", "2", "--device", "tpu", "--", "p"},
       "launch: --device must be auto, cpu or cuda, got \"tpu\""},
      {{"-n", "2", "--grace=-1", "--", "p"},
       "launch: --grace must be at least 0 seconds, got -1.000000"},
      {{"-n", "2", "--grace", "nan", "--", "p"},
       "launch: --grace must be at least 0 seconds, got nan"},
      {{"-n", "2", "--gr", "1", "--", "p"},
       "unrecognised option '--gr'; see `zerosharp help launch`"},
  };
  for (const auto& [words, message] : cases) {
    EXPECT_EQ(usage_error([&, &given = words] { parse_launch(given); }), message);
  }
}

// --- The program ---------------------------------------------------------------------------------

struct Ran {
  int code = -1;
  std::string out, err;
};

/// Runs a command line with `train` and `launch` replaced, as the only rank.
class Program : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "RANK", "PMI_RANK", "SLURM_PROCID"}) {
      unsetenv(name);
    }
    commands_.train = [](const TrainArguments&) { return 0; };
    commands_.launch = [](const LaunchArguments&) { return 0; };
    commands_.version = [] { return std::string("zerosharp 1.2.3"); };
  }

  int run_uncaptured(Words words) {
    words.insert(words.begin(), "zerosharp");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    return run_cli(static_cast<int>(argv.size()), argv.data(), commands_);
  }

  Ran run(const Words& words) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    Ran ran;
    ran.code = run_uncaptured(words);
    ran.out = ::testing::internal::GetCapturedStdout();
    ran.err = ::testing::internal::GetCapturedStderr();
    return ran;
  }

  Commands commands_;
};

TEST_F(Program, CommandsGetTheirArgumentsAndSetTheExitCode) {
  commands_.train = [](const TrainArguments& a) { return a.config == "c.json" ? 143 : -1; };
  commands_.launch = [](const LaunchArguments& a) { return a.num_ranks == 4 ? 7 : -1; };
  EXPECT_EQ(run({"train", "c.json"}).code, 143);
  EXPECT_EQ(run({"launch", "-n", "4", "--", "train", "c.json"}).code, 7);
}

TEST_F(Program, ErrorsAreOneLineAndTheirKindSetsTheExitCode) {
  const auto after = [&](const std::function<void()>& failure) {
    commands_.train = [=](const TrainArguments&) {
      failure();
      return 0;
    };
    return run({"train", "c.json"});
  };
  const std::string line = "zerosharp: error: what is wrong\n";
  const Ran usage = after([] { throw UsageError("what is wrong"); });
  const Ran config = after([] { throw ConfigError("what is wrong"); });
  const Ran shape = after([] { throw ShapeError("what is wrong"); });
  const Ran other = after([] { throw std::runtime_error("what is wrong"); });
  EXPECT_EQ(usage.code, 2);
  EXPECT_EQ(config.code, 2);
  EXPECT_EQ(shape.code, 1);
  EXPECT_EQ(other.code, 1);
  for (const Ran* ran : {&usage, &config, &shape, &other}) {
    EXPECT_EQ(ran->err, line);
    EXPECT_EQ(ran->out, "");
  }
}

TEST_F(Program, UnknownCommandListsTheCommands) {
  const Ran ran = run({"trian", "c.json"});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.err,
            "zerosharp: error: unknown command \"trian\"; the commands are train, launch, version "
            "and help\n");
}

TEST_F(Program, VersionIsPrinted) {
  for (const char* word : {"version", "--version"}) EXPECT_EQ(run({word}).out, "zerosharp 1.2.3\n");
}

TEST_F(Program, FailingRankNamesItselfAndLeavesAtOnce) {
  commands_.train = [](const TrainArguments&) -> int { throw std::runtime_error("no disk"); };
  EXPECT_EXIT(
      {
        setenv("OMPI_COMM_WORLD_RANK", "0", 1);
        std::atexit([] { std::fputs("orderly goodbye", stderr); });  // may wait for other ranks
        run_uncaptured({"train", "c.json"});
      },
      ::testing::ExitedWithCode(1), "^zerosharp: error: \\[rank 0\\] no disk\n$");
}

// --- Help ----------------------------------------------------------------------------------------

TEST_F(Program, HelpIsFoundWhereverItIsAskedFor) {
  const std::string overview = help_text("");
  const std::string train = help_text("train");
  const std::string launch = help_text("launch");
  const std::pair<Words, std::string> cases[] = {
      {{}, overview},
      {{"--help"}, overview},
      {{"-h"}, overview},
      {{"help"}, overview},
      {{"version", "--help"}, overview},
      {{"help", "train"}, train},
      {{"train", "--help"}, train},
      {{"train", "c.json", "sam.rho=1", "-h"}, train},
      {{"launch", "-n", "2", "--help", "--", "train"}, launch},
      {{"help", "launch"}, launch},
  };
  for (const auto& [words, page] : cases) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.code, 0);
    EXPECT_EQ(ran.out, page);
    EXPECT_EQ(ran.err, "");
  }
  // Behind the separator it is the program's.
  std::string seen;
  commands_.launch = [&](const LaunchArguments& a) {
    seen = a.command.back();
    return 0;
  };
  EXPECT_EQ(run({"launch", "-n", "2", "--", "program", "--help"}).code, 0);
  EXPECT_EQ(seen, "--help");
  EXPECT_EQ(run({"help", "cook"}).code, 2);
}

TEST(HelpText, PagesHoldAnExampleTheDefaultsAndEveryHonouredKey) {
  const std::string overview = help_text("");
  for (const char* part :
       {"train CONFIG", "launch -n N", "version", "Example:", "Exit codes:", "130/143"}) {
    EXPECT_NE(overview.find(part), std::string::npos) << part;
  }
  const std::string launch = help_text("launch");
  for (const char* part : {"--num-ranks", "-n [", "--device arg (=auto)", "--grace arg (=5)",
                           "--verbose", "Example:"}) {
    EXPECT_NE(launch.find(part), std::string::npos) << part << "\n" << launch;
  }
  const std::string train = help_text("train");
  for (const char* part : {"--out", "--rank", "--world-size", "--master-port", "Example:"}) {
    EXPECT_NE(train.find(part), std::string::npos) << part;
  }
  int honoured = 0;
  for (const KeySpec& key : key_table()) {
    if (key.effect != KeyEffect::kHonoured || key.type == KeyType::kSection) continue;
    ++honoured;
    EXPECT_NE(train.find(std::string(key.path)), std::string::npos) << key.path;
  }
  EXPECT_GT(honoured, 20);
}

// --- Signals -------------------------------------------------------------------------------------

TEST(StopSignal, FirstIsRememberedSecondEndsTheProcess) {
  EXPECT_EXIT(
      {
        install_stop_signals();
        if (stop_signal() != 0) _exit(1);
        raise(SIGTERM);
        if (stop_signal() != SIGTERM) _exit(2);
        raise(SIGINT);
        _exit(3);
      },
      ::testing::ExitedWithCode(128 + SIGINT), "");
}

}  // namespace
}  // namespace zerosharp
