// A schedule in Composer's words, as configured.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/time_string.h"

namespace zerosharp {

enum class ComposerShape : uint8_t {
  kStep,
  kMultiStep,
  kConstant,
  kLinear,
  kExponential,
  kCosine,
  kWarmRestarts,
  kPolynomial,
  kInverseSqrt
};

/// Settings under Composer's names; a shape reads its own. α is the multiplier of the base value.
struct ComposerScheduleConfig {
  std::string name;  ///< as in the file
  ComposerShape shape = ComposerShape::kConstant;
  bool warmup = false;  ///< the …_with_warmup form
  Time t_warmup{0, TimeUnit::kBatch};
  bool scale_warmup = false;
  Time t_max{1, TimeUnit::kDuration};
  double alpha = 1;                        ///< constant
  double alpha_i = 1;                      ///< linear
  double alpha_f = 0;                      ///< linear, cosine, polynomial, warm restarts
  double gamma = 0.1;                      ///< step, multistep, exponential
  Time step_size{1, TimeUnit::kEpoch};     ///< step
  std::vector<Time> milestones;            ///< multistep
  Time decay_period{1, TimeUnit::kEpoch};  ///< exponential
  Time t_0{1, TimeUnit::kEpoch};           ///< warm restarts: first cycle …
  double t_mult = 1;                       ///< … and what each next one is longer by
  double power = 1;                        ///< polynomial
  Time t_scale{1, TimeUnit::kBatch};       ///< inverse square root
  Time t_cooldown{0, TimeUnit::kBatch};
  double alpha_f_decay = 0;
  double alpha_f_cooldown = 0;
};

}  // namespace zerosharp
