#include "engine/data/batches.h"

#include <torch/torch.h>

#include <limits>

#include "engine/data/fashion_mnist.h"
#include "engine/data/sampler.h"
#include "engine/data/text.h"
#include "kernels/error.h"

namespace zerosharp {
namespace {

Sampler make_sampler(const Config& config, int64_t num_samples, int rank, int world) {
  return Sampler(num_samples, config.batch.train_batch_size, rank, world,
                 config.batch.micro_batch_size, config.batch.accumulation_steps,
                 static_cast<uint64_t>(config.train.seed), config.data.shuffle);
}

/// Samples of evaluation batch `index` on `rank`: consecutive, ranks side by side, wrapping around.
std::vector<int64_t> eval_indices(int64_t index, int64_t count, int rank, int world,
                                  int64_t num_samples) {
  if (num_samples == 0) {
    fail_config("nothing is kept for evaluation: data.validation_fraction is 0 and ",
                "data.test_path is not set; set one of them");
  }
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < count; ++i) {
    samples.push_back(((index * world + rank) * count + i) % num_samples);
  }
  return samples;
}

class TextBatches final : public BatchSource {
 public:
  TextBatches(const Config& config, int rank, int world, at::Device device)
      : text_(config.data, config.model.block_size),
        sampler_(make_sampler(config, text_.num_train_windows(), rank, world)),
        rank_(rank),
        world_(world),
        micro_batch_(config.batch.micro_batch_size),
        block_size_(config.model.block_size),
        device_(device) {
    if (config.model.vocab_size < 256) {
      fail_config("model.vocab_size must be at least 256 for data.type text (bytes), got ",
                  config.model.vocab_size);
    }
  }

  Batch train_batch(int64_t step, int64_t micro) override {
    return fill(sampler_.indices(step, micro), /*train=*/true);
  }
  Batch eval_batch(int64_t index) override {
    return fill(eval_indices(index, micro_batch_, rank_, world_, text_.num_eval_windows()),
                /*train=*/false);
  }
  int64_t num_train_samples() const override { return text_.num_train_windows(); }
  int64_t num_eval_samples() const override { return text_.num_eval_windows(); }
  int64_t tokens_per_sample() const override { return block_size_; }
  std::string describe() const override {
    return std::to_string(text_.num_train_bytes()) + " training bytes (" +
           std::to_string(text_.num_train_windows()) + " windows of " +
           std::to_string(block_size_) + "), " + std::to_string(text_.num_eval_bytes()) +
           " evaluation bytes";
  }
  double baseline_loss() const override { return text_.unigram_loss(); }
  std::string prompt() const override { return text_.eval_text(16); }

 private:
  Batch fill(const std::vector<int64_t>& samples, bool train) {
    const auto options = at::TensorOptions().dtype(at::kLong).pinned_memory(device_.is_cuda());
    at::Tensor pair = at::empty({2, static_cast<int64_t>(samples.size()), block_size_}, options);
    int64_t* inputs = pair.data_ptr<int64_t>();
    int64_t* targets = inputs + pair.stride(0);
    for (const int64_t sample : samples) {
      train ? text_.train_window(sample, inputs, targets)
            : text_.eval_window(sample, inputs, targets);
      inputs += block_size_;
      targets += block_size_;
    }
    pair = pair.to(device_, /*non_blocking=*/true);
    return {pair.select(0, 0), pair.select(0, 1)};
  }

  TextDataset text_;
  Sampler sampler_;
  int rank_, world_;
  int64_t micro_batch_, block_size_;
  at::Device device_;
};

class ArrayBatches final : public BatchSource {
 public:
  ArrayBatches(Batch train, Batch eval, std::string description, const Config& config, int rank,
               int world)
      : train_(std::move(train)),
        eval_(std::move(eval)),
        description_(std::move(description)),
        sampler_(make_sampler(config, train_.inputs.size(0), rank, world)),
        rank_(rank),
        world_(world),
        micro_batch_(config.batch.micro_batch_size) {}

  Batch train_batch(int64_t step, int64_t micro) override {
    return pick(train_, sampler_.indices(step, micro));
  }
  Batch eval_batch(int64_t index) override {
    return pick(eval_, eval_indices(index, micro_batch_, rank_, world_, num_eval_samples()));
  }
  int64_t num_train_samples() const override { return train_.inputs.size(0); }
  int64_t num_eval_samples() const override { return eval_.inputs.size(0); }
  int64_t tokens_per_sample() const override { return 1; }
  std::string describe() const override { return description_; }
  double baseline_loss() const override { return std::numeric_limits<double>::quiet_NaN(); }
  std::string prompt() const override { return {}; }

 private:
  static Batch pick(const Batch& from, const std::vector<int64_t>& samples) {
    const at::Tensor index = at::tensor(samples).to(from.inputs.device());
    return {from.inputs.index_select(0, index), from.targets.index_select(0, index)};
  }

  Batch train_, eval_;
  std::string description_;
  Sampler sampler_;
  int rank_, world_;
  int64_t micro_batch_;
};

Batch image_tensors(const LabelledImages& images, at::Device device) {
  at::Tensor pixels = at::empty({images.count, 1, images.rows, images.columns}, at::kByte);
  std::copy(images.pixels.begin(), images.pixels.end(), pixels.data_ptr<uint8_t>());
  at::Tensor labels = at::empty({images.count}, at::kByte);
  std::copy(images.labels.begin(), images.labels.end(), labels.data_ptr<uint8_t>());
  return {pixels.to(device).to(at::kFloat).div_(255.0), labels.to(device).to(at::kLong)};
}

}  // namespace

std::unique_ptr<BatchSource> open_batches(const Config& config, int rank, int world,
                                          at::Device device) {
  if (config.data.type == "text") {
    return std::make_unique<TextBatches>(config, rank, world, device);
  }
  if (config.data.paths.size() != 1) {
    fail_config("data.path must name the one folder that holds the Fashion-MNIST files");
  }
  const LabelledImages train = read_fashion_mnist(config.data.paths.front(), true);
  const LabelledImages test = read_fashion_mnist(config.data.paths.front(), false);
  const std::string description = std::to_string(train.count) + " training images, " +
                                  std::to_string(test.count) + " evaluation images";
  return std::make_unique<ArrayBatches>(image_tensors(train, device), image_tensors(test, device),
                                        description, config, rank, world);
}

std::unique_ptr<BatchSource> array_batches(at::Tensor inputs, at::Tensor targets,
                                           const Config& config, int rank, int world) {
  if (inputs.size(0) != targets.size(0)) {
    fail_shape("array_batches: ", inputs.size(0), " inputs but ", targets.size(0), " targets");
  }
  const std::string description = std::to_string(inputs.size(0)) + " samples in memory";
  return std::make_unique<ArrayBatches>(Batch{inputs, targets}, Batch{inputs, targets}, description,
                                        config, rank, world);
}

}  // namespace zerosharp
