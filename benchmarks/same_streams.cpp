#include "benchmarks/same_streams.h"

namespace zerosharp::benchmarks {

void same_streams(const uint16_t* __restrict grad, uint32_t* __restrict master,
                  uint32_t* __restrict m, uint32_t* __restrict v, uint16_t* __restrict weight,
                  uint32_t zero, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    master[i] += zero;
    m[i] += zero;
    v[i] += zero;
    weight[i] = static_cast<uint16_t>(grad[i] + zero);
  }
}

}  // namespace zerosharp::benchmarks
