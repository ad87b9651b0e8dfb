// Does SAM in pre-training leave a model that loses less to what comes after? Damage by rounding
// its weights to few bits, and forgetting while it learns another text.
#include <torch/torch.h>

#include <iostream>

#include "benchmarks/experiments/char_model.h"

namespace zerosharp::experiments {
namespace {

constexpr int64_t kCharacters = 600'000;
constexpr int64_t kValidation = 50'000;
constexpr int64_t kStride = 1'300'000;  // between the texts of two seeds
constexpr int64_t kOtherValidation = 10'000;
constexpr int64_t kOtherSteps = 300;
constexpr int64_t kBatch = 256;

/// `weights` [outputs, inputs] on 2^bits − 1 levels a row, symmetric around 0, the largest weight
/// of the row on the last: rounding to nearest, nothing is calibrated.
void quantize(const at::Tensor& weights, int bits) {
  const at::NoGradGuard no_grad;
  const double levels = (1 << (bits - 1)) - 1;
  const at::Tensor step = weights.abs().amax(1, /*keepdim=*/true) / levels;
  weights.copy_(at::round(weights / step) * step);
}

double quantized_loss(const TrainableModel& model, int bits, const Samples& validation) {
  const auto copy = copy_of(model);
  for (const at::Tensor& layer : copy->layers()) quantize(layer, bits);
  return mean_loss(*copy, validation);
}

/// Plain AdamW with rate 1e-3 on another text.
std::shared_ptr<TrainableModel> fine_tune(const TrainableModel& model, const Samples& other,
                                          int64_t seed) {
  Json config = char_config();
  config["optimizer"]["params"]["lr"] = 1e-3;
  config.erase("scheduler");
  RunOptions options;
  options.batch = kBatch;
  options.epochs =
      static_cast<double>(kOtherSteps * kBatch) / static_cast<double>(other.targets.size(0));
  options.evaluations = 1;
  options.seed = seed;
  return train(
             {"fine-tuning"}, config, options, [&] { return copy_of(model); }, other,
             [](TrainableModel&) { return 0.0; })
      .model;
}

Json experiment(const Arguments& arguments, const std::string& path,
                const std::vector<std::string>& other_paths) {
  const at::Tensor text = read_characters({path});
  const at::Tensor other_text = read_characters(other_paths);
  const int64_t other_end = other_text.size(0) - kOtherValidation;
  const Samples other = windows(other_text, kContext, other_end - kContext);
  const Samples other_validation = windows(other_text, other_end, kOtherValidation);
  const std::vector<Method> methods = {
      {"AdamW"}, {"SAM 0.05", sam(0.05)}, {"SAM 0.1", sam(0.1)}, {"SAM 0.2", sam(0.2)}};
  Json runs = Json::array();
  for (const Method& method : choose(methods, arguments.methods)) {
    for (int64_t seed = 0; seed < arguments.seeds; ++seed) {
      const int64_t begin = kContext + seed * kStride;
      const Samples validation = windows(text, begin + kCharacters, kValidation);
      RunOptions options;
      options.batch = kBatch;
      options.evaluations = 1;
      options.seed = seed;
      const Run run = train(
          method, char_config(), options, [&] { return std::make_shared<CharModel>(seed); },
          windows(text, begin, kCharacters),
          [&](TrainableModel& model) { return mean_loss(model, validation); });
      const auto tuned = fine_tune(*run.model, other, seed);
      runs.push_back({{"method", method.name},
                      {"seed", seed},
                      {"loss", run.last()},
                      {"damage_4_bit", quantized_loss(*run.model, 4, validation) - run.last()},
                      {"damage_3_bit", quantized_loss(*run.model, 3, validation) - run.last()},
                      {"forgetting", mean_loss(*tuned, validation) - run.last()},
                      {"other_loss", mean_loss(*tuned, other_validation)}});
      std::cerr << method.name << ", seed " << seed << '\n';
    }
  }
  return {{"experiment", "retention"}, {"runs", runs}};
}

}  // namespace
}  // namespace zerosharp::experiments

int main(int argc, char** argv) {
  using namespace zerosharp::experiments;
  std::string text;
  std::vector<std::string> other;
  return run_program(
      argc, argv, "What a character model loses to quantization and to a second text.", 3,
      [&](boost::program_options::options_description& options) {
        using boost::program_options::value;
        const std::string licenses = "/usr/share/common-licenses/";
        const std::vector<std::string> names = {licenses + "GPL-2", licenses + "GPL-3",
                                                licenses + "LGPL-2.1", licenses + "MPL-2.0",
                                                licenses + "Apache-2.0"};
        options.add_options()("text", value(&text)->default_value("data/austen.txt"),
                              "from `scripts/prepare-corpus data`")(
            "other", value(&other)->multitoken()->default_value(names, "Debian's license texts"),
            "files of the second text");
      },
      [&](const Arguments& arguments) { return experiment(arguments, text, other); });
}
