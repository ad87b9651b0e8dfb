// The one set of parameter groups. Scheduler, SAM adapter, engine and user all hold this object by
// reference; it cannot be copied.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/optimizer_step.h"

namespace zerosharp {

/// Hyper-parameters of one group as the next update will read them.
struct ParamGroup {
  std::string name;
  kernels::OptimizerKind kind = kernels::OptimizerKind::kAdamW;
  double lr = 1e-3;
  /// Base of every schedule; NaN (not given): `lr` as it is at construction.
  double initial_lr = std::numeric_limits<double>::quiet_NaN();
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  bool decoupled_decay = false;
  /// Decoupled decay of lr/initial_lr · weight_decay (Composer's DecoupledAdamW, DecoupledSGDW and
  /// DecoupledLionW; the quotient is 1 where initial_lr is 0) in place of lr · weight_decay.
  bool scheduled_decay = false;
  double lr_decay = 0.0;
  bool bias_correction = true;
  std::vector<std::string> parameter_names;  ///< in layout order; tied names once
};

/// Throws ConfigError if a number can only be a mistake (a rate that is negative or not finite, a
/// beta outside [0, 1), …), naming the field and "parameter group NAME".
void check_numbers(const ParamGroup& group);
/// Kind and numbers on one line, as messages show them; `lr` as exactly as a double needs.
std::string describe(const ParamGroup& group);

class ParamGroups {
 public:
  explicit ParamGroups(std::vector<ParamGroup> groups) : groups_(std::move(groups)) {}
  ParamGroups(const ParamGroups&) = delete;
  ParamGroups& operator=(const ParamGroups&) = delete;

  size_t size() const noexcept { return groups_.size(); }
  ParamGroup& operator[](size_t i) { return groups_.at(i); }
  const ParamGroup& operator[](size_t i) const { return groups_.at(i); }
  auto begin() noexcept { return groups_.begin(); }
  auto end() noexcept { return groups_.end(); }
  auto begin() const noexcept { return groups_.begin(); }
  auto end() const noexcept { return groups_.end(); }

 private:
  std::vector<ParamGroup> groups_;
};

}  // namespace zerosharp
