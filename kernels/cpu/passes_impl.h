// Bodies of the CPU loops: plain loops over element functions that the compiler vectorizes for the
// instruction set of the including file. ZS_PASSES and ZS_PASSES_NAME name the table,
// ZS_LANES is the number of fp32 values in a register.
#include <cmath>

#include "kernels/cpu/passes.h"
#include "kernels/element.h"

// The arrays of one call do not overlap, and these loops are worth vectorizing whatever the
// compiler's cost model thinks of their divisions.
#if defined(__clang__)
#define ZS_VECTORIZE _Pragma("clang loop vectorize(assume_safety) vectorize_width(ZS_LANES)")
#else
#define ZS_VECTORIZE _Pragma("GCC ivdep")
#endif

namespace zerosharp::kernels::cpu {
namespace {

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
  ZS_VECTORIZE
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
constexpr int64_t kTile = 512;  // elements handled at a time; stays in the first cache

/// Partial sums of squares of a stream of fp32 values in a fixed order.
struct SquareSum {
  double lanes[kLanes] = {};

  /// `count` values; only the last tile of a run may be no multiple of kLanes.
  void add(const float* __restrict values, int64_t count) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      ZS_VECTORIZE
      for (int lane = 0; lane < kLanes; ++lane) {
        const double value = values[i + lane];
        lanes[lane] += value * value;
      }
    }
    for (int lane = 0; i + lane < count; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  double total() const {
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    return sum;
  }
};

/// Partial sums of products in the same order.
struct DotSum {
  double lanes[kLanes] = {};

  void add(const float* x, const float* y, int64_t count) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      ZS_VECTORIZE
      for (int lane = 0; lane < kLanes; ++lane) {
        lanes[lane] += double{x[i + lane]} * double{y[i + lane]};
      }
    }
    for (int lane = 0; i + lane < count; ++lane) {
      lanes[lane] += double{x[i + lane]} * double{y[i + lane]};
    }
  }
  double total() const {
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    return sum;
  }
};

template <class T>
BlockSums sum_squares_of(const T* __restrict x, int64_t begin, int64_t end) {
  SquareSum squares;
  int64_t bad = 0;
  float tile[kTile];
  for (int64_t at = begin; at < end; at += kTile) {
    const int64_t count = end - at < kTile ? end - at : kTile;
    int32_t bad_here = 0;
    ZS_VECTORIZE
    for (int64_t i = 0; i < count; ++i) {
      tile[i] = to_float(x[at + i]);
      bad_here += (bits_of(tile[i]) & 0x7f800000u) == 0x7f800000u ? 1 : 0;
    }
    bad += bad_here;
    squares.add(tile, count);
  }
  return {squares.total(), static_cast<double>(bad), 0};
}

BlockSums sum_squares(const void* x, DType dtype, int64_t begin, int64_t end) {
  BlockSums sums;
  with_type(dtype,
            [&]<class T>(T*) { sums = sum_squares_of(static_cast<const T*>(x), begin, end); });
  return sums;
}

/// Loads a tile of bases: masters, or working weights where there are none.
template <class W>
void load_bases(const PerturbShard& shard, int64_t at, int64_t count, float* __restrict base) {
  const float* master = shard.master;
  const W* weight = static_cast<const W*>(shard.weight);
  for (int64_t i = 0; i < count; ++i) {
    base[i] = master != nullptr ? master[at + i] : to_float(weight[at + i]);
  }
}

/// One tile of a perturbation: writes the weights, and what moved and by how much for the sums.
template <class G, class W, bool kStochastic, bool kMagnitude, bool kPreconditioned>
int32_t perturb_tile(const G* __restrict grad, const float* __restrict base,
                     const float* __restrict v, W* __restrict weight, const PerturbStep& step,
                     float scale, int64_t first_element, int64_t count, float* __restrict shift,
                     float* __restrict e) {
  int32_t moved = 0;
  const uint64_t seed = step.seed;
  const uint64_t counter = step.step;
  const float addend = step.shift;
  ZS_VECTORIZE
  for (int64_t i = 0; i < count; ++i) {
    const float second = kPreconditioned ? v[i] : 0.0f;
    const float ei =
        weighted<kMagnitude, kPreconditioned>(scale * to_float(grad[i]), base[i], second, addend);
    const float value = base[i] + ei;
    W rounded;
    if constexpr (kStochastic) {
      const auto element = static_cast<uint64_t>(first_element + i);
      rounded = stochastic_from_float<W>(value, philox_word(seed, counter, element));
    } else {
      rounded = from_float<W>(value);
    }
    const float before = to_float(from_float<W>(base[i]));
    const float after = to_float(rounded);
    e[i] = ei;
    shift[i] = after - before;  // exact: neighbours of one format, or rounded once in fp32
    moved += after != before ? 1 : 0;
    weight[i] = rounded;
  }
  return moved;
}

template <class G, class W, bool kStochastic, bool kMagnitude, bool kPreconditioned>
BlockSums perturb_of(const PerturbShard& shard, const PerturbStep& step, float scale, int64_t begin,
                     int64_t end) {
  const G* grad = static_cast<const G*>(shard.grad);
  W* weight = static_cast<W*>(shard.weight);
  SquareSum shifts;
  SquareSum squares;
  int64_t moved = 0;
  float base[kTile], shift[kTile], e[kTile];
  for (int64_t at = begin; at < end; at += kTile) {
    const int64_t count = end - at < kTile ? end - at : kTile;
    load_bases<W>(shard, at, count, base);
    const float* v = kPreconditioned ? shard.second_moment + at : nullptr;
    moved += perturb_tile<G, W, kStochastic, kMagnitude, kPreconditioned>(
        grad + at, base, v, weight + at, step, scale, shard.first_element + at, count, shift, e);
    shifts.add(shift, count);
    squares.add(e, count);
  }
  return {static_cast<double>(moved), shifts.total(), squares.total()};
}

/// Calls `body<kMagnitude, kPreconditioned>()`.
template <class Body>
void with_weighting(Weighting weighting, Body body) {
  switch (weighting) {
    case Weighting::kMagnitude:
      return body.template operator()<true, false>();
    case Weighting::kPreconditioned:
      return body.template operator()<false, true>();
    case Weighting::kNone:
      return body.template operator()<false, false>();
  }
}

BlockSums perturb(const PerturbShard& shard, const PerturbStep& step, float scale, int64_t begin,
                  int64_t end) {
  BlockSums sums;
  const bool stochastic = step.rounding == Rounding::kStochastic;
  with_type(shard.grad_dtype, [&]<class G>(G*) {
    with_type(shard.weight_dtype, [&]<class W>(W*) {
      with_weighting(step.weighting, [&]<bool kMagnitude, bool kPreconditioned>() {
        sums = stochastic ? perturb_of<G, W, true, kMagnitude, kPreconditioned>(shard, step, scale,
                                                                                begin, end)
                          : perturb_of<G, W, false, kMagnitude, kPreconditioned>(shard, step, scale,
                                                                                 begin, end);
      });
    });
  });
  return sums;
}

/// (t·g)² is g times the weighted g: its square root is exact enough for a norm, sums are fp64.
template <class G, class W, bool kMagnitude, bool kPreconditioned>
BlockSums sum_squares_weighted_of(const PerturbShard& shard, float shift, int64_t begin,
                                  int64_t end) {
  const G* __restrict grad = static_cast<const G*>(shard.grad);
  const float* __restrict v = shard.second_moment;
  DotSum products;
  SquareSum squares;
  int64_t bad = 0;
  float base[kTile], plain[kTile], scaled[kTile];
  for (int64_t at = begin; at < end; at += kTile) {
    const int64_t count = end - at < kTile ? end - at : kTile;
    load_bases<W>(shard, at, count, base);
    int32_t bad_here = 0;
    ZS_VECTORIZE
    for (int64_t i = 0; i < count; ++i) {
      plain[i] = to_float(grad[at + i]);
      const float second = kPreconditioned ? v[at + i] : 0.0f;
      scaled[i] = weighted<kMagnitude, kPreconditioned>(plain[i], base[i], second, shift);
      bad_here += (bits_of(plain[i]) & 0x7f800000u) == 0x7f800000u ? 1 : 0;
    }
    bad += bad_here;
    products.add(plain, scaled, count);
    squares.add(scaled, count);
  }
  return {products.total(), static_cast<double>(bad), squares.total()};
}

BlockSums sum_squares_weighted(const PerturbShard& shard, Weighting weighting, float shift,
                               int64_t begin, int64_t end) {
  BlockSums sums;
  with_type(shard.grad_dtype, [&]<class G>(G*) {
    with_type(shard.weight_dtype, [&]<class W>(W*) {
      with_weighting(weighting, [&]<bool kMagnitude, bool kPreconditioned>() {
        sums = sum_squares_weighted_of<G, W, kMagnitude, kPreconditioned>(shard, shift, begin, end);
      });
    });
  });
  return sums;
}

BlockSums dots(const void* x, DType x_dtype, const float* y, int64_t begin, int64_t end) {
  DotSum xy, xx, yy;
  float tile[kTile];
  with_type(x_dtype, [&]<class T>(T*) {
    const T* __restrict from = static_cast<const T*>(x);
    for (int64_t at = begin; at < end; at += kTile) {
      const int64_t count = end - at < kTile ? end - at : kTile;
      ZS_VECTORIZE
      for (int64_t i = 0; i < count; ++i) tile[i] = to_float(from[at + i]);
      xy.add(tile, y + at, count);
      xx.add(tile, tile, count);
      yy.add(y + at, y + at, count);
    }
  });
  return {xy.total(), xx.total(), yy.total()};
}

void mix(void* x, DType x_dtype, float* y, const float* matrix, int64_t begin, int64_t end) {
  const float a = matrix[0], b = matrix[1], c = matrix[2], d = matrix[3];
  with_type(x_dtype, [&]<class T>(T*) {
    T* __restrict first = static_cast<T*>(x);
    float* __restrict second = y;
    ZS_VECTORIZE
    for (int64_t i = begin; i < end; ++i) {
      const float xi = to_float(first[i]);
      const float yi = second[i];
      first[i] = from_float<T>(mixed(xi, yi, a, b));
      second[i] = mixed(yi, xi, d, c);
    }
  });
}

void cast(const void* src, DType src_dtype, void* dst, DType dst_dtype, int64_t begin,
          int64_t end) {
  with_type(src_dtype, [&]<class S>(S*) {
    with_type(dst_dtype, [&]<class D>(D*) {
      const S* __restrict from = static_cast<const S*>(src);
      D* __restrict to = static_cast<D*>(dst);
      ZS_VECTORIZE
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
      ZS_VECTORIZE
      for (int64_t i = begin; i < end; ++i) {
        to[i] = from_float<D>(to_float(to[i]) + scale * to_float(from[i]));
      }
    });
  });
}

/// T: element type, A: type it is reduced in.
template <class T, class A, class Load, class Store>
void reduce_tiles(const void* const* sources, int num_sources, ReduceOp op, void* dst,
                  int64_t begin, int64_t end, Load load, Store store) {
  A tile[kTile];
  for (int64_t at = begin; at < end; at += kTile) {
    const int64_t count = end - at < kTile ? end - at : kTile;
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

const Passes ZS_PASSES = {ZS_PASSES_NAME, optimizer, sum_squares, perturb,    sum_squares_weighted,
                          dots,           mix,       cast,        scaled_add, reduce};

}  // namespace zerosharp::kernels::cpu
