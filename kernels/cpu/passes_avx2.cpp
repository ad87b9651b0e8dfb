#define ZS_PASSES kAvx2Passes
#define ZS_PASSES_NAME "avx2"
#include "kernels/cpu/passes_impl.h"
