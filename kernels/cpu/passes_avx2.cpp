#define ZS_PASSES kAvx2Passes
#define ZS_PASSES_NAME "avx2"
#define ZS_LANES 8
#include "kernels/cpu/passes_impl.h"
