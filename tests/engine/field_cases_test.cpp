// What users of partitioned training ran into, as tests: partition and parameter shapes, tied,
// unused and frozen parameters, precision and clipping, gradient accumulation, SAM basics.
#include <gtest/gtest.h>

#include "kernels/error.h"
#include "tests/support/run_ranks.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

class EveryStage : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Stages, EveryStage, ::testing::Values(0, 1),
                         [](const auto& info) { return "Stage" + std::to_string(info.param); });

TEST_P(EveryStage, MoreRanksThanElements) {  // DeepSpeed #129
  auto module = train<VectorModule>(4, adamw(0.1, GetParam()), make<VectorModule>(3),
                                    [](Engine& engine, VectorModule& m, int) {
                                      for (int i = 0; i < 2; ++i) {
                                        engine.train_batch([&](int64_t) { return m.loss(1); });
                                      }
                                    });
  const auto w = values(module->w);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(w[static_cast<size_t>(i)], i + 0.8, 1e-6);
}

TEST_P(EveryStage, LossIsAveragedOverRanksAndMicroBatchesExactlyOnce) {  // transformers #35808
  for (const int world : {1, 2}) {
    for (const int64_t accumulation : {1, 2, 4}) {
      Config config = sgd(1.0, GetParam());
      config.batch.accumulation_steps = accumulation;
      auto module = train<VectorModule>(world, config, make<VectorModule>(4),
                                        [](Engine& engine, VectorModule& m, int) {
                                          engine.train_batch([&](int64_t) { return m.loss(1); });
                                          EXPECT_EQ(engine.global_grad_norm(), 2.0);
                                        });
      EXPECT_EQ(values(module->w), (std::vector<float>{0, 1, 2, 3}));
    }
  }
}

TEST_P(EveryStage, NormIsReportedBeforeClipping) {  // DeepSpeed #7220
  Config config = sgd(1.0, GetParam());
  config.gradient_clipping = 1.0;
  auto module = train<VectorModule>(
      2, config, make<VectorModule>(2, 0.0, 0.0), [](Engine& engine, VectorModule& m, int rank) {
        const at::Tensor g = rank == 0 ? at::tensor({6.f, 0.f}) : at::tensor({0.f, 8.f});
        engine.train_batch([&](int64_t) { return m.loss(g); });
        EXPECT_NEAR(engine.global_grad_norm(), 5.0, 1e-5);
      });
  const auto w = values(module->w);
  EXPECT_NEAR(w[0], -0.6, 1e-5);
  EXPECT_NEAR(w[1], -0.8, 1e-5);
}

TEST_P(EveryStage, SamPerturbsAlongTheAveragedGradient) {  // GSAM #5
  for (const auto scope : {SamScope::kGlobal, SamScope::kLocal}) {
    Config config = sgd(0.1, GetParam());
    config.sam.enabled = true;
    config.sam.rho = 0.5;
    config.sam.scope = scope;
    auto module = train<QuadraticModule>(
        2, config, make<QuadraticModule>(std::vector<float>{0, 0}),
        [](Engine& engine, QuadraticModule& m, int rank) {
          const float side = rank == 0 ? 4.0f : -4.0f;
          engine.train_batch([&](int64_t) { return m.loss({3, side}); });
        });
    const auto w = values(module->w);
    EXPECT_NEAR(w[0], scope == SamScope::kGlobal ? -0.35 : -0.33, 1e-6);
    EXPECT_NEAR(w[1], 0.0, 1e-6);
  }
}

// --- Partition and parameter shapes -----------------------------------------------------------------

ParamGroupSpec group(const ParamGroup& options, std::vector<NamedParameter> parameters) {
  return {options, std::move(parameters)};
}

ParamGroup adamw_group(double lr, double weight_decay = 0) {
  ParamGroup options;
  options.lr = options.initial_lr = lr;
  options.weight_decay = weight_decay;
  return options;
}

TEST_P(EveryStage, EmptyGroupsAreKept) {  // DeepSpeed #4277
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

TEST_P(EveryStage, ZeroSizedParametersAnywhere) {
  for (const bool inside : {false, true}) {
    const auto run = [&](int world) {
      return train<WithZeroSize>(world, adamw(0.01, GetParam()), make<WithZeroSize>(inside),
                                 [&](Engine& engine, WithZeroSize& m, int rank) {
                                   const int64_t rows = 8 / world;
                                   for (int i = 0; i < 3; ++i) {
                                     engine.train_batch([&](int64_t) {
                                       return m.loss(rank * rows, (rank + 1) * rows);
                                     });
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

TEST_P(EveryStage, ScalarsAndTransposedParameters) {  // PyTorch #132934, torchtitan #1180
  struct Shapes : torch::nn::Module {
    Shapes() {
      s = register_parameter("s", at::scalar_tensor(2.0f));
      t = register_parameter("t", (at::arange(6, at::kFloat) + 1).view({3, 2}).t());
    }
    at::Tensor s, t;
  };
  auto module = train<Shapes>(2, sgd(0.1, GetParam()), make<Shapes>(),
                              [](Engine& engine, Shapes& m, int) {
                                const at::Tensor g = 10 * at::arange(2, at::kFloat).unsqueeze(1) +
                                                     at::arange(3, at::kFloat);
                                ASSERT_EQ(engine.notes().size(), 1u);
                                EXPECT_NE(engine.notes()[0].find("t was made contiguous"),
                                          std::string::npos);
                                engine.train_batch(
                                    [&](int64_t) { return 3 * m.s + (g * m.t).sum(); });
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

TEST_P(EveryStage, GroupingDoesNotChangeTheResult) {  // DeepSpeed #5063
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

// --- Tied, unused and frozen parameters ---------------------------------------------------------------

struct Tied : torch::nn::Module {  // DeepSpeed #988
  Tied() {
    auto a = register_module("a", std::make_shared<torch::nn::Module>());
    auto b = register_module("b", std::make_shared<torch::nn::Module>());
    w = a->register_parameter("w", at::arange(3, at::kFloat) + 1);
    b->register_parameter("w", w);
  }
  at::Tensor loss() const {
    return (w * at::tensor({1.f, 0.f, 0.f})).sum() + (w * at::tensor({0.f, 2.f, 0.f})).sum();
  }
  at::Tensor w;
};

TEST_P(EveryStage, TiedParametersCountOnceAndAddUp) {
  auto module = train<Tied>(2, sgd(1.0, GetParam()), make<Tied>(),
                            [](Engine& engine, Tied& m, int) {
                              EXPECT_EQ(engine.optimizer().num_parameters(), 3);
                              engine.train_batch([&](int64_t) { return m.loss(); });
                            });
  EXPECT_EQ(values(module->w), (std::vector<float>{0, 0, 3}));
}

TEST_P(EveryStage, OneTensorInTwoGroupsIsRefused) {  // DeepSpeed #195
  auto comm = make_single_communicator();
  auto module = std::make_shared<VectorModule>(3);
  const at::Tensor before = module->w.detach().clone();
  EngineOptions options;
  options.groups = {group(adamw_group(0.1), {{"emb.weight", module->w}}),
                    group(adamw_group(0.1), {{"emb.weight", module->w}})};
  try {
    Engine engine(module, adamw(0.1, GetParam()), *comm, options);
    FAIL() << "was not refused";
  } catch (const ShapeError& error) {
    const std::string text = error.what();
    for (const char* part : {"emb.weight", "group 0", "group 1"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  EXPECT_TRUE(same_bits(before, module->w));
}

struct Unused : torch::nn::Module {
  Unused() {
    u = register_parameter("u", at::ones({3}));
    w = register_parameter("w", at::arange(3, at::kFloat) + 1);
    v = register_parameter("v", at::ones({20}));
  }
  at::Tensor u, w, v;
};

// As in torch::optim: no gradient, no decay, no momentum.
TEST_P(EveryStage, UnusedParametersAreLeftAlone) {  // DeepSpeed #777, PyTorch #28294
  Config config = adamw(0.1, GetParam());
  config.optimizer.weight_decay = 0.1;
  auto reference = std::make_shared<Unused>();
  torch::optim::AdamW adamw_reference(reference->parameters(),
                                      torch::optim::AdamWOptions(0.1).weight_decay(0.1));
  for (int i = 0; i < 3; ++i) {
    adamw_reference.zero_grad();
    reference->w.sum().backward();
    adamw_reference.step();
  }
  auto module = train<Unused>(2, config, make<Unused>(), [](Engine& engine, Unused& m, int) {
    for (int i = 0; i < 3; ++i) engine.train_batch([&](int64_t) { return m.w.sum(); });
  });
  EXPECT_TRUE(same_bits(module->u, at::ones({3})));
  EXPECT_TRUE(same_bits(module->v, at::ones({20})));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(values(module->w)[i], values(reference->w)[i], 1e-6);
  }
}

// A parameter that comes into use later starts with bias corrections of its own first step.
TEST_P(EveryStage, LateParametersStartAsTheirOwnFirstStep) {
  auto reference = std::make_shared<Unused>();
  torch::optim::AdamW optimizer(reference->parameters(), torch::optim::AdamWOptions(0.1));
  const auto loss = [](Unused& m, int step) {
    return step < 2 ? m.w.sum() : m.w.sum() + 3 * m.u.sum();
  };
  for (int i = 0; i < 4; ++i) {
    optimizer.zero_grad();
    loss(*reference, i).backward();
    optimizer.step();
  }
  Config config = adamw(0.1, GetParam());
  config.optimizer.weight_decay = 0.01;  // torch's default
  auto module = train<Unused>(2, config, make<Unused>(), [&](Engine& engine, Unused& m, int) {
    for (int i = 0; i < 4; ++i) engine.train_batch([&](int64_t) { return loss(m, i); });
  });
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(values(module->w)[i], values(reference->w)[i], 1e-6);
    EXPECT_NEAR(values(module->u)[i], values(reference->u)[i], 1e-6);
  }
}

TEST_P(EveryStage, BranchesThatDifferBetweenRanksAddZero) {  // DeepSpeed #7998
  struct TwoHeads : torch::nn::Module {
    TwoHeads() {
      h1 = register_parameter("h1", at::arange(3, at::kFloat) + 1);
      h2 = register_parameter("h2", at::arange(3, at::kFloat) + 1);
    }
    at::Tensor h1, h2;
  };
  auto module = train<TwoHeads>(2, sgd(1.0, GetParam()), make<TwoHeads>(),
                                [](Engine& engine, TwoHeads& m, int rank) {
                                  engine.train_batch([&](int64_t) {
                                    return rank == 0 ? m.h1.sum() : m.h2.sum();
                                  });
                                });
  EXPECT_EQ(values(module->h1), (std::vector<float>{0.5, 1.5, 2.5}));
  EXPECT_EQ(values(module->h2), (std::vector<float>{0.5, 1.5, 2.5}));
}

TEST_P(EveryStage, FrozenParametersTakeTheWorkingTypeAndStay) {
  struct Frozen : VectorModule {
    Frozen() : VectorModule(3) {
      f = register_parameter("f", at::ones({4}) / 3, /*requires_grad=*/false);
    }
    at::Tensor f;
  };
  auto module = train<Frozen>(2, sgd(1.0, GetParam(), DType::kBF16), make<Frozen>(),
                              [](Engine& engine, Frozen& m, int) {
                                EXPECT_EQ(engine.optimizer().num_parameters(), 3);
                                engine.train_batch([&](int64_t) { return m.loss(1); });
                              });
  EXPECT_EQ(module->f.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(same_bits(module->f, (at::ones({4}) / 3).to(at::kBFloat16)));
}

TEST(Construction, NothingTrainableIsRefused) {
  auto comm = make_single_communicator();
  auto module = std::make_shared<VectorModule>(3);
  module->w.set_requires_grad(false);
  EXPECT_THROW(Engine(module, sgd(1.0), *comm), ShapeError);
}

TEST(Construction, RanksWithDifferentParametersAreToldSo) {
  try {
    run_thread_ranks(2, [](Communicator& comm) {
      Engine engine(std::make_shared<VectorModule>(3 + comm.rank()), sgd(1.0), comm);
    });
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("different parameters"), std::string::npos);
  }
}

TEST_P(EveryStage, EveryRankStartsWithRankZerosWeightsAndBuffers) {  // detr #544
  struct WithBuffers : Mlp23 {
    explicit WithBuffers(int rank) : Mlp23(rank) {
      mean = register_buffer("mean", at::full({3}, static_cast<float>(rank)));
      count = register_buffer("count", at::full({}, rank, at::kLong));
    }
    at::Tensor mean, count;
  };
  const Mlp23 first(0);
  run_thread_ranks(3, [&](Communicator& comm) {
    auto module = std::make_shared<WithBuffers>(comm.rank());
    Engine engine(module, adamw(0.1, GetParam()), comm);
    for (size_t i = 0; i < first.parameters().size(); ++i) {
      EXPECT_TRUE(same_bits(module->parameters()[i], first.parameters()[i]));
    }
    EXPECT_TRUE(same_bits(module->mean, at::zeros({3})));
    EXPECT_EQ(module->count.item<int64_t>(), 0);
  });
}

// --- Precision, clipping and non-finite values ----------------------------------------------------------

TEST_P(EveryStage, OneInfinityOnOneRankSkipsEveryRank) {  // DeepSpeed #8035
  train<VectorModule>(2, adamw(0.1, GetParam(), DType::kBF16), make<VectorModule>(8),
                      [](Engine& engine, VectorModule& m, int rank) {
                        const FlatGroup& g = *engine.optimizer().flat_groups()[0];
                        engine.train_batch([&](int64_t) { return m.loss(1); });
                        const auto copy = [&] {
                          return std::vector<at::Tensor>{m.w.detach().clone(), g.master().clone(),
                                                         g.states()[0].clone(),
                                                         g.states()[1].clone()};
                        };
                        const auto before = copy();
                        at::Tensor gradient = at::ones({8});
                        if (rank == 1) gradient[3] = HUGE_VAL;
                        engine.train_batch([&](int64_t) { return m.loss(gradient); });
                        const auto after = copy();
                        for (size_t i = 0; i < before.size(); ++i) {
                          EXPECT_TRUE(same_bits(before[i], after[i])) << i;
                          EXPECT_TRUE(after[i].to(at::kFloat).isfinite().all().item<bool>());
                        }
                        EXPECT_EQ(engine.skipped_steps(), 1);
                        engine.train_batch([&](int64_t) { return m.loss(1); });
                        EXPECT_EQ(g.steps_applied(), std::vector<int64_t>{2});
                      });
}

TEST_P(EveryStage, SkippedStepsDoNotAdvanceTheSchedule) {  // DeepSpeed #8415
  Config config = adamw(0.1, GetParam(), DType::kBF16);
  config.scheduler = SchedulerConfig{};
  config.scheduler->kind = ScheduleKind::kWarmupLR;
  config.scheduler->warmup_num_steps = 4;
  config.scheduler->warmup_log = false;
  train<VectorModule>(2, config, make<VectorModule>(3),
                      [](Engine& engine, VectorModule& m, int) {
                        const at::Tensor before = m.w.detach().clone();
                        for (int i = 0; i < 5; ++i) {
                          engine.train_batch([&](int64_t) { return m.loss(NAN); });
                          EXPECT_FALSE(engine.was_step_applied());
                        }
                        EXPECT_EQ(engine.skipped_steps(), 5);
                        EXPECT_EQ(engine.global_steps(), 5);
                        EXPECT_EQ(engine.lr(), 0.0);
                        EXPECT_TRUE(same_bits(before, m.w));
                      });
}

TEST_P(EveryStage, ConstructionIsInert) {  // DeepSpeed #5151
  Config config = adamw(0.1, GetParam(), DType::kBF16);
  config.optimizer.weight_decay = 0.1;
  train<VectorModule>(2, config, make<VectorModule>(4),
                      [](Engine& engine, VectorModule& m, int) {
                        EXPECT_EQ(values(m.w), (std::vector<float>{1, 2, 3, 4}));
                        expect_clean_weights(engine);
                        const ParamGroup& options = engine.param_groups()[0];
                        EXPECT_EQ(options.lr, 0.1);
                        EXPECT_EQ(options.weight_decay, 0.1);
                        EXPECT_EQ(options.beta1, 0.9);
                      });
}

TEST_P(EveryStage, MasterKeepsFp32ValuesExactly) {
  train<Mlp23>(1, adamw(0.1, GetParam(), DType::kBF16), make<Mlp23>(0),
               [](Engine& engine, Mlp23&, int) {
                 const Mlp23 given(0);
                 const auto master = owned_master(engine);
                 size_t at = 0;
                 for (const auto& parameter : given.parameters()) {
                   for (const float value : values(parameter)) EXPECT_EQ(master[at++], value);
                 }
               });
}

TEST_P(EveryStage, ZeroGradientsAreDefined) {  // DeepSpeed #8614
  Config config = adamw(0.1, GetParam(), DType::kBF16);
  config.gradient_clipping = 1.0;
  VectorModule reference(4);
  torch::optim::AdamW optimizer(reference.parameters(),
                                torch::optim::AdamWOptions(0.1).weight_decay(0));
  train<VectorModule>(2, config, make<VectorModule>(4),
                      [&](Engine& engine, VectorModule& m, int rank) {
                        const double gradients[] = {0, 1, 0};
                        for (const double g : gradients) {
                          engine.train_batch([&](int64_t) { return m.loss(g); });
                          EXPECT_TRUE(engine.was_step_applied());
                          EXPECT_NEAR(engine.global_grad_norm(), 2 * g, 1e-6);
                          if (rank != 0) continue;
                          optimizer.zero_grad();
                          // Norm 2 is clipped to 1, so the reference gets half the gradient.
                          reference.loss(g / 2).backward();
                          optimizer.step();
                          if (g == 0 && engine.global_steps() == 1) {
                            EXPECT_EQ(values(m.w), (std::vector<float>{1, 2, 3, 4}));
                          }
                        }
                        if (rank == 0) {
                          EXPECT_NEAR(owned_master(engine)[0], values(reference.w)[0], 1e-5);
                        }
                      });
}

TEST_P(EveryStage, NormOfManyBf16GradientsDoesNotStall) {  // Automodel #825
  for (const int world : {1, 2, 4}) {
    train<VectorModule>(world, sgd(0.0, GetParam(), DType::kBF16), make<VectorModule>(65536, 0.0, 0.0),
                        [](Engine& engine, VectorModule& m, int) {
                          engine.train_batch([&](int64_t) { return m.loss(1); });
                          EXPECT_NEAR(engine.global_grad_norm(), 256.0, 0.01);
                        });
  }
}

TEST_P(EveryStage, SmallUpdatesAddUpInTheMaster) {  // ml-by-hand #85
  train<VectorModule>(2, adamw(1e-3, GetParam(), DType::kBF16), make<VectorModule>(1),
                      [](Engine& engine, VectorModule& m, int rank) {
                        for (int i = 0; i < 10; ++i) {
                          engine.train_batch([&](int64_t) { return m.loss(1); });
                        }
                        if (rank == 0) EXPECT_NEAR(owned_master(engine)[0], 0.99, 1e-5);
                        EXPECT_EQ(values(m.w)[0], 0.98828125f);
                      });
}

TEST_P(EveryStage, Bf16RanksOnTheCpuWork) {  // PyTorch #113557
  auto module = train<VectorModule>(2, adamw(0.1, GetParam(), DType::kBF16), make<VectorModule>(5),
                                    [](Engine& engine, VectorModule& m, int) {
                                      for (int i = 0; i < 2; ++i) {
                                        engine.train_batch([&](int64_t) { return m.loss(1); });
                                      }
                                    });
  for (int i = 0; i < 5; ++i) {
    const auto expected = at::scalar_tensor(i + 0.8).to(at::kBFloat16).item<float>();
    EXPECT_EQ(values(module->w)[static_cast<size_t>(i)], expected);
  }
}

TEST_P(EveryStage, DynamicLossScaleOfFp16) {
  Config config = sgd(1.0, GetParam(), DType::kF16);
  config.fp16.initial_scale_power = 4;
  config.fp16.loss_scale_window = 2;
  config.fp16.hysteresis = 1;
  train<VectorModule>(2, config, make<VectorModule>(4),
                      [](Engine& engine, VectorModule& m, int) {
                        EXPECT_EQ(engine.loss_scale(), 16.0);
                        engine.train_batch([&](int64_t) { return m.loss(0.25); });
                        EXPECT_EQ(values(m.w), (std::vector<float>{0.75, 1.75, 2.75, 3.75}));
                        EXPECT_EQ(engine.global_grad_norm(), 0.5);  // unscaled
                        engine.train_batch([&](int64_t) { return m.loss(HUGE_VAL); });
                        EXPECT_FALSE(engine.was_step_applied());
                        EXPECT_EQ(engine.loss_scale(), 8.0);
                        for (int i = 0; i < 2; ++i) {
                          engine.train_batch([&](int64_t) { return m.loss(0.25); });
                        }
                        EXPECT_EQ(engine.loss_scale(), 16.0);
                      });
}

// --- Gradient accumulation --------------------------------------------------------------------------------

TEST_P(EveryStage, ClippingHappensOnceAtTheBoundary) {  // lingua #59
  Config config = sgd(1.0, GetParam());
  config.gradient_clipping = 1.0;
  config.batch.accumulation_steps = 2;
  auto module = train<VectorModule>(
      1, config, make<VectorModule>(2, 0.0, 0.0), [](Engine& engine, VectorModule& m, int) {
        engine.train_batch([&](int64_t micro) {
          return m.loss(micro == 0 ? at::tensor({6.f, 0.f}) : at::tensor({0.f, 8.f}));
        });
      });
  EXPECT_NEAR(values(module->w)[0], -0.6, 1e-5);
  EXPECT_NEAR(values(module->w)[1], -0.8, 1e-5);
}

// DeepSpeed's loop: windows carry over epochs, so 12 micro-batches at 4 are 3 updates.
TEST_P(EveryStage, WindowsCarryOverEpochs) {  // DeepSpeed #7439
  Config config = sgd(1.0, GetParam());
  config.batch.accumulation_steps = 4;
  auto module = train<VectorModule>(2, config, make<VectorModule>(2),
                                    [](Engine& engine, VectorModule& m, int) {
                                      for (int i = 0; i < 12; ++i) {
                                        EXPECT_EQ(engine.is_gradient_accumulation_boundary(), i % 4 == 3);
                                        engine.backward(m.loss(1));
                                        engine.step();
                                      }
                                      EXPECT_EQ(engine.global_steps(), 3);
                                    });
  EXPECT_EQ(values(module->w), (std::vector<float>{-2, -1}));
}

TEST_P(EveryStage, ReportedLossIsTheMeanOfTheWindow) {  // Lightning #835
  Config config = sgd(0.0, GetParam());
  config.batch.accumulation_steps = 4;
  train<VectorModule>(1, config, make<VectorModule>(1, 1.0),
                      [](Engine& engine, VectorModule& m, int) {
                        const double expected[] = {2.5, 6.5, 10.5};
                        for (int step = 0; step < 3; ++step) {
                          const double loss = engine.train_batch([&](int64_t micro) {
                            return m.loss(4 * step + static_cast<double>(micro) + 1);
                          });
                          EXPECT_DOUBLE_EQ(loss, expected[step]);
                        }
                        EXPECT_EQ(engine.global_steps(), 3);
                      });
}

// --- Learning-rate schedules -----------------------------------------------------------------------------

TEST_P(EveryStage, SchedulesStepOncePerUpdate) {  // DeepSpeed #771 …, starVLA #210
  const auto rates = [&](int64_t accumulation) {
    Config config = sgd(0.1, GetParam());
    config.batch.accumulation_steps = accumulation;
    config.scheduler = SchedulerConfig{};
    config.scheduler->kind = ScheduleKind::kWarmupDecayLR;
    config.scheduler->total_num_steps = 6;
    config.scheduler->warmup_num_steps = 2;
    config.scheduler->warmup_max_lr = 0.1;
    config.scheduler->warmup_log = false;
    std::vector<double> seen;
    train<VectorModule>(2, config, make<VectorModule>(3),
                        [&](Engine& engine, VectorModule& m, int rank) {
                          for (int i = 0; i < 6; ++i) {
                            const float before = values(m.w)[0];
                            engine.train_batch([&](int64_t) { return m.loss(1); });
                            // The weight moves by exactly the rate that is reported.
                            EXPECT_NEAR(before - values(m.w)[0], engine.report().lr, 1e-6);
                            if (rank == 0) seen.push_back(engine.report().lr);
                          }
                        });
    return seen;
  };
  EXPECT_EQ(rates(1), rates(4));
}

TEST_P(EveryStage, EveryGroupStartsAtItsWarmUpRate) {  // DeepSpeed #7969
  run_thread_ranks(2, [&](Communicator& comm) {
    auto m = std::make_shared<Unused>();
    Config config = adamw(0.1, GetParam());
    config.scheduler = SchedulerConfig{};
    config.scheduler->kind = ScheduleKind::kWarmupCosineLR;
    config.scheduler->total_num_steps = 10;
    config.scheduler->warmup_num_steps = 4;
    config.scheduler->warmup_log = false;
    EngineOptions options;
    options.groups = {group(adamw_group(0.1), {{"u", m->u}}), group(adamw_group(0.2), {{"w", m->w}})};
    Engine engine(m, config, comm, options);
    EXPECT_EQ(engine.param_groups()[0].lr, 0.0);
    EXPECT_EQ(engine.param_groups()[1].lr, 0.0);
    for (int i = 0; i < 4; ++i) {
      engine.train_batch([&](int64_t) { return m->u.sum() + m->w.sum(); });
    }
    engine.lr();  // the rates of update 4: t = 3 of 4
    EXPECT_NEAR(engine.param_groups()[0].lr, 0.1 * 3 / 4, 1e-12);
    EXPECT_NEAR(engine.param_groups()[1].lr, 0.2 * 3 / 4, 1e-12);
  });
}

TEST_P(EveryStage, SamWithAScheduleOverAShardedOptimizerLearns) {  // Composer #3259
  Config config = adamw(0.1, GetParam());
  config.sam.enabled = true;
  config.scheduler = SchedulerConfig{};
  config.scheduler->kind = ScheduleKind::kWarmupLR;
  config.scheduler->warmup_num_steps = 2;
  config.scheduler->warmup_log = false;
  train<QuadraticModule>(2, config, make<QuadraticModule>(std::vector<float>{3, 4}),
                         [](Engine& engine, QuadraticModule& m, int) {
                           const double expected[] = {0, 0, 0.05, 0.1, 0.1, 0.1};
                           for (const double lr : expected) {
                             engine.train_batch([&](int64_t) { return m.loss(); });
                             EXPECT_NEAR(engine.report().lr, lr, 1e-12);
                             EXPECT_EQ(engine.optimizer().param_groups()[0].lr, engine.report().lr);
                           }
                           EXPECT_LT(values(m.w)[0], 2.9);
                           EXPECT_LT(values(m.w)[1], 3.9);
                         });
}

}  // namespace
}  // namespace zerosharp
