#include "zero/param_groups.h"

#include <cmath>
#include <sstream>

#include "kernels/error.h"

namespace zerosharp {
namespace {

void check(const ParamGroup& group, const char* field, double value, double below) {
  if (value >= 0 && value < below) return;  // false for NaN
  fail_config("parameter group ", group.name, ": ", field, " must be ",
              std::isinf(below) ? "a finite number of at least 0" : "in [0, 1)", ", got ", value,
              "; set it in the group's options or in param_groups()");
}

}  // namespace

void check_numbers(const ParamGroup& group) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  check(group, "lr", group.lr, kInfinity);
  check(group, "initial_lr", group.initial_lr, kInfinity);
  check(group, "beta1", group.beta1, 1.0);
  check(group, "beta2", group.beta2, 1.0);
  check(group, "eps", group.eps, kInfinity);
  check(group, "weight_decay", group.weight_decay, kInfinity);
  check(group, "momentum", group.momentum, kInfinity);
  check(group, "lr_decay", group.lr_decay, kInfinity);
  const bool couples = group.kind == kernels::OptimizerKind::kAdam ||
                       group.kind == kernels::OptimizerKind::kAdagrad ||
                       (group.kind == kernels::OptimizerKind::kSgd && !group.decoupled_decay);
  if (group.scheduled_decay && couples) {
    fail_config("parameter group ", group.name, ": scheduled_decay needs decoupled decay, which ",
                kernels::optimizer_name(group.kind), " does not have here",
                group.kind == kernels::OptimizerKind::kSgd ? "; set decoupled_decay" : "");
  }
  if (!std::isfinite(group.dampening)) {
    fail_config("parameter group ", group.name, ": dampening must be finite, got ",
                group.dampening);
  }
}

std::string describe(const ParamGroup& group) {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  text << group.name << ": " << kernels::optimizer_name(group.kind) << " lr " << group.lr
       << " initial_lr " << group.initial_lr << " betas " << group.beta1 << " " << group.beta2
       << " eps " << group.eps << " weight_decay " << group.weight_decay << " momentum "
       << group.momentum << " dampening " << group.dampening << " nesterov " << group.nesterov
       << " decoupled_decay " << group.decoupled_decay << " scheduled_decay "
       << group.scheduled_decay << " lr_decay " << group.lr_decay << " bias_correction "
       << group.bias_correction;
  return text.str();
}

}  // namespace zerosharp
