// The members of SAM's family in the scopes they have, for tests that go through all of them.
#pragma once
#include "engine/config/config.h"

namespace zerosharp::testing {

struct SamMethod {
  const char* name;  ///< letters, digits and _, as part of a test's name
  SamVariant variant = SamVariant::kSam;
  SamScope scope = SamScope::kGlobal;
};

inline constexpr SamMethod kSamMethods[] = {
    {"sam"},
    {"sam_group", SamVariant::kSam, SamScope::kGroup},
    {"sam_local", SamVariant::kSam, SamScope::kLocal},
    {"sam_micro", SamVariant::kSam, SamScope::kMicro},
    {"asam", SamVariant::kAsam},
    {"asam_local", SamVariant::kAsam, SamScope::kLocal},
    {"asam_micro", SamVariant::kAsam, SamScope::kMicro},
    {"msam", SamVariant::kMsam},
    {"gsam", SamVariant::kGsam},
    {"fsam", SamVariant::kFsam},
    {"vasso", SamVariant::kVasso},
    {"preconditioned", SamVariant::kPreconditioned},
    {"aesam", SamVariant::kAeSam},
    {"looksam", SamVariant::kLookSam},
};

}  // namespace zerosharp::testing
