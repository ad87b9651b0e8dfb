// Bodies of the CPU loops: plain loops over element functions that the compiler vectorizes for the
// instruction set of the including file. ZS_PASSES and ZS_PASSES_NAME name the table.
#include <cmath>

#include "kernels/cpu/passes.h"
#include "kernels/element.h"

namespace zerosharp::kernels::cpu {
namespace {

/// Calls `body` with a null pointer of the element type of `dtype`.
template <class Body>
void with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::kBF16:
      return body(static_cast<BF16*>(nullptr));
    case DType::kF16:
      return body(static_cast<F16*>(nullptr));
    default:
      return body(static_cast<float*>(nullptr));
  }
}

template <OptimizerKind kKind, bool kHasMomentum, class G, class W>
void optimizer_loop(const OptimizerShard& shard, const UpdateNumbers& n, float grad_scale,
                    int64_t begin, int64_t end) {
  constexpr bool kTwoStates = kKind == OptimizerKind::kAdamW || kKind == OptimizerKind::kAdam;
  constexpr bool kOneState = kKind != OptimizerKind::kSgd || kHasMomentum;
  const G* __restrict grad = static_cast<const G*>(shard.grad);
  float* __restrict master = shard.master;
  float* __restrict state0 = shard.state0;
  float* __restrict state1 = shard.state1;
  W* __restrict weight = static_cast<W*>(shard.weight);
  const UpdateNumbers numbers = n;
#pragma GCC ivdep
  for (int64_t i = begin; i < end; ++i) {
    ElementState e{master[i], 0, 0};
    if constexpr (kOneState) e.state0 = state0[i];
    if constexpr (kTwoStates) e.state1 = state1[i];
    update_element<kKind, kHasMomentum>(e, to_float(grad[i]) * grad_scale, numbers);
    master[i] = e.master;
    if constexpr (kOneState) state0[i] = e.state0;
    if constexpr (kTwoStates) state1[i] = e.state1;
    weight[i] = from_float<W>(e.master);
  }
}

template <class G, class W>
void optimizer_of(const OptimizerShard& shard, OptimizerKind kind, const UpdateNumbers& n,
                  float grad_scale, int64_t begin, int64_t end) {
  switch (kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdam:
      return optimizer_loop<OptimizerKind::kAdamW, false, G, W>(shard, n, grad_scale, begin, end);
    case OptimizerKind::kSgd:
      if (n.momentum != 0) {
        return optimizer_loop<OptimizerKind::kSgd, true, G, W>(shard, n, grad_scale, begin, end);
      }
      return optimizer_loop<OptimizerKind::kSgd, false, G, W>(shard, n, grad_scale, begin, end);
    case OptimizerKind::kLion:
      return optimizer_loop<OptimizerKind::kLion, false, G, W>(shard, n, grad_scale, begin, end);
    case OptimizerKind::kAdagrad:
      return optimizer_loop<OptimizerKind::kAdagrad, false, G, W>(shard, n, grad_scale, begin, end);
  }
}

void optimizer(const OptimizerShard& shard, OptimizerKind kind, const UpdateNumbers& n,
               float grad_scale, int64_t begin, int64_t end) {
  with_type(shard.grad_dtype, [&]<class G>(G*) {
    with_type(shard.weight_dtype,
              [&]<class W>(W*) { optimizer_of<G, W>(shard, kind, n, grad_scale, begin, end); });
  });
}

constexpr int kLanes = 16;  // independent partial sums, so that the order is fixed and vectorizable

double add_lanes(const double (&lanes)[kLanes]) {
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

BlockSums sum_squares(const void* x, DType dtype, int64_t begin, int64_t end) {
  BlockSums sums;
  with_type(dtype, [&]<class T>(T*) {
    const T* __restrict values = static_cast<const T*>(x);
    double squares[kLanes] = {};
    int32_t bad[kLanes] = {};
    const auto add = [&](int lane, int64_t i) __attribute__((always_inline)) {
      const float value = to_float(values[i]);
      squares[lane] += double{value} * double{value};
      bad[lane] += (bits_of(value) & 0x7f800000u) == 0x7f800000u ? 1 : 0;
    };
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) add(lane, i + lane);
    }
    for (int lane = 0; i + lane < end; ++lane) add(lane, i + lane);
    sums.first = add_lanes(squares);
    for (const int32_t count : bad) sums.second += count;
  });
  return sums;
}

template <class G, class W, bool kStochastic>
BlockSums perturb_loop(const PerturbShard& shard, const PerturbStep& step, float scale,
                       int64_t begin, int64_t end) {
  const G* __restrict grad = static_cast<const G*>(shard.grad);
  W* __restrict weight = static_cast<W*>(shard.weight);
  const float* master = shard.master;
  double lanes[3][kLanes] = {};
  const auto one = [&](int lane, int64_t i) __attribute__((always_inline)) {
    const float base = master != nullptr ? master[i] : to_float(weight[i]);
    float e = scale * to_float(grad[i]);
    if (step.adaptive) {
      const float t = std::fabs(base) + step.eta;
      e = e * (t * t);
    }
    const float value = base + e;
    W rounded = from_float<W>(value);
    if constexpr (kStochastic) {
      const auto element = static_cast<uint64_t>(shard.first_element + i);
      rounded = stochastic_from_float<W>(value, philox_word(step.seed, step.step, element));
    }
    const float before = to_float(from_float<W>(base));
    const float after = to_float(rounded);
    const double shift = double{after} - double{before};
    lanes[0][lane] += after != before ? 1.0 : 0.0;
    lanes[1][lane] += shift * shift;
    lanes[2][lane] += double{e} * double{e};
    weight[i] = rounded;
  };
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) one(lane, i + lane);
  }
  for (int lane = 0; i + lane < end; ++lane) one(lane, i + lane);
  return {add_lanes(lanes[0]), add_lanes(lanes[1]), add_lanes(lanes[2])};
}

BlockSums perturb(const PerturbShard& shard, const PerturbStep& step, float scale, int64_t begin,
                  int64_t end) {
  BlockSums sums;
  const bool stochastic = step.rounding == Rounding::kStochastic;
  with_type(shard.grad_dtype, [&]<class G>(G*) {
    with_type(shard.weight_dtype, [&]<class W>(W*) {
      sums = stochastic ? perturb_loop<G, W, true>(shard, step, scale, begin, end)
                        : perturb_loop<G, W, false>(shard, step, scale, begin, end);
    });
  });
  return sums;
}

void cast(const void* src, DType src_dtype, void* dst, DType dst_dtype, int64_t begin,
          int64_t end) {
  with_type(src_dtype, [&]<class S>(S*) {
    with_type(dst_dtype, [&]<class D>(D*) {
      const S* __restrict from = static_cast<const S*>(src);
      D* __restrict to = static_cast<D*>(dst);
      for (int64_t i = begin; i < end; ++i) to[i] = from_float<D>(to_float(from[i]));
    });
  });
}

void scaled_add(void* dst, DType dst_dtype, const void* src, DType src_dtype, float scale,
                int64_t begin, int64_t end) {
  with_type(src_dtype, [&]<class S>(S*) {
    with_type(dst_dtype, [&]<class D>(D*) {
      const S* __restrict from = static_cast<const S*>(src);
      D* __restrict to = static_cast<D*>(dst);
      for (int64_t i = begin; i < end; ++i) {
        to[i] = from_float<D>(to_float(to[i]) + scale * to_float(from[i]));
      }
    });
  });
}

constexpr int64_t kReduceTile = 512;  // elements summed at a time; stays in the first cache

/// T: element type, A: type it is reduced in.
template <class T, class A, class Load, class Store>
void reduce_tiles(const void* const* sources, int num_sources, ReduceOp op, void* dst,
                  int64_t begin, int64_t end, Load load, Store store) {
  A tile[kReduceTile];
  for (int64_t at = begin; at < end; at += kReduceTile) {
    const int64_t count = end - at < kReduceTile ? end - at : kReduceTile;
    for (int s = 0; s < num_sources; ++s) {
      const T* values = static_cast<const T*>(sources[s]) + at;
      if (s == 0) {
        for (int64_t i = 0; i < count; ++i) tile[i] = load(values[i]);
      } else if (op == ReduceOp::kMax) {
        for (int64_t i = 0; i < count; ++i) {
          const A value = load(values[i]);
          tile[i] = value > tile[i] ? value : tile[i];
        }
      } else if (op == ReduceOp::kMin) {
        for (int64_t i = 0; i < count; ++i) {
          const A value = load(values[i]);
          tile[i] = value < tile[i] ? value : tile[i];
        }
      } else {
        for (int64_t i = 0; i < count; ++i) tile[i] = tile[i] + load(values[i]);
      }
    }
    T* out = static_cast<T*>(dst) + at;
    if (op == ReduceOp::kMean) {
      const A divisor = static_cast<A>(num_sources);
      for (int64_t i = 0; i < count; ++i) out[i] = store(tile[i] / divisor);
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] = store(tile[i]);
    }
  }
}

void reduce(const void* const* sources, int num_sources, ReduceOp op, DType dtype, void* dst,
            int64_t begin, int64_t end) {
  const auto same = [](auto value) { return value; };
  if (dtype == DType::kF64) {
    return reduce_tiles<double, double>(sources, num_sources, op, dst, begin, end, same, same);
  }
  if (dtype == DType::kI64) {
    return reduce_tiles<int64_t, int64_t>(sources, num_sources, op, dst, begin, end, same, same);
  }
  with_type(dtype, [&]<class T>(T*) {
    reduce_tiles<T, float>(
        sources, num_sources, op, dst, begin, end, [](T value) { return to_float(value); },
        [](float value) { return from_float<T>(value); });
  });
}

}  // namespace

const Passes ZS_PASSES = {ZS_PASSES_NAME, optimizer,  sum_squares, perturb,
                          cast,           scaled_add, reduce};

}  // namespace zerosharp::kernels::cpu
