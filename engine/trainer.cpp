#include "engine/trainer.h"

#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "engine/cli/signals.h"
#include "engine/models/gpt.h"
#include "engine/monitor/process_memory.h"
#include "kernels/error.h"
#include "zero/device.h"

namespace zerosharp {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Ranks that a launcher started write lines, even where mpirun gives them a terminal.
bool draws_in_place() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_STEP_ID", "RANK"}) {
    if (std::getenv(name) != nullptr) return false;
  }
  return isatty(STDOUT_FILENO) != 0;
}

}  // namespace

Trainer::Trainer(Engine& engine, TrainableModel& model, BatchSource& data,
                 Communicator& communicator, std::unique_ptr<MetricsWriter> metrics)
    : engine_(engine),
      model_(model),
      data_(data),
      comm_(communicator),
      metrics_(std::move(metrics)),
      progress_(engine.config().train.steps, engine.config().train.log_interval, draws_in_place()) {
}

void Trainer::run() {
  const TrainConfig& train = engine_.config().train;
  const auto start = Clock::now();
  model_.train();
  int64_t step = 1;
  for (; step <= train.steps && !should_stop(); ++step) {
    train_step(step);
    const bool evaluates = train.eval_interval > 0 && step % train.eval_interval == 0;
    if (evaluates && step < train.steps) report_eval(step);
  }
  report_eval(step - 1);
  finish(milliseconds_since(start) / 1000.0);
}

void Trainer::train_step(int64_t step) {
  const auto start = Clock::now();
  engine_.train_batch([&](int64_t micro) {
    const Batch batch = data_.train_batch(step - 1, micro);
    return model_.loss(batch.inputs, batch.targets);
  });
  const double loss = engine_.report().outcome.loss;
  const double step_ms = milliseconds_since(start);
  if (step == 1) {
    seconds_to_first_step_ = process_age_seconds();
    if (!std::isfinite(loss)) {
      fail<Error>("the loss of the first step is ", loss,
                  "; no weight was changed. Check the data, model and precision settings");
    }
  }
  step_ms_.push_back(step_ms);
  if (leads()) report_step(record(step_ms));
  for (const std::string& warning : engine_.take_warnings()) {
    if (leads()) progress_.note("warning: " + warning);
  }
}

StepRecord Trainer::record(double step_ms) {
  const StepReport& report = engine_.report();
  const StepOutcome& outcome = report.outcome;
  const int64_t tokens_per_step =
      engine_.config().batch.train_batch_size * data_.tokens_per_sample();
  StepRecord r;
  r.step = report.step;
  r.loss = outcome.loss;
  r.lr = report.lr;
  r.grad_norm = outcome.grad_norm;
  r.tokens = report.step * tokens_per_step;
  r.step_ms = step_ms;
  r.tokens_per_s = static_cast<double>(tokens_per_step) / step_ms * 1000.0;
  r.rss_bytes = rss_bytes();
  r.device_bytes = device_bytes_in_use(engine_.optimizer().device());
  r.skipped = engine_.skipped_steps();
  r.loss_scale = report.loss_scale;
  if (outcome.perturbed) {
    StepRecord::Sam sam;
    sam.rho = outcome.rho;
    sam.e_norm = outcome.e_norm;
    sam.loss_perturbed = outcome.loss_perturbed;
    sam.moved = outcome.moved;
    sam.efficacy = outcome.expected_gap > 0
                       ? (outcome.loss_perturbed - outcome.loss) / outcome.expected_gap
                       : 0.0;
    sam.realised = outcome.rho > 0 ? outcome.realised_norm / outcome.rho : 0.0;
    if (std::isfinite(outcome.cosine)) sam.cosine = outcome.cosine;
    r.sam = sam;
  }
  return r;
}

void Trainer::report_step(const StepRecord& record) {
  if (!engine_.report().outcome.applied) {
    progress_.note("step " + std::to_string(record.step) +
                   ": skipped on all ranks, a loss or gradient was not finite (skipped so far: " +
                   std::to_string(record.skipped) + ")");
  }
  progress_.show(record);
  if (metrics_) metrics_->write_step(record);
}

double Trainer::evaluate() {
  const auto scope = engine_.eval();
  double sums[2] = {0, 0};  // losses, batches
  for (int64_t i = 0; i < engine_.config().train.eval_batches; ++i) {
    const Batch batch = data_.eval_batch(i);
    sums[0] += model_.loss(batch.inputs, batch.targets).item<double>();
    sums[1] += 1;
  }
  const auto device = engine_.optimizer().device();
  at::Tensor shared = at::tensor({sums[0], sums[1]}, at::kDouble).to(device);
  comm_.all_reduce(span_of(shared), ReduceOp::kSum, current_stream(device));
  shared = shared.cpu();
  return shared[0].item<double>() / shared[1].item<double>();
}

void Trainer::report_eval(int64_t step) {
  if (data_.num_eval_samples() == 0) return;  // data.validation_fraction 0: equal on all ranks
  eval_loss_ = evaluate();
  if (!leads()) return;
  char text[160];
  std::snprintf(text, sizeof text, "step %ld: evaluation loss %.4f", static_cast<long>(step),
                *eval_loss_);
  std::string line = text;
  if (std::isfinite(data_.baseline_loss())) {
    std::snprintf(text, sizeof text, " (a unigram model has %.4f)", data_.baseline_loss());
    line += text;
  }
  progress_.note(line);
  if (metrics_) metrics_->write_eval(step, *eval_loss_);
}

bool Trainer::should_stop() {
  int64_t signal = stop_signal();
  if (comm_.size() > 1) {
    // A signal may reach one rank before the others: all must stop after the same step.
    const auto device = engine_.optimizer().device();
    at::Tensor shared = at::full({1}, signal, at::kLong).to(device);
    comm_.all_reduce(span_of(shared), ReduceOp::kMax, current_stream(device));
    signal = shared.item<int64_t>();
  }
  stopped_by_ = static_cast<int>(signal);
  return signal != 0;
}

std::vector<int64_t> Trainer::peak_rss_of_ranks() {
  const auto device = engine_.optimizer().device();
  at::Tensor peaks = at::zeros({comm_.size()}, at::kLong);
  peaks[comm_.rank()] = peak_rss_bytes();
  peaks = peaks.to(device);
  comm_.all_reduce(span_of(peaks), ReduceOp::kSum, current_stream(device));
  peaks = peaks.cpu();
  return {peaks.data_ptr<int64_t>(), peaks.data_ptr<int64_t>() + comm_.size()};
}

void Trainer::finish(double seconds) {
  const auto peaks = peak_rss_of_ranks();
  if (!leads()) return;
  RunSummary summary;
  summary.steps = engine_.global_steps();
  summary.skipped = engine_.skipped_steps();
  summary.tokens = engine_.global_samples() * data_.tokens_per_sample();
  summary.seconds = seconds;
  summary.seconds_to_first_step = seconds_to_first_step_;
  summary.median_step_ms = median(step_ms_);
  summary.final_loss = engine_.report().outcome.loss;
  summary.eval_loss = eval_loss_;
  if (std::isfinite(data_.baseline_loss())) summary.unigram_loss = data_.baseline_loss();
  summary.num_parameters = engine_.optimizer().num_parameters();
  summary.peak_rss_bytes_per_rank = peaks;
  summary.state_bytes = engine_.optimizer().memory().total();
  if (engine_.sam() != nullptr) summary.state_bytes += engine_.sam()->bytes();
  progress_.note("done: " + std::to_string(summary.steps) + " steps, " +
                 format_count(static_cast<double>(summary.tokens)) + " tokens in " +
                 format_duration(seconds) + ", median step " +
                 std::to_string(static_cast<long>(summary.median_step_ms)) + " ms, peak memory " +
                 format_bytes(*std::max_element(peaks.begin(), peaks.end())) + " a rank, " +
                 std::to_string(summary.skipped) + " skipped steps");
  if (metrics_) metrics_->write_summary(summary);
}

}  // namespace zerosharp
