// The CPU loops, compiled once for each instruction set; a table of functions is chosen at run
// time.
#pragma once
#include <cstdint>

#include "kernels/optimizer_element.h"
#include "kernels/perturb.h"
#include "kernels/reduce.h"

namespace zerosharp::kernels::cpu {

/// Partial results of one fixed block; blocks are added up in order, whatever thread made them.
struct BlockSums {
  double first = 0;
  double second = 0;
  double third = 0;
};

/// Each function works on elements [begin, end) of its arguments.
struct Passes {
  const char* name;
  void (*optimizer)(const OptimizerShard& shard, OptimizerKind kind, const UpdateNumbers& numbers,
                    float grad_scale, int64_t begin, int64_t end);
  /// first = Σx², second = number of non-finite.
  BlockSums (*sum_squares)(const void* x, DType dtype, int64_t begin, int64_t end);
  /// The statistics of perturb.h in order.
  BlockSums (*perturb)(const PerturbShard& shard, const PerturbStep& step, float scale,
                       int64_t begin, int64_t end);
  /// first = Σ(t·g)², second = number of non-finite g.
  BlockSums (*sum_squares_weighted)(const PerturbShard& shard, Weighting weighting, float shift,
                                    int64_t begin, int64_t end);
  /// Σxy, Σx², Σy².
  BlockSums (*dots)(const void* x, DType x_dtype, const float* y, int64_t begin, int64_t end);
  void (*mix)(void* x, DType x_dtype, float* y, const float* matrix, int64_t begin, int64_t end);
  void (*cast)(const void* src, DType src_dtype, void* dst, DType dst_dtype, int64_t begin,
               int64_t end);
  void (*scaled_add)(void* dst, DType dst_dtype, const void* src, DType src_dtype, float scale,
                     int64_t begin, int64_t end);
  void (*reduce)(const void* const* sources, int num_sources, ReduceOp op, DType dtype, void* dst,
                 int64_t begin, int64_t end);
};

/// The loops for the best instruction set of this machine, or the one named by the environment
/// variable ZEROSHARP_CPU (scalar, avx2, avx512) if the machine has it.
const Passes& passes();

/// For tests: the loops of one instruction set, or null if the machine or the build lacks it.
const Passes* passes_for(const char* name);

extern const Passes kScalarPasses;
#if defined(__x86_64__)
extern const Passes kAvx2Passes;
extern const Passes kAvx512Passes;
#endif

}  // namespace zerosharp::kernels::cpu
