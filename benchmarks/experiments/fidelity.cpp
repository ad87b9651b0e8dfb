// How much of SAM's perturbation survives rounding to bf16: the perturbation kernel on weights and
// gradients of a model's scale, and the rise of the loss of a trained model.
#include <torch/torch.h>

#include <cmath>
#include <iostream>

#include "benchmarks/experiments/char_model.h"
#include "kernels/perturb.h"

namespace zerosharp::experiments {
namespace {

constexpr int64_t kSampled = 4'000'000;
constexpr double kDeviation = 0.02;  // of weights

/// What e is added to, and how the sum is rounded.
struct Way {
  std::string name;
  bool from_master;
  kernels::Rounding rounding;
  DType working;
};

std::vector<Way> ways() {
  using kernels::Rounding;
  return {{"bf16 weight, to nearest", false, Rounding::kNearest, DType::kBF16},
          {"fp32 master, to nearest", true, Rounding::kNearest, DType::kBF16},
          {"bf16 weight, stochastic", false, Rounding::kStochastic, DType::kBF16}};
}

/// The kernel's w + scale·g for fp32 tensors of one size; bf16 values unless `way` keeps fp32.
at::Tensor perturbed(const at::Tensor& master, const at::Tensor& gradient, double scale,
                     const Way& way, uint64_t step) {
  const auto type = way.working == DType::kBF16 ? at::kBFloat16 : at::kFloat;
  const at::Tensor weight = master.to(type, /*non_blocking=*/false, /*copy=*/true);
  const float factor = static_cast<float>(scale);
  kernels::PerturbShard shard;
  shard.numel = master.numel();
  shard.grad = gradient.const_data_ptr();
  shard.master = way.from_master ? master.const_data_ptr<float>() : nullptr;
  shard.weight = weight.data_ptr();
  shard.weight_dtype = way.working;
  kernels::PerturbStep numbers;
  numbers.scale = &factor;
  numbers.rounding = way.rounding;
  numbers.seed = 1;
  numbers.step = step;
  double statistics[3] = {};
  kernels::perturb(shard, numbers, statistics, nullptr, Stream{});
  return weight.to(at::kFloat);
}

/// Dense Gaussian gradients, the worst case: ‖e‖ = ρ in a model of `parameters`, of which a sample
/// is drawn. kept = ⟨Δ, e⟩/‖e‖², Δ the change of the working weights.
Json dense(double parameters, double rho, const Way& way, int64_t seed) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  const at::Tensor master = at::randn({kSampled}, generator) * kDeviation;
  const at::Tensor gradient = at::randn({kSampled}, generator);
  const double rms = gradient.square().mean().sqrt().item<double>();
  const double scale = rho / std::sqrt(parameters) / rms;
  const at::Tensor rounded = master.to(at::kBFloat16).to(at::kFloat);
  const at::Tensor change =
      (perturbed(master, gradient, scale, way, static_cast<uint64_t>(seed)) - rounded)
          .to(at::kDouble);
  const at::Tensor e = gradient.to(at::kDouble) * scale;
  const double length = e.norm().item<double>();
  const double moved = change.norm().item<double>();
  const double along = (change * e).sum().item<double>();
  return {{"parameters", parameters},
          {"rho", rho},
          {"way", way.name},
          {"seed", seed},
          {"kept", along / (length * length)},
          {"moved", (change != 0).to(at::kDouble).mean().item<double>()},
          {"length", moved / length},
          {"cosine", moved > 0 ? along / (moved * length) : 0.0}};
}

/// The model's parameters in one vector, and back.
at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.detach().flatten());
  return at::cat(parts);
}

void set_weights(const TrainableModel& model, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  int64_t offset = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    parameter.copy_(values.narrow(0, offset, parameter.numel()).view(parameter.sizes()));
    offset += parameter.numel();
  }
}

/// r = (L(w + e) − L(w)) / (ρ‖g‖) of a model after 300 steps; arithmetic is fp32, weights are what
/// the way leaves of them.
void efficacy(Json& runs, const at::Tensor& text, int64_t seed) {
  const int64_t begin = kContext + seed * 1'300'000;
  RunOptions options;
  options.batch = 256;
  options.epochs = 1;
  options.evaluations = 1;
  options.seed = seed;
  const Run run = train(
      {"AdamW"}, char_config(), options, [&] { return std::make_shared<CharModel>(seed); },
      windows(text, begin, 300 * options.batch), [](TrainableModel&) { return 0.0; });
  const auto model = copy_of(*run.model);
  const Samples samples = windows(text, begin, 20'000);
  model->loss(samples.inputs, samples.targets).backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model->parameters()) gradients.push_back(parameter.grad());
  const at::Tensor g = flat(gradients);
  const at::Tensor w = flat(model->parameters());
  const double norm = g.to(at::kDouble).norm().item<double>();
  const auto loss_at = [&](const at::Tensor& weights) {
    set_weights(*model, weights);
    return mean_loss(*model, samples);
  };
  std::vector<Way> all = ways();
  all.insert(all.begin(), {"fp32", true, kernels::Rounding::kNearest, DType::kF32});
  for (const double rho : {0.005, 0.02, 0.2}) {
    for (const Way& way : all) {
      const double before =
          loss_at(way.working == DType::kF32 ? w : w.to(at::kBFloat16).to(at::kFloat));
      const double after = loss_at(perturbed(w, g, rho / norm, way, static_cast<uint64_t>(seed)));
      runs.push_back({{"rho", rho},
                      {"relative", rho / w.norm().item<double>()},
                      {"way", way.name},
                      {"seed", seed},
                      {"efficacy", (after - before) / (rho * norm)}});
    }
  }
}

Json experiment(const Arguments& arguments, const std::string& path) {
  const std::vector<std::pair<double, double>> sizes = {
      {1e6, 0.05}, {1.25e8, 0.05}, {1.25e8, 0.5}, {1.3e9, 0.05}, {7e9, 0.05}, {7e9, 0.5}};
  Json table = Json::array();
  for (const auto& [parameters, rho] : sizes) {
    for (const Way& way : ways()) {
      for (int64_t seed = 0; seed < arguments.seeds; ++seed) {
        table.push_back(dense(parameters, rho, way, seed));
      }
    }
  }
  std::cerr << "dense gradients\n";
  Json live = Json::array();
  const at::Tensor text = read_characters({path});
  for (int64_t seed = 0; seed < arguments.seeds; ++seed) efficacy(live, text, seed);
  return {{"experiment", "fidelity"}, {"runs", table}, {"live", live}};
}

}  // namespace
}  // namespace zerosharp::experiments

int main(int argc, char** argv) {
  using namespace zerosharp::experiments;
  std::string text;
  return run_program(
      argc, argv, "What rounding to bf16 leaves of SAM's perturbation.", 3,
      [&](boost::program_options::options_description& options) {
        options.add_options()(
            "text", boost::program_options::value(&text)->default_value("data/austen.txt"),
            "from `scripts/prepare-corpus data`");
      },
      [&](const Arguments& arguments) { return experiment(arguments, text); });
}
