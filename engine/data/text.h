// Text files as streams of bytes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/config.h"

namespace zerosharp {

/// Bytes of one or several files with the end of each kept for evaluation. A window is block_size
/// bytes and the byte after each; windows do not overlap and do not cross a split.
class TextDataset {
 public:
  /// Throws ConfigError naming the file, its size and the key: missing, empty, a folder, or too
  /// short for one window of training and (unless nothing is kept) of evaluation.
  TextDataset(const DataConfig& config, int64_t block_size);

  int64_t num_train_windows() const noexcept { return static_cast<int64_t>(train_starts_.size()); }
  int64_t num_eval_windows() const noexcept { return static_cast<int64_t>(eval_starts_.size()); }
  int64_t num_train_bytes() const noexcept { return num_train_bytes_; }
  int64_t num_eval_bytes() const noexcept { return num_eval_bytes_; }

  /// Writes block_size inputs and block_size targets (the byte after each input). Throws
  /// std::out_of_range for an index that is no window.
  void train_window(int64_t index, int64_t* inputs, int64_t* targets) const;
  void eval_window(int64_t index, int64_t* inputs, int64_t* targets) const;

  /// Cross entropy in nats a byte of the evaluation bytes under the training bytes' frequencies
  /// (add one to each of the 256 counts): what a model learns that looks at no context. NaN if
  /// nothing is kept for evaluation.
  double unigram_loss() const;
  /// Up to `bytes` first bytes of the evaluation part, for a prompt; of the training part if
  /// nothing is kept for evaluation.
  std::string eval_text(int64_t bytes) const;

 private:
  struct Range {
    int64_t begin, end;
  };

  void add_file(const std::string& path, const char* key, double eval_fraction);
  void add_windows(Range range, std::vector<int64_t>& starts) const;
  void copy_window(int64_t start, int64_t* inputs, int64_t* targets) const;

  int64_t block_size_;
  std::string bytes_;
  std::vector<Range> train_ranges_, eval_ranges_;
  std::vector<int64_t> train_starts_, eval_starts_;
  int64_t num_train_bytes_ = 0;
  int64_t num_eval_bytes_ = 0;
};

}  // namespace zerosharp
