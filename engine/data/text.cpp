#include "engine/data/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "kernels/error.h"

namespace zerosharp {
namespace {

/// All bytes of the file that configuration key `key` names.
std::string read_file(const std::string& path, const char* key) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    fail_config(key, ": the text file ", path, " does not exist; check ", key);
  }
  if (std::filesystem::is_directory(status)) {
    fail_config(key, ": ", path, " is a folder; name a text file (or a list of them)");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_config(key, ": the text file ", path, " cannot be opened for reading");
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) fail_config(key, ": reading ", path, " failed");
  if (text.empty()) fail_config(key, ": the text file ", path, " is empty");
  return text;
}

}  // namespace

TextDataset::TextDataset(const DataConfig& config, int64_t block_size) : block_size_(block_size) {
  if (config.paths.empty()) {
    fail_config("data.path is missing; name the text file(s) to train on");
  }
  const bool separate = !config.test_path.empty();
  for (const std::string& path : config.paths) {
    add_file(path, "data.path", separate ? 0.0 : config.validation_fraction);
  }
  if (separate) add_file(config.test_path, "data.test_path", 1.0);
  for (const Range& range : train_ranges_) add_windows(range, train_starts_);
  for (const Range& range : eval_ranges_) add_windows(range, eval_starts_);
  const bool wants_eval = separate || config.validation_fraction > 0;
  if (train_starts_.empty() || (wants_eval && eval_starts_.empty())) {
    fail_config("data.path: ", config.paths.front(), " gives ", num_train_bytes_,
                " training bytes and ", num_eval_bytes_, " evaluation bytes, but model.block_size ",
                block_size, " needs at least ", block_size + 1,
                " of each; use more text or a smaller block");
  }
}

void TextDataset::add_file(const std::string& path, const char* key, double eval_fraction) {
  const std::string text = read_file(path, key);
  const auto size = static_cast<int64_t>(text.size());
  if (size < block_size_ + 1) {
    fail_config(key, ": ", path, " has ", size, " bytes but model.block_size ", block_size_,
                " needs at least ", block_size_ + 1, "; use more text or a smaller block");
  }
  const auto kept = static_cast<int64_t>(static_cast<double>(size) * eval_fraction);
  const auto begin = static_cast<int64_t>(bytes_.size());
  bytes_ += text;
  if (kept < size) train_ranges_.push_back({begin, begin + size - kept});
  if (kept > 0) eval_ranges_.push_back({begin + size - kept, begin + size});
  num_train_bytes_ += size - kept;
  num_eval_bytes_ += kept;
}

void TextDataset::add_windows(Range range, std::vector<int64_t>& starts) const {
  for (int64_t start = range.begin; start + block_size_ + 1 <= range.end; start += block_size_) {
    starts.push_back(start);
  }
}

void TextDataset::train_window(int64_t index, int64_t* inputs, int64_t* targets) const {
  copy_window(train_starts_.at(static_cast<size_t>(index)), inputs, targets);
}

void TextDataset::eval_window(int64_t index, int64_t* inputs, int64_t* targets) const {
  copy_window(eval_starts_.at(static_cast<size_t>(index)), inputs, targets);
}

void TextDataset::copy_window(int64_t start, int64_t* inputs, int64_t* targets) const {
  const auto* text = reinterpret_cast<const unsigned char*>(bytes_.data()) + start;
  for (int64_t i = 0; i < block_size_; ++i) {
    inputs[i] = text[i];
    targets[i] = text[i + 1];
  }
}

double TextDataset::unigram_loss() const {
  if (num_eval_bytes_ == 0) return std::numeric_limits<double>::quiet_NaN();
  std::array<double, 256> counts;
  counts.fill(1.0);
  double total = 256.0;
  for (const Range& range : train_ranges_) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      ++counts[static_cast<unsigned char>(bytes_[static_cast<size_t>(i)])];
    }
    total += static_cast<double>(range.end - range.begin);
  }
  double nats = 0;
  for (const Range& range : eval_ranges_) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      nats -= std::log(counts[static_cast<unsigned char>(bytes_[static_cast<size_t>(i)])] / total);
    }
  }
  return nats / static_cast<double>(num_eval_bytes_);
}

std::string TextDataset::eval_text(int64_t bytes) const {
  const Range range = eval_ranges_.empty() ? train_ranges_.front() : eval_ranges_.front();
  const int64_t count = std::min(bytes, range.end - range.begin);
  return bytes_.substr(static_cast<size_t>(range.begin), static_cast<size_t>(count));
}

}  // namespace zerosharp
