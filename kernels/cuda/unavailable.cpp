// Stands in for the CUDA kernels in a build without CUDA.
#include "kernels/cuda/entry.h"
#include "kernels/error.h"

namespace zerosharp::kernels::cuda {
namespace {

[[noreturn]] void refuse() {
  fail<CudaError>("this build has no CUDA kernels; configure with ZEROSHARP_WITH_CUDA=ON");
}

}  // namespace

void optimizer_step(const OptimizerShard&, OptimizerKind, const UpdateNumbers&, const float*,
                    Stream) {
  refuse();
}
void sum_squares(const void*, DType, int64_t, double*, double*, Stream) { refuse(); }
void clip_scale(const double*, double, double, float*, Stream) { refuse(); }
void ascent_scale(const double*, double, double, double, float*, Stream) { refuse(); }
void perturb(const PerturbShard&, const PerturbStep&, double*, double*, Stream) { refuse(); }
void sum_squares_weighted(const PerturbShard&, Weighting, float, double*, double*, Stream) {
  refuse();
}
void dots(const void*, DType, const float*, int64_t, double*, double*, Stream) { refuse(); }
void mix(void*, DType, float*, int64_t, const float*, Stream) { refuse(); }
void cast(const void*, DType, void*, DType, int64_t, Stream) { refuse(); }
void scaled_add(void*, DType, const void*, DType, float, int64_t, Stream) { refuse(); }
void set_zero(void*, int64_t, Stream) { refuse(); }
void copy_bytes(void*, const void*, int64_t, Stream) { refuse(); }
void reduce_slices(const void* const*, int, ReduceOp, DType, int64_t, void*, Stream) { refuse(); }

}  // namespace zerosharp::kernels::cuda
