// Training on several thread ranks inside one test.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "tests/support/toy_modules.h"
#include "zero/comm/thread_communicator.h"

namespace zerosharp::testing {

template <class M>
using Factory = std::function<std::shared_ptr<M>()>;

template <class M, class... Args>
Factory<M> make(Args... args) {
  return [=] { return std::make_shared<M>(args...); };
}

/// Builds a module and an engine on each of `world` thread ranks, runs `body`, checks that all
/// ranks end with the same bits in every parameter, and returns rank 0's module.
template <class M>
std::shared_ptr<M> train(int world, const Config& config, const Factory<M>& factory,
                         const std::function<void(Engine&, M&, int rank)>& body,
                         const EngineOptions& options = {}) {
  std::vector<std::shared_ptr<M>> modules(static_cast<size_t>(world));
  run_thread_ranks(world, [&](Communicator& comm) {
    auto module = factory();
    modules[static_cast<size_t>(comm.rank())] = module;
    Engine engine(module, config, comm, options);
    body(engine, *module, comm.rank());
  });
  for (const auto& other : modules) {
    const auto a = modules[0]->parameters();
    const auto b = other->parameters();
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(same_bits(a[i], b[i])) << "ranks differ in parameter " << i;
    }
  }
  return modules[0];
}

/// The fp32 master of an engine's only group, gathered over ranks by hand: each rank adds its
/// piece.
inline std::vector<float> owned_master(Engine& engine) {
  return values(engine.optimizer().flat_groups()[0]->master());
}

/// Every weight equals its master rounded to the working dtype (K7), on the elements owned here.
inline void expect_clean_weights(Engine& engine) {
  EXPECT_FALSE(engine.optimizer().weights_perturbed());
  for (const auto& group : engine.optimizer().flat_groups()) {
    const ShardRange own = group->owned();
    const at::Tensor weights = group->weights().narrow(0, own.begin, own.size());
    EXPECT_TRUE(same_bits(weights, group->master().to(weights.scalar_type())));
  }
}

inline ParamGroupSpec group(const ParamGroup& options, std::vector<NamedParameter> parameters) {
  return {options, std::move(parameters)};
}

inline ParamGroup adamw_group(double lr, double weight_decay = 0) {
  ParamGroup options;
  options.lr = options.initial_lr = lr;
  options.weight_decay = weight_decay;
  return options;
}

/// Parameters of which a test uses some.
struct Unused : torch::nn::Module {
  Unused() {
    u = register_parameter("u", at::ones({3}));
    w = register_parameter("w", at::arange(3, at::kFloat) + 1);
    v = register_parameter("v", at::ones({20}));
  }
  at::Tensor u, w, v;
};

/// The optimizer's name as a test parameter's: letters only.
inline std::string kind_name(kernels::OptimizerKind kind) {
  const std::string name = kernels::optimizer_name(kind);
  return name.substr(0, name.find(' '));
}

}  // namespace zerosharp::testing
