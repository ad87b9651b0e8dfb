#define ZS_PASSES kAvx512Passes
#define ZS_PASSES_NAME "avx512"
#include "kernels/cpu/passes_impl.h"
