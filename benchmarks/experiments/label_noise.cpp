// Does SAM keep a network from learning wrong labels? A perceptron on handwritten digits, a share
// of whose training labels is random; accuracy is measured on clean test images.
#include <torch/torch.h>

#include <fstream>
#include <iostream>
#include <sstream>

#include "benchmarks/experiments/experiment.h"
#include "engine/models/mlp.h"

namespace zerosharp::experiments {
namespace {

constexpr int64_t kTrainRows = 1000;
constexpr int64_t kPixels = 64;
constexpr int64_t kClasses = 10;

const Json kBase = Json::parse(R"({
  "gradient_clipping": 0,
  "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
  "scheduler": {"type": "cosine"}
})");

std::vector<Method> methods() {
  const Json local = {{"scope", "local"}};
  return {{"SGD"},
          {"SGD, twice the epochs", Json::object(), 1, 2},
          {"SGD, decay 5e-3", weight_decay(5e-3)},
          {"SAM 0.05", sam(0.05)},
          {"SAM 0.2", sam(0.2)},
          {"SAM 0.5", sam(0.5)},
          {"m-SAM 0.2, 4 ranks", sam(0.2, local), 4},
          {"ASAM 2", sam(2, {{"variant", "asam"}})},
          {"MSAM 0.3", sam(0.3, {{"variant", "msam"}})},
          {"SAM 0.2, decay 5e-3", both(sam(0.2), weight_decay(5e-3))}};
}

/// Rows of 64 pixels (0 … 16) and the class. Throws std::runtime_error.
Samples read_digits(const std::string& path) {
  std::ifstream file(path);
  std::vector<float> pixels;
  std::vector<int64_t> classes;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string field;
    for (int64_t i = 0; i < kPixels && std::getline(fields, field, ','); ++i) {
      pixels.push_back(std::stof(field) / 16);
    }
    if (std::getline(fields, field)) classes.push_back(std::stoll(field));
  }
  const auto rows = static_cast<int64_t>(classes.size());
  if (rows <= kTrainRows || static_cast<int64_t>(pixels.size()) != rows * kPixels) {
    throw std::runtime_error("--digits: " + path +
                             " holds no digits; `scripts/prepare-corpus data "
                             "--digits` brings them");
  }
  return {at::tensor(pixels).view({rows, kPixels}), at::tensor(classes)};
}

struct Split {
  Samples train, test;
};

/// A random split, and a uniform class in place of a share `noise` of the training labels. Equal
/// seeds give equal splits and the same labels to replace first.
Split split(const Samples& all, double noise, int64_t seed) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  const int64_t rows = all.targets.size(0);
  const at::Tensor order = at::randperm(rows, generator, at::kLong);
  const auto part = [&](int64_t begin, int64_t end) {
    const at::Tensor chosen = order.slice(0, begin, end);
    return Samples{all.inputs.index_select(0, chosen), all.targets.index_select(0, chosen)};
  };
  Split result{part(0, kTrainRows), part(kTrainRows, rows)};
  const at::Tensor drawn = at::rand({kTrainRows}, generator);
  const at::Tensor random = at::randint(kClasses, {kTrainRows}, generator, at::kLong);
  result.train.targets = at::where(drawn < noise, random, result.train.targets);
  return result;
}

Json experiment(const Arguments& arguments, const std::string& path,
                const std::vector<double>& noises) {
  const Samples digits = read_digits(path);
  ModelConfig shape;
  shape.hidden_sizes = {128, 128};
  Json runs = Json::array();
  for (const double noise : noises) {
    for (const Method& method : choose(methods(), arguments.methods)) {
      for (int64_t seed = 0; seed < arguments.seeds; ++seed) {
        const Split data = split(digits, noise, seed);
        RunOptions options;
        options.batch = 64;
        options.epochs = 100;
        options.evaluations = 100;
        options.seed = seed;
        const Run run = train(
            method, kBase, options,
            [&] { return std::make_shared<Mlp>(shape, kPixels, kClasses, seed); }, data.train,
            [&](TrainableModel& model) {
              const at::Tensor right =
                  model.logits(data.test.inputs).argmax(1) == data.test.targets;
              return 100 * right.to(at::kDouble).mean().item<double>();
            });
        runs.push_back({{"noise", noise},
                        {"method", method.name},
                        {"seed", seed},
                        {"best", run.highest()},
                        {"final", run.last()}});
      }
      std::cerr << "label noise " << noise << ", " << method.name << '\n';
    }
  }
  return {{"experiment", "label_noise"}, {"runs", runs}};
}

}  // namespace
}  // namespace zerosharp::experiments

int main(int argc, char** argv) {
  using namespace zerosharp::experiments;
  std::string digits;
  std::vector<double> noises;
  return run_program(
      argc, argv, "Accuracy on clean digits after training on noisy labels.", 10,
      [&](boost::program_options::options_description& options) {
        using boost::program_options::value;
        options.add_options()("digits", value(&digits)->default_value("data/digits.csv"),
                              "from `scripts/prepare-corpus data --digits`")(
            "noise",
            value(&noises)->multitoken()->default_value({0, 0.2, 0.4, 0.6}, "0 0.2 0.4 0.6"),
            "shares of random labels");
      },
      [&](const Arguments& arguments) { return experiment(arguments, digits, noises); });
}
