#include "engine/cli/command_line.h"

#include <unistd.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <thread>

#include "engine/config/key_table.h"
#include "kernels/error.h"

namespace zerosharp {
namespace {

namespace po = boost::program_options;

constexpr const char* kOverview =
    R"(zerosharp trains LibTorch modules with partitioned optimizer state and SAM.

Usage:
  zerosharp train CONFIG [key=value ...] [--out DIR]    train what the JSON file describes
  zerosharp launch -n N -- train CONFIG ...             the same on N ranks of this machine
  zerosharp version                                     versions of the parts
  zerosharp help [train|launch]                         options and configuration keys

Example:
  zerosharp launch -n 2 -- train configs/gpt-text.json --out out/gpt

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130/143 stopped by a signal.
)";

po::options_description train_options() {
  po::options_description options("Options of train");
  options.add_options()("out", po::value<std::string>(),
                        "folder for metrics.jsonl, config.json and summary.json "
                        "(default: none is written)")(
      "rank", po::value<int>(), "this rank, 0 … world size - 1 (default: from the launcher)")(
      "world-size", po::value<int>(), "number of ranks (default: from the launcher)")(
      "local-rank", po::value<int>(), "number of the rank on this machine")(
      "local_rank", po::value<int>(), "the same, as torchrun and deepspeed append it")(
      "master-addr", po::value<std::string>(), "host of rank 0 (default 127.0.0.1)")(
      "master-port", po::value<int>(), "port of rank 0 (default 29500)");
  return options;
}

po::options_description launch_options() {
  po::options_description options("Options of launch");
  options.add_options()("num-ranks,n", po::value<int>(),
                        "number of ranks on this machine (required)")(
      "device", po::value<std::string>()->default_value("auto"),
      "cpu: ranks under mpirun; cuda: one process a GPU; auto: what train.device says, else cuda "
      "where a driver is found")("grace", po::value<double>()->default_value(5),
                                 "seconds between SIGTERM and SIGKILL")(
      "verbose", po::bool_switch(), "also show what mpirun itself says");
  return options;
}

po::variables_map parse(const po::options_description& visible,
                        const std::vector<std::string>& words, const char* subcommand) {
  po::options_description all;
  all.add(visible);
  all.add_options()("word", po::value<std::vector<std::string>>());
  po::positional_options_description positional;
  positional.add("word", -1);
  po::variables_map values;
  try {
    // No guessing: "--o" must not quietly become "--out".
    const int style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
    po::store(po::command_line_parser(words).options(all).positional(positional).style(style).run(),
              values);
    po::notify(values);
  } catch (const po::error& error) {
    throw UsageError(std::string(error.what()) + "; see `zerosharp help " + subcommand + "`");
  }
  return values;
}

template <class T>
std::optional<T> get(const po::variables_map& values, const char* name) {
  if (values.count(name) == 0) return std::nullopt;
  return values[name].as<T>();
}

/// The rank a launcher gave this process, for messages; nothing when there is one rank.
std::optional<std::string> rank_of_environment() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name)) return rank;
  }
  return std::nullopt;
}

int report(const std::string& message, int code) {
  const auto rank = rank_of_environment();
  if (rank && *rank != "0") std::this_thread::sleep_for(std::chrono::seconds(1));
  std::fflush(stdout);
  const std::string where = rank ? "[rank " + *rank + "] " : "";
  std::fprintf(stderr, "zerosharp: error: %s%s\n", where.c_str(), message.c_str());
  std::fflush(stderr);
  // Another rank may wait for this one for ever: leave without the orderly goodbye, so that the
  // launcher sees a failure and ends them all.
  if (rank) _exit(code);
  return code;
}

bool is_help(const std::string& word) { return word == "--help" || word == "-h"; }

/// The page that is asked for, by `help TOPIC` or --help anywhere before a "--".
std::optional<std::string> help_topic(const std::string& subcommand,
                                      const std::vector<std::string>& words) {
  if (is_help(subcommand)) return "";
  if (subcommand == "help") return words.empty() || is_help(words[0]) ? "" : words[0];
  const auto end = std::find(words.begin(), words.end(), "--");
  if (std::any_of(words.begin(), end, is_help)) return subcommand;
  return std::nullopt;
}

int run(const std::string& subcommand, const std::vector<std::string>& words,
        const Commands& commands) {
  const auto topic = help_topic(subcommand, words);
  if (topic) {
    std::fputs(help_text(*topic).c_str(), stdout);
    return 0;
  }
  if (subcommand == "version" || subcommand == "--version") {
    std::puts(commands.version().c_str());
    return 0;
  }
  if (subcommand == "train") return commands.train(parse_train(words));
  if (subcommand == "launch") return commands.launch(parse_launch(words));
  throw UsageError("unknown command \"" + subcommand +
                   "\"; the commands are train, launch, version and help");
}

}  // namespace

TrainArguments parse_train(const std::vector<std::string>& words) {
  const auto values = parse(train_options(), words, "train");
  TrainArguments arguments;
  if (values.count("word") != 0) {
    for (const auto& word : values["word"].as<std::vector<std::string>>()) {
      if (word.find('=') != std::string::npos) {
        arguments.overrides.push_back(word);
      } else if (arguments.config.empty()) {
        arguments.config = word;
      } else {
        throw UsageError("train takes one configuration file, got \"" + arguments.config +
                         "\" and \"" + word + "\"; overrides have the form key.path=value");
      }
    }
  }
  if (arguments.config.empty()) {
    throw UsageError(
        "train needs a configuration file, for example "
        "`zerosharp train configs/gpt-text.json`");
  }
  arguments.out = get<std::string>(values, "out").value_or("");
  arguments.ranks.rank = get<int>(values, "rank");
  arguments.ranks.world_size = get<int>(values, "world-size");
  arguments.ranks.local_rank = get<int>(values, "local-rank");
  arguments.ranks.master_addr = get<std::string>(values, "master-addr");
  arguments.ranks.master_port = get<int>(values, "master-port");
  return arguments;
}

LaunchArguments parse_launch(const std::vector<std::string>& words) {
  size_t separator = 0;
  while (separator < words.size() && words[separator] != "--") ++separator;
  LaunchArguments arguments;
  for (size_t i = separator + 1; i < words.size(); ++i) arguments.command.push_back(words[i]);
  const auto values = parse(launch_options(), {words.begin(), words.begin() + separator}, "launch");
  if (values.count("word") != 0) {
    throw UsageError("launch: \"" + values["word"].as<std::vector<std::string>>().front() +
                     "\" stands before `--`; write `zerosharp launch -n 2 -- train CONFIG`");
  }
  const auto ranks = get<int>(values, "num-ranks");
  if (!ranks) throw UsageError("launch needs the number of ranks: -n N");
  if (*ranks < 1) {
    throw UsageError("launch: -n must be at least 1, got " + std::to_string(*ranks));
  }
  if (arguments.command.empty()) {
    throw UsageError("launch needs a command after `--`: zerosharp launch -n 2 -- train CONFIG");
  }
  arguments.num_ranks = *ranks;
  arguments.device = values["device"].as<std::string>();
  if (arguments.device != "auto" && arguments.device != "cpu" && arguments.device != "cuda") {
    throw UsageError("launch: --device must be auto, cpu or cuda, got \"" + arguments.device +
                     "\"");
  }
  arguments.grace_seconds = values["grace"].as<double>();
  if (!(arguments.grace_seconds >= 0)) {
    throw UsageError("launch: --grace must be at least 0 seconds, got " +
                     std::to_string(arguments.grace_seconds));
  }
  arguments.verbose = values["verbose"].as<bool>();
  return arguments;
}

std::string help_text(const std::string& subcommand) {
  std::ostringstream text;
  if (subcommand.empty() || subcommand == "version") {
    text << kOverview;
  } else if (subcommand == "train") {
    text
        << "Usage: zerosharp train CONFIG [key=value ...] [options]\n\n"
        << "Example: zerosharp train configs/gpt-text.json train.steps=20 sam.rho=0.1 --out out\n\n"
        << train_options() << "\nConfiguration keys (= default):\n"
        << describe_keys();
  } else if (subcommand == "launch") {
    text << "Usage: zerosharp launch -n N [options] -- train CONFIG [key=value ...]\n"
         << "       zerosharp launch -n N [options] -- PROGRAM [ARGS ...]\n\n"
         << "Starts N ranks on this machine and ends them all when one fails. Rank 0 prints as\n"
         << "it is, the others behind [r1], [r2] …\n\n"
         << "Example: zerosharp launch -n 2 -- train configs/gpt-text.json --out out\n\n"
         << launch_options();
  } else {
    throw UsageError("no help on \"" + subcommand + "\"; topics are train and launch");
  }
  return text.str();
}

int run_cli(int argc, char** argv, const Commands& commands) {
  const std::string subcommand = argc > 1 ? argv[1] : "--help";
  const std::vector<std::string> words(argv + std::min(argc, 2), argv + argc);
  try {
    return run(subcommand, words, commands);
  } catch (const UsageError& error) {
    return report(error.what(), 2);
  } catch (const ConfigError& error) {
    return report(error.what(), 2);
  } catch (const std::exception& error) {
    return report(error.what(), 1);
  }
}

}  // namespace zerosharp
