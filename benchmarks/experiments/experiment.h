// What the experiments share: one training run under a method, options, and the file of results.
#pragma once
#include <ATen/core/Tensor.h>

#include <boost/program_options.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/models/model.h"

namespace zerosharp::experiments {

using Json = nlohmann::ordered_json;

/// One way to train: what it changes in an experiment's configuration.
struct Method {
  std::string name;
  Json changes = Json::object();  ///< merged into the configuration (RFC 7396)
  int ranks = 1;                  ///< threads that share the batch
  double length = 1;              ///< of the run, in those of the others: 2 is SAM's amount of work
};

/// Samples in memory; a run draws batches from the rows.
struct Samples {
  at::Tensor inputs;   ///< [rows, …]
  at::Tensor targets;  ///< [rows]
};

struct RunOptions {
  int64_t batch = 64;       ///< samples a step, over all ranks
  double epochs = 1;        ///< passes over the samples, before Method::length
  int64_t evaluations = 0;  ///< of the run, evenly spread and one at its end
  int64_t seed = 0;         ///< of the batches' order
};

/// What came out of a run; curve holds every evaluation in order.
struct Run {
  std::shared_ptr<TrainableModel> model;  ///< rank 0's
  std::vector<double> curve;

  double last() const { return curve.back(); }
  double highest() const;
  double lowest() const;
};

/// Trains what `make` returns (the same on every rank) on `samples` with the engine, under `base`
/// with the method's changes. Batches depend on seed, batch and rows alone, so runs of one seed are
/// paired. `evaluate` runs on rank 0 in evaluation mode. Throws what the engine throws.
Run train(const Method& method, const Json& base, const RunOptions& options,
          const std::function<std::shared_ptr<TrainableModel>()>& make, const Samples& samples,
          const std::function<double(TrainableModel&)>& evaluate);

/// {"sam": {"enabled": true, "rho": rho, …more}}
Json sam(double rho, const Json& more = Json::object());
/// {"optimizer": {"params": {"weight_decay": decay}}}
Json weight_decay(double decay);
/// Both changes.
Json both(Json first, const Json& second);

/// The methods that `wanted` names; all of them if it is empty. Throws std::invalid_argument for an
/// unknown name, with those there are.
std::vector<Method> choose(const std::vector<Method>& methods,
                           const std::vector<std::string>& wanted);

/// The body of a program: reads its command line (--seeds, --methods, --out and what `add` adds),
/// calls `body`, and writes what it returns to --out. Exit code: 0 done, 1 failed, 2 wrong usage.
struct Arguments {
  int64_t seeds = 0;
  std::vector<std::string> methods;
};
int run_program(int argc, char** argv, const std::string& about, int64_t default_seeds,
                const std::function<void(boost::program_options::options_description&)>& add,
                const std::function<Json(const Arguments&)>& body);

}  // namespace zerosharp::experiments
