// Partition and parameter shapes: what users of partitioned training ran into.
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

class PartitionCases : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Stages, PartitionCases, ::testing::Values(0, 1),
                         [](const auto& info) { return "Stage" + std::to_string(info.param); });

TEST_P(PartitionCases, MoreRanksThanElements) {  // DeepSpeed #129
  auto module = train<VectorModule>(4, adamw(0.1, GetParam()), make<VectorModule>(3),
                                    [](Engine& engine, VectorModule& m, int) {
                                      for (int i = 0; i < 2; ++i) {
                                        engine.train_batch([&](int64_t) { return m.loss(1); });
                                      }
                                    });
  const auto w = values(module->w);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(w[static_cast<size_t>(i)], i + 0.8, 1e-6);
}

TEST_P(PartitionCases, EmptyGroupsAreKept) {  // DeepSpeed #4277
  for (const size_t empty : {0u, 1u}) {
    run_thread_ranks(2, [&](Communicator& comm) {
      auto module = std::make_shared<VectorModule>(5);
      EngineOptions options;
      options.groups = {group(adamw_group(0.1), {{"w", module->w}})};
      options.groups.insert(options.groups.begin() + static_cast<std::ptrdiff_t>(empty),
                            group(adamw_group(0.3), {}));
      Engine engine(module, adamw(0.1, GetParam()), comm, options);
      for (int i = 0; i < 2; ++i) engine.train_batch([&](int64_t) { return module->loss(1); });
      EXPECT_EQ(engine.param_groups().size(), 2u);
      for (int i = 0; i < 5; ++i) {
        EXPECT_NEAR(values(module->w)[static_cast<size_t>(i)], i + 0.8, 1e-6);
      }
    });
  }
}

struct WithZeroSize : Mlp23 {  // DeepSpeed #8279, #8297
  explicit WithZeroSize(bool inside) {
    if (inside) {
      none = register_parameter("none", at::empty({0, 8}));
      tail = register_parameter("tail", at::ones({24}));
    } else {
      tail = register_parameter("tail", at::ones({24}));
      none = register_parameter("none", at::empty({0, 2}));
    }
  }
  at::Tensor loss(int64_t begin, int64_t end) {
    return Mlp23::loss(begin, end) + none.sum() * 0 + (tail * tail).sum();
  }
  at::Tensor none, tail;
};

TEST_P(PartitionCases, ZeroSizedParametersAnywhere) {
  for (const bool inside : {false, true}) {
    const auto run = [&](int world) {
      return train<WithZeroSize>(
          world, adamw(0.01, GetParam()), make<WithZeroSize>(inside),
          [&](Engine& engine, WithZeroSize& m, int rank) {
            const int64_t rows = 8 / world;
            for (int i = 0; i < 3; ++i) {
              engine.train_batch([&](int64_t) { return m.loss(rank * rows, (rank + 1) * rows); });
            }
          });
    };
    const auto one = run(1);
    const auto two = run(2);
    EXPECT_EQ(two->none.sizes(), (at::IntArrayRef{0, inside ? 8 : 2}));
    for (size_t i = 0; i < one->parameters().size(); ++i) {
      const auto a = values(one->parameters()[i]), b = values(two->parameters()[i]);
      for (size_t k = 0; k < a.size(); ++k) EXPECT_NEAR(a[k], b[k], 1e-6);
    }
  }
}

TEST_P(PartitionCases, ScalarsAndTransposedParameters) {  // PyTorch #132934, torchtitan #1180
  struct Shapes : torch::nn::Module {
    Shapes() {
      s = register_parameter("s", at::scalar_tensor(2.0f));
      t = register_parameter("t", (at::arange(6, at::kFloat) + 1).view({3, 2}).t());
    }
    at::Tensor s, t;
  };
  auto module =
      train<Shapes>(2, sgd(0.1, GetParam()), make<Shapes>(), [](Engine& engine, Shapes& m, int) {
        const at::Tensor g =
            10 * at::arange(2, at::kFloat).unsqueeze(1) + at::arange(3, at::kFloat);
        ASSERT_EQ(engine.notes().size(), 1u);
        EXPECT_NE(engine.notes()[0].find("t was made contiguous"), std::string::npos);
        engine.train_batch([&](int64_t) { return 3 * m.s + (g * m.t).sum(); });
      });
  EXPECT_EQ(module->s.dim(), 0);
  EXPECT_NEAR(module->s.item<float>(), 1.7, 1e-7);
  EXPECT_EQ(module->t.sizes(), (at::IntArrayRef{2, 3}));
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 3; ++j) {
      const double old = 1 + 2 * j + i;  // element [i, j] of the transpose of 1 … 6
      EXPECT_NEAR(module->t[i][j].item<float>(), old - 0.1 * (10 * i + j), 1e-6);
    }
  }
}

TEST_P(PartitionCases, GroupingDoesNotChangeTheResult) {  // DeepSpeed #5063
  const auto run = [&](bool split) {
    std::vector<float> weights;
    std::vector<double> norms;
    run_thread_ranks(2, [&](Communicator& comm) {
      auto m = std::make_shared<Mlp23>();
      Config config = adamw(0.01, GetParam());
      config.gradient_clipping = 1.0;
      EngineOptions options;
      if (split) {
        options.groups = {group(adamw_group(0.01), {{"0.weight", m->w0}, {"2.weight", m->w2}}),
                          group(adamw_group(0.01), {{"0.bias", m->b0}, {"2.bias", m->b2}})};
      }
      Engine engine(m, config, comm, options);
      for (int i = 0; i < 5; ++i) {
        const int64_t rows = 4 * comm.rank();
        engine.train_batch([&](int64_t) { return m->loss(rows, rows + 4); });
        if (comm.rank() == 0) norms.push_back(engine.global_grad_norm());
      }
      if (comm.rank() != 0) return;
      for (const auto& p : m->parameters()) {
        for (const float v : values(p)) weights.push_back(v);
      }
    });
    return std::pair(weights, norms);
  };
  const auto [one, one_norms] = run(false);
  const auto [two, two_norms] = run(true);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], two[i], 1e-7);
  for (size_t i = 0; i < one_norms.size(); ++i) EXPECT_NEAR(one_norms[i], two_norms[i], 1e-6);
}

}  // namespace
}  // namespace zerosharp
