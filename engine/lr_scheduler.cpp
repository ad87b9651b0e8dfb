#include "engine/lr_scheduler.h"

namespace zerosharp {

LrScheduler::LrScheduler(ParamGroups& groups, const SchedulerConfig& config)
    : groups_(groups), config_(config) {
  update(0);
}

void LrScheduler::update(int64_t applied) {
  for (ParamGroup& group : groups_) {
    const ScheduledValue value = scheduled_value(config_, applied, group.initial_lr);
    group.lr = value.lr;
    if (value.sets_beta1) group.beta1 = value.beta1;
  }
}

}  // namespace zerosharp
