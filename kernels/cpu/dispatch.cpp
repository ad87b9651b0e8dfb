// Which instruction set runs.
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/passes.h"
#include "kernels/error.h"

namespace zerosharp::kernels::cpu {
namespace {

#if defined(__x86_64__)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif

const Passes& choose() {
  if (const char* wanted = std::getenv("ZEROSHARP_CPU")) {
    if (const Passes* found = passes_for(wanted)) return *found;
    fail_config("ZEROSHARP_CPU=", wanted,
                " names no instruction set of this machine; use scalar, avx2 or avx512");
  }
  for (const char* name : {"avx512", "avx2"}) {
    if (const Passes* found = passes_for(name)) return *found;
  }
  return kScalarPasses;
}

}  // namespace

const Passes* passes_for(const char* name) {
  if (std::strcmp(name, "scalar") == 0) return &kScalarPasses;
#if defined(__x86_64__)
  if (std::strcmp(name, "avx2") == 0 && has_avx2()) return &kAvx2Passes;
  if (std::strcmp(name, "avx512") == 0 && has_avx512()) return &kAvx512Passes;
#endif
  return nullptr;
}

const Passes& passes() {
  static const Passes& chosen = choose();
  return chosen;
}

}  // namespace zerosharp::kernels::cpu
