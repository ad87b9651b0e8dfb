#define ZS_PASSES kScalarPasses
#define ZS_PASSES_NAME "scalar"
#define ZS_LANES 4
#include "kernels/cpu/passes_impl.h"
