// communication_data_type: gradients cross the ranks in another dtype than they are accumulated in.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/counting_allocator.h"
#include "tests/support/run_ranks.h"
#include "zero/device.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

constexpr int64_t kNumel = 1000;  // padded at 2 and 4 ranks

struct Types {
  DType accumulator, sent;
};
constexpr Types kAllTypes[] = {
    {DType::kBF16, DType::kF32}, {DType::kF32, DType::kBF16}, {DType::kF32, DType::kF16}};

/// The gradient of a rank: 0.5 … 1.5, so that no sum of a few ever leaves 24 bits.
at::Tensor gradient_of(int rank) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(17 + rank));
  return at::rand({kNumel}, generator) + 0.5;
}

/// One fp32 parameter whose gradient a test chooses.
struct Rank {
  Rank(Types types, int stage, Communicator& comm) : module(kNumel) {
    ParamGroupSpec spec;
    spec.options = adamw_group(0.1);
    spec.parameters = {{"w", module.w}};
    OptimizerOptions options;
    options.stage = stage;
    options.working = DType::kF32;
    options.accumulator = types.accumulator;
    options.communication = types.sent;
    optimizer = std::make_unique<Bf16Optimizer>(std::vector<ParamGroupSpec>{spec}, options, comm);
    optimizer->initialize_states();
  }
  void accumulate(const at::Tensor& gradient) {
    optimizer->begin();
    module.loss(gradient).backward();
  }
  const FlatGroup& group() const { return *optimizer->flat_groups()[0]; }
  at::Tensor accumulated() const { return group().gradients().accumulator(); }

  VectorModule module;
  std::unique_ptr<Bf16Optimizer> optimizer;
};

/// round_acc(round_sent(mean(round_sent(round_acc(g))))): the sum of 2 or 4 values is exact in fp32
/// and so is its half or quarter, hence each rounding is of an exact value.
at::Tensor expected_mean(Types types, int world) {
  at::Tensor sum = at::zeros({kNumel}, at::kDouble);
  for (int rank = 0; rank < world; ++rank) {
    sum += gradient_of(rank)
               .to(scalar_type(types.accumulator))
               .to(scalar_type(types.sent))
               .to(at::kDouble);
  }
  return (sum / world)
      .to(at::kFloat)
      .to(scalar_type(types.sent))
      .to(scalar_type(types.accumulator));
}

void expect_mean(const Rank& rank, Types types, int world, ShardRange where) {
  const int64_t numel = std::min(where.end, kNumel) - where.begin;  // without the padding
  EXPECT_TRUE(same_bits(rank.accumulated().narrow(0, where.begin, numel),
                        expected_mean(types, world).narrow(0, where.begin, numel)));
}

std::string name_of(Types types, int world, int stage) {
  return std::string(dtype_name(types.accumulator)) + " sent in " + dtype_name(types.sent) + ", " +
         std::to_string(world) + " ranks, stage " + std::to_string(stage);
}

template <class Body>
void for_all_cases(const Body& body) {
  for (const Types types : kAllTypes) {
    for (const int world : {2, 4}) {
      for (const int stage : {0, 1}) {
        SCOPED_TRACE(name_of(types, world, stage));
        run_thread_ranks(world, [&](Communicator& comm) { body(types, stage, comm); });
      }
    }
  }
}

TEST(CommunicationDtype, GradientsAreTheRoundedMeanOfRoundedGradients) {
  for_all_cases([](Types types, int stage, Communicator& comm) {
    Rank rank(types, stage, comm);
    rank.accumulate(gradient_of(comm.rank()));
    rank.optimizer->reduce_gradients();
    const bool everywhere = stage == 0;
    expect_mean(rank, types, comm.size(),
                everywhere ? ShardRange{0, kNumel} : rank.group().share());
  });
}

TEST(CommunicationDtype, HoldsForAGroupOfRanksToo) {
  for_all_cases([](Types types, int stage, Communicator& comm) {
    Rank rank(types, stage, comm);
    rank.accumulate(gradient_of(comm.rank()));
    rank.optimizer->reduce_gradients_within(&comm);
    expect_mean(rank, types, comm.size(), {0, kNumel});
  });
}

// A ring sends (N−1)/N of the buffer for a reduce-scatter and twice that for an all-reduce.
TEST(CommunicationDtype, CountsTheBytesThatAreSent) {
  for_all_cases([](Types types, int stage, Communicator& comm) {
    Rank rank(types, stage, comm);
    rank.accumulate(gradient_of(comm.rank()));
    comm.reset_stats();
    rank.optimizer->reduce_gradients();
    const auto op = stage == 0 ? CollectiveOp::kAllReduce : CollectiveOp::kReduceScatter;
    const int64_t buffer = rank.group().layout().padded_numel * element_bytes(types.sent);
    const int64_t ring = buffer / comm.size() * (comm.size() - 1);
    EXPECT_EQ(comm.stats().of(op).calls, 1);
    EXPECT_EQ(comm.stats().of(op).bytes, stage == 0 ? 2 * ring : ring);
  });
}

TEST(CommunicationDtype, MemoryHoldsOneBufferMore) {
  for_all_cases([](Types types, int stage, Communicator& comm) {
    const Rank same({types.accumulator, types.accumulator}, stage, comm);
    const Rank other(types, stage, comm);
    const int64_t buffer = other.group().layout().padded_numel * element_bytes(types.sent);
    EXPECT_EQ(other.optimizer->memory().other - same.optimizer->memory().other, buffer);
  });
}

// The gradients ⟨g, w⟩ are 1 and 3 on the ranks of a pair, so their mean is 2 in any dtype.
TEST(CommunicationDtype, GroupsShareTheBufferOfTheLargest) {
  run_thread_ranks(2, [](Communicator& comm) {
    VectorModule large(kNumel);
    VectorModule small(10);
    const std::vector<ParamGroupSpec> specs = {group(adamw_group(0.1), {{"small", small.w}}),
                                               group(adamw_group(0.1), {{"large", large.w}})};
    OptimizerOptions options;
    options.stage = 0;
    options.accumulator = DType::kF32;
    options.communication = DType::kBF16;
    Bf16Optimizer optimizer(specs, options, comm);
    const int64_t own = 2 * optimizer.ascent_sums().bytes();  // those of the step as well
    EXPECT_EQ(optimizer.memory().other - own,
              2 * optimizer.flat_groups()[1]->layout().padded_numel);
    optimizer.begin();
    const double gradient = comm.rank() == 0 ? 1 : 3;
    (small.loss(gradient) + large.loss(gradient)).backward();
    optimizer.reduce_gradients();
    for (const auto& group : optimizer.flat_groups()) {
      const at::Tensor mean = group->gradients().gradient(0);
      EXPECT_TRUE(same_bits(mean, at::full_like(mean, 2)));
    }
  });
}

TEST(CommunicationDtype, StepsAllocateNothing) {
  for (const Types types : kAllTypes) {
    for (const int stage : {0, 1}) {
      SCOPED_TRACE(name_of(types, 2, stage));
      run_thread_ranks(2, [&](Communicator& comm) {
        Rank rank(types, stage, comm);
        std::unique_ptr<CountingAllocator> counter;
        for (int i = 0; i < 3; ++i) {
          rank.accumulate(gradient_of(comm.rank()));
          comm.barrier();  // both ranks are counted: nothing else may run beside reduce and step
          if (comm.rank() == 0) counter = std::make_unique<CountingAllocator>();
          comm.barrier();
          rank.optimizer->reduce();
          rank.optimizer->step();
          comm.barrier();
          if (counter) EXPECT_EQ(counter->count, 0) << "step " << i;
          counter.reset();
          comm.barrier();
        }
      });
    }
  }
}

// 1e5 is more than fp16 holds: the step is skipped by all ranks, as for any gradient that
// overflows.
TEST(CommunicationDtype, WhatTheDtypeCannotHoldSkipsTheStep) {
  for (const int stage : {0, 1}) {
    for (const DType sent : {DType::kF16, DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(name_of({DType::kF32, sent}, 2, stage));
      run_thread_ranks(2, [&](Communicator& comm) {
        Rank rank({DType::kF32, sent}, stage, comm);
        const at::Tensor before = rank.module.w.detach().clone();
        at::Tensor gradient = at::ones({kNumel});
        if (comm.rank() == 1) gradient[kNumel - 1] = 1e5;
        rank.accumulate(gradient);
        rank.optimizer->reduce();
        rank.optimizer->step();
        const bool holds = sent != DType::kF16;
        EXPECT_EQ(rank.optimizer->outcome().applied, holds);
        EXPECT_EQ(same_bits(before, rank.module.w), !holds);
      });
    }
  }
}

// --- Through the engine -----------------------------------------------------------------------

std::vector<float> trained(int world, int64_t stage, DType precision, int64_t accumulation,
                           std::optional<DType> sent) {
  Config config = adamw(0.01, stage, precision);
  config.batch.accumulation_steps = accumulation;
  config.communication_dtype = sent;
  const auto module =
      train<Mlp23>(world, config, make<Mlp23>(0), [&](Engine& engine, Mlp23& m, int rank) {
        const int64_t rows = 8 / (world * accumulation);
        for (int step = 0; step < 10; ++step) {
          engine.train_batch([&](int64_t micro) {
            const int64_t begin = (rank * accumulation + micro) * rows;
            return m.loss(begin, begin + rows);
          });
        }
      });
  std::vector<float> all;
  for (const auto& parameter : module->parameters()) {
    for (const float value : values(parameter)) all.push_back(value);
  }
  return all;
}

// fp32 accumulators sent in bf16, DeepSpeed's default for bf16.
TEST(CommunicationDtype, StagesAgreeAndTheRoundingIsReal) {
  const auto replicated = trained(2, 0, DType::kBF16, 2, DType::kBF16);
  EXPECT_EQ(replicated, trained(2, 1, DType::kBF16, 2, DType::kBF16));
  EXPECT_NE(replicated, trained(2, 0, DType::kBF16, 2, std::nullopt));
}

// Thread ranks sum bf16 in fp32 and round once; so does a sum of fp32 rounded to bf16 afterwards.
TEST(CommunicationDtype, WiderThanTheAccumulatorChangesNothingOnThreadRanks) {
  for (const int64_t stage : {0, 1}) {
    EXPECT_EQ(trained(2, stage, DType::kBF16, 1, DType::kF32),
              trained(2, stage, DType::kBF16, 1, std::nullopt));
  }
}

TEST(CommunicationDtype, OneRankSendsNothingAndRoundsNothing) {
  EXPECT_EQ(trained(1, 1, DType::kBF16, 2, DType::kF16),
            trained(1, 1, DType::kBF16, 2, std::nullopt));
  const auto comm = make_single_communicator();
  const Rank same({DType::kF32, DType::kF32}, 1, *comm);
  const Rank other({DType::kF32, DType::kBF16}, 1, *comm);
  EXPECT_EQ(other.optimizer->memory().total(), same.optimizer->memory().total());
}

}  // namespace
}  // namespace zerosharp
