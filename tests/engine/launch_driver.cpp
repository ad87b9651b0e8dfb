// The command line of zerosharp with another program in the place of the one that trains:
//   launch_driver PROGRAM launch -n 2 -- train CONFIG
#include <iostream>

#include "engine/cli/command_line.h"
#include "engine/cli/launch.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: launch_driver PROGRAM launch …\n";
    return 2;
  }
  zerosharp::Commands commands;
  commands.train = [](const zerosharp::TrainArguments& arguments) {
    std::cout << "train " << arguments.config << "\n";
    return 0;
  };
  commands.launch = [&](const zerosharp::LaunchArguments& arguments) {
    return zerosharp::launch(arguments, argv[1]);
  };
  commands.version = [] { return std::string("driver"); };
  return zerosharp::run_cli(argc - 1, argv + 1, commands);
}
