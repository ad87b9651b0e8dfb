#include "engine/lr_scheduler.h"

#include <algorithm>
#include <utility>

namespace zerosharp {

LrScheduler::LrScheduler(ParamGroups& groups, const SchedulerConfig& config,
                         std::optional<ComposerSchedule> composer)
    : groups_(groups), config_(config), composer_(std::move(composer)) {
  update(0);
}

void LrScheduler::update(int64_t applied) {
  const int64_t batch = config_.composer_lag ? std::max<int64_t>(0, applied - 1) : applied;
  for (ParamGroup& group : groups_) {
    if (composer_) {
      group.lr = group.initial_lr * composer_->multiplier(batch);
      continue;
    }
    const ScheduledValue value = scheduled_value(config_, batch, group.initial_lr);
    group.lr = value.lr;
    if (value.sets_beta1) group.beta1 = value.beta1;
  }
}

}  // namespace zerosharp
