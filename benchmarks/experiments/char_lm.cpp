// Does SAM help a language model that sees little text many times, and one that sees much text
// once? Validation loss of a small character model against AdamW with its decay tuned and with
// SAM's amount of work.
#include <torch/torch.h>

#include <algorithm>
#include <iostream>

#include "benchmarks/experiments/char_model.h"

namespace zerosharp::experiments {
namespace {

constexpr int64_t kValidation = 50'000;  // characters after those of training
constexpr int64_t kStride = 1'300'000;   // between the texts of two seeds

/// One amount of text and how often it is read.
struct Regime {
  std::string name;
  int64_t characters;
  double epochs;
  int64_t evaluations;
  std::vector<Method> methods;
};

std::vector<Regime> regimes() {
  const Json local = {{"scope", "local"}};
  const Method plain = {"AdamW, decay 0.01"};
  return {{"little text",
           40'000,
           15,
           15,
           {plain,
            {"AdamW, decay 0.3", weight_decay(0.3)},
            {"AdamW, decay 1", weight_decay(1)},
            {"AdamW, decay 0.01, twice the epochs", Json::object(), 1, 2},
            {"SAM 0.05", sam(0.05)},
            {"SAM 0.1", sam(0.1)},
            {"SAM 0.2", sam(0.2)},
            {"SAM 0.5", sam(0.5)},
            {"SAM 0.2, decay 0.3", both(sam(0.2), weight_decay(0.3))},
            {"m-SAM 0.2, 4 ranks", sam(0.2, local), 4},
            {"m-SAM 0.2, 4 ranks, decay 0.3", both(sam(0.2, local), weight_decay(0.3)), 4},
            {"m-SAM 0.5, 4 ranks", sam(0.5, local), 4}}},
          {"much text, once",
           1'200'000,
           1,
           4,
           {plain,
            {"AdamW, decay 0.01, twice the epochs", Json::object(), 1, 2},
            {"SAM 0.02", sam(0.02)},
            {"SAM 0.05", sam(0.05)},
            {"SAM 0.1", sam(0.1)}}}};
}

Json experiment(const Arguments& arguments, const std::string& path,
                const std::vector<std::string>& wanted) {
  const at::Tensor text = read_characters({path});
  Json runs = Json::array();
  for (const Regime& regime : regimes()) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), regime.name) == wanted.end()) {
      continue;
    }
    for (const Method& method : choose(regime.methods, arguments.methods)) {
      for (int64_t seed = 0; seed < arguments.seeds; ++seed) {
        const int64_t begin = kContext + seed * kStride;
        const Samples train_on = windows(text, begin, regime.characters);
        const Samples validation = windows(text, begin + regime.characters, kValidation);
        RunOptions options;
        options.batch = 256;
        options.epochs = regime.epochs;
        options.evaluations = regime.evaluations;
        options.seed = seed;
        const Run run = train(
            method, char_config(), options, [&] { return std::make_shared<CharModel>(seed); },
            train_on, [&](TrainableModel& model) { return mean_loss(model, validation); });
        runs.push_back({{"regime", regime.name},
                        {"method", method.name},
                        {"seed", seed},
                        {"best", run.lowest()},
                        {"final", run.last()}});
      }
      std::cerr << regime.name << ": " << method.name << '\n';
    }
  }
  return {{"experiment", "char_lm"}, {"runs", runs}};
}

}  // namespace
}  // namespace zerosharp::experiments

int main(int argc, char** argv) {
  using namespace zerosharp::experiments;
  std::string text;
  std::vector<std::string> wanted;
  return run_program(
      argc, argv, "Validation loss of a character model, in nats a character.", 3,
      [&](boost::program_options::options_description& options) {
        using boost::program_options::value;
        options.add_options()("text", value(&text)->default_value("data/austen.txt"),
                              "from `scripts/prepare-corpus data`")(
            "regimes", value(&wanted)->multitoken(),
            "\"little text\", \"much text, once\" or both");
      },
      [&](const Arguments& arguments) { return experiment(arguments, text, wanted); });
}
