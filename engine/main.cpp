// The program zerosharp.
#include <malloc.h>

#include <filesystem>

#include "engine/cli/command_line.h"
#include "engine/cli/launch.h"
#include "engine/train.h"

namespace {

/// Activations come and go every step: keeping freed memory saves the page faults of getting it
/// again, which cost up to a sixth of a CPU step.
void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string own_path = std::filesystem::read_symlink("/proc/self/exe").string();
  zerosharp::Commands commands;
  commands.train = [](const zerosharp::TrainArguments& arguments) {
    keep_freed_memory();
    return zerosharp::train(arguments);
  };
  commands.launch = [&](const zerosharp::LaunchArguments& arguments) {
    return zerosharp::launch(arguments, own_path);
  };
  commands.version = zerosharp::version_text;
  return zerosharp::run_cli(argc, argv, commands);
}
