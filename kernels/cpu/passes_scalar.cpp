#define ZS_PASSES kScalarPasses
#define ZS_PASSES_NAME "scalar"
#include "kernels/cpu/passes_impl.h"
