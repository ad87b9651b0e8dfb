// What a run leaves behind in its --out folder.
#pragma once
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace zerosharp {

/// One line of metrics.jsonl; field names are those of the file.
struct StepRecord {
  int64_t step = 0;  ///< 1 for the first
  double loss = 0;   ///< nats
  double lr = 0;
  double grad_norm = 0;  ///< before clipping
  int64_t tokens = 0;    ///< seen so far over all ranks
  double step_ms = 0;
  double tokens_per_s = 0;
  int64_t rss_bytes = 0;
  int64_t device_bytes = 0;
  int64_t skipped = 0;  ///< skipped steps so far
  double loss_scale = 1;
  struct Sam {
    double rho = 0;
    double e_norm = 0;
    double loss_perturbed = 0;
    double moved = 0;              ///< share of working weights that changed
    double efficacy = 0;           ///< (L(w+e) − L(w)) / ⟨g, e⟩
    double realised = 0;           ///< ‖change of the working weights‖ / ρ
    std::optional<double> cosine;  ///< of the two passes' gradients
  };
  std::optional<Sam> sam;
};

/// Figures of the whole run for summary.json.
struct RunSummary {
  int64_t steps = 0;
  int64_t skipped = 0;
  int64_t tokens = 0;
  double seconds = 0;
  double seconds_to_first_step = 0;  ///< from process start
  double median_step_ms = 0;
  double final_loss = 0;
  std::optional<double> eval_loss;
  std::optional<double> unigram_loss;
  int64_t num_parameters = 0;
  std::vector<int64_t> peak_rss_bytes_per_rank;
  int64_t state_bytes = 0;  ///< weights, gradients, master and states of this rank
};

/// Writes into `folder` (made if needed): metrics.jsonl line by line, config.json and summary.json
/// by a temporary name and a rename. Infinite and NaN figures become null and "nan": true is added.
class MetricsWriter {
 public:
  /// Throws ConfigError naming the folder and the reason if it cannot be written.
  explicit MetricsWriter(const std::string& folder);

  void write_config(const std::string& json);
  void write_step(const StepRecord& record);
  void write_eval(int64_t step, double loss);
  void write_summary(const RunSummary& summary);

 private:
  void write_file(const std::string& name, const std::string& text);
  void write_line(const std::string& json);

  std::string folder_;
  std::ofstream metrics_;
};

}  // namespace zerosharp
