#define ZS_PASSES kAvx512Passes
#define ZS_PASSES_NAME "avx512"
#define ZS_LANES 16
#include "kernels/cpu/passes_impl.h"
