#include "benchmarks/experiments/experiment.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include "engine/config/config.h"
#include "engine/data/sampler.h"
#include "engine/engine.h"
#include "kernels/stream.h"
#include "zero/comm/thread_communicator.h"

namespace zerosharp::experiments {
namespace {

namespace po = boost::program_options;

/// True after which of `steps` steps one of `evaluations` is due.
bool is_due(int64_t step, int64_t steps, int64_t evaluations) {
  return (step + 1) * evaluations / steps > step * evaluations / steps;
}

}  // namespace

double Run::highest() const { return *std::max_element(curve.begin(), curve.end()); }
double Run::lowest() const { return *std::min_element(curve.begin(), curve.end()); }

Run train(const Method& method, const Json& base, const RunOptions& options,
          const std::function<std::shared_ptr<TrainableModel>()>& make, const Samples& samples,
          const std::function<double(TrainableModel&)>& evaluate) {
  const int64_t rows = samples.inputs.size(0);
  const auto steps = static_cast<int64_t>(std::llround(
      options.epochs * method.length * static_cast<double>(rows) / double(options.batch)));
  const auto evaluations =
      static_cast<int64_t>(std::llround(double(options.evaluations) * method.length));

  Json json = base;
  json["train_batch_size"] = options.batch;
  json["train"]["steps"] = steps;
  json["train"]["seed"] = options.seed;
  json.merge_patch(method.changes);

  Run run;
  run_thread_ranks(method.ranks, [&](Communicator& ranks) {
    const Config config = parse_config(json.dump(), method.name, {}, ranks.size());
    const auto model = make();
    Engine engine(model, config, ranks);
    Sampler sampler(rows, options.batch, ranks.rank(), ranks.size(), config.batch.micro_batch_size,
                    /*accumulation=*/1, static_cast<uint64_t>(options.seed), /*shuffle=*/true);
    for (int64_t step = 0; step < steps; ++step) {
      const at::Tensor chosen = at::tensor(sampler.indices(step, 0));
      const at::Tensor inputs = samples.inputs.index_select(0, chosen);
      const at::Tensor targets = samples.targets.index_select(0, chosen);
      engine.train_batch([&](int64_t) { return model->loss(inputs, targets); });
      if (!is_due(step, steps, evaluations)) continue;
      const auto scope = engine.eval();  // collective for Momentum-SAM
      if (ranks.rank() == 0) run.curve.push_back(evaluate(*model));
    }
    const auto scope = engine.full_params();
    if (ranks.rank() == 0) run.model = model;
  });
  return run;
}

Json sam(double rho, const Json& more) {
  Json section = {{"enabled", true}, {"rho", rho}};
  section.update(more);
  return {{"sam", section}};
}

Json weight_decay(double decay) { return {{"optimizer", {{"params", {{"weight_decay", decay}}}}}}; }

Json both(Json first, const Json& second) {
  first.merge_patch(second);
  return first;
}

std::vector<Method> choose(const std::vector<Method>& methods,
                           const std::vector<std::string>& wanted) {
  if (wanted.empty()) return methods;
  std::vector<Method> chosen;
  for (const std::string& name : wanted) {
    const auto found = std::find_if(methods.begin(), methods.end(),
                                    [&](const Method& method) { return method.name == name; });
    if (found == methods.end()) {
      std::string names;
      for (const Method& method : methods) names += "\n  " + method.name;
      throw std::invalid_argument("--methods: there is no \"" + name + "\", but:" + names);
    }
    chosen.push_back(*found);
  }
  return chosen;
}

int run_program(int argc, char** argv, const std::string& about, int64_t default_seeds,
                const std::function<void(po::options_description&)>& add,
                const std::function<Json(const Arguments&)>& body) try {
  Arguments arguments;
  std::string out;
  po::options_description options(about + "\n\nOptions");
  options.add_options()("help", "this text")(
      "seeds", po::value(&arguments.seeds)->default_value(default_seeds), "seeds 0 … N − 1")(
      "methods", po::value(&arguments.methods)->multitoken(), "only these methods, by name")(
      "out", po::value(&out), "file of the results (JSON); default: the terminal");
  add(options);
  po::variables_map given;
  try {
    po::store(po::parse_command_line(argc, argv, options), given);
    po::notify(given);
    if (arguments.seeds < 1) throw po::error("--seeds must be at least 1");
  } catch (const po::error& error) {
    std::cerr << error.what() << "; --help shows the options\n";
    return 2;
  }
  if (given.count("help") > 0) {
    std::cout << options;
    return 0;
  }
  // Models are tiny: threads would only wait for each other.
  at::set_num_threads(1);
  set_num_threads(1);
  const std::string text = body(arguments).dump(1) + "\n";
  if (out.empty()) {
    std::cout << text;
    return 0;
  }
  std::ofstream file(out);
  file << text << std::flush;
  if (!file) throw std::runtime_error("--out: " + out + " cannot be written");
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}

}  // namespace zerosharp::experiments
