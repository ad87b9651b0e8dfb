// The loop of a run: steps, evaluation, progress and metrics.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/batches.h"
#include "engine/engine.h"
#include "engine/models/model.h"
#include "engine/monitor/metrics_writer.h"
#include "engine/monitor/progress.h"

namespace zerosharp {

/// Trains one model on one source with an engine. Rank 0 reports; the others keep silent.
class Trainer {
 public:
  /// `metrics` may be null.
  Trainer(Engine& engine, TrainableModel& model, BatchSource& data, Communicator& communicator,
          std::unique_ptr<MetricsWriter> metrics);

  /// Runs train.steps steps, or fewer if a signal asks to stop (all ranks stop after the same
  /// step). Throws Error if the loss of the very first step is not finite.
  void run();

  /// Mean loss over train.eval_batches micro-batches a rank, weights unperturbed. Collective.
  double evaluate();
  /// The signal that ended run() early, or 0.
  int stopped_by() const noexcept { return stopped_by_; }

 private:
  void train_step(int64_t step);
  StepRecord record(double step_ms);
  void report_step(const StepRecord& record);
  void report_eval(int64_t step);
  bool should_stop();
  void finish(double seconds);
  std::vector<int64_t> peak_rss_of_ranks();
  bool leads() const { return comm_.rank() == 0; }

  Engine& engine_;
  TrainableModel& model_;
  BatchSource& data_;
  Communicator& comm_;
  std::unique_ptr<MetricsWriter> metrics_;
  Progress progress_;
  std::vector<double> step_ms_;
  double seconds_to_first_step_ = 0;
  std::optional<double> eval_loss_;
  int stopped_by_ = 0;
};

}  // namespace zerosharp
