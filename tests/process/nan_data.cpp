// The program's training loop on data with a hole: eight images in memory, one of them NaN, so that
// the loss of one rank is NaN from the first step on. Says on every rank whether a weight has
// changed.
//   nan_data launch -n 2 -- train CONFIG        (model.type mlp, train_batch_size 8)
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "engine/cli/command_line.h"
#include "engine/cli/launch.h"
#include "engine/trainer.h"

namespace zerosharp {
namespace {

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) result.push_back(tensor.detach().clone());
  return result;
}

bool all_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(),
                    [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

int train(const TrainArguments& arguments) {
  const RankInfo ranks = discover_ranks(environment_map(), arguments.ranks);
  const Config config = load_config(arguments.config, arguments.overrides, ranks.world_size);
  at::Tensor images = at::rand({8, 1, 28, 28});
  images[3][0][14][14] = std::nan("");
  const at::Tensor labels = at::arange(8);
  const auto data = array_batches(images, labels, config, ranks.rank, ranks.world_size);
  const auto communicator = connect(ranks, /*cuda=*/false);
  const auto model = make_model(config.model, config.train.seed);
  Engine engine(model, config, *communicator);
  const auto before = copies(model->parameters());
  Trainer trainer(engine, *model, *data, *communicator, nullptr);
  try {
    trainer.run();
  } catch (const std::exception&) {
    std::printf(all_equal(before, model->parameters()) ? "unchanged\n" : "changed\n");
    std::fflush(stdout);
    communicator->barrier();  // the first rank to leave ends the others
    throw;
  }
  return 0;
}

}  // namespace
}  // namespace zerosharp

int main(int argc, char** argv) {
  const std::string own_path = std::filesystem::read_symlink("/proc/self/exe").string();
  zerosharp::Commands commands;
  commands.train = zerosharp::train;
  commands.launch = [&](const zerosharp::LaunchArguments& arguments) {
    return zerosharp::launch(arguments, own_path);
  };
  commands.version = [] { return std::string("nan_data"); };
  return zerosharp::run_cli(argc, argv, commands);
}
