#include "engine/train.h"

#include <torch/torch.h>

#include <cstdio>
#include <thread>

#include "engine/cli/signals.h"
#include "engine/config/sam_section.h"
#include "engine/models/gpt.h"
#include "engine/trainer.h"
#include "kernels/error.h"
#include "zero/comm/mpi_communicator.h"
#include "zero/comm/nccl_communicator.h"
#include "zero/device.h"
#include "zero/rendezvous.h"
#include "zero/tcp_store_exchange.h"

namespace zerosharp {
namespace {

constexpr const char* kVersion = ZEROSHARP_VERSION;

at::Device choose_device(const Config& config, const RankInfo& ranks) {
  if (config.train.device == "cpu") return at::Device(at::kCPU);
  if (config.train.device == "auto" && !cuda_usable()) return at::Device(at::kCPU);
  load_cuda_backend();
  if (config.offload_optimizer_device != "none") {
    fail_config("zero_optimization.offload_optimizer.device ", config.offload_optimizer_device,
                ": offload is not available on a GPU; use none");
  }
  const int visible = num_cuda_devices();
  // With one visible device a task (Slurm's --gpus-per-task) every rank uses number 0.
  const int index =
      visible == 1 && ranks.local_world_size > 1 && ranks.world_size > 1 ? 0 : ranks.local_rank;
  if (index >= visible) {
    fail_config("local rank ", ranks.local_rank, " has no GPU: ", visible,
                " are visible; start at most that many ranks on this machine");
  }
  set_cuda_device(index);
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

int choose_threads(const Config& config, const RankInfo& ranks) {
  if (config.train.threads > 0) return static_cast<int>(config.train.threads);
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return std::max(1, cores / ranks.local_world_size);
}

/// "in fp32", or "in fp32, sent in bf16".
std::string gradients_text(const OptimizerOptions& options) {
  std::string text = std::string("in ") + dtype_name(options.accumulator);
  const DType sent = options.communication.value_or(options.accumulator);
  if (sent != options.accumulator) text += std::string(", sent in ") + dtype_name(sent);
  return text;
}

std::string sam_text(const SamConfig& sam) {
  if (!sam.enabled) return "off";
  char text[128];
  std::snprintf(text, sizeof text, "%s, %s, rho %g, every %ld step(s)",
                sam_variant_name(sam.variant), sam_scope_name(sam.scope), sam.rho,
                static_cast<long>(sam.interval));
  return text;
}

void print_header(Engine& engine, const BatchSource& data, const Communicator& communicator,
                  const RankInfo& ranks, int threads) {
  const Config& config = engine.config();
  const MemoryBytes memory = engine.optimizer().memory();
  const int64_t sam_bytes = engine.sam() != nullptr ? engine.sam()->bytes() : 0;
  const auto number = [](int64_t value) { return std::to_string(value); };
  const std::string stage =
      config.zero_stage == 0 ? "0 (replicated)" : "1 (masters and optimizer states sharded)";
  std::printf(
      "zerosharp %s\n%s", kVersion,
      format_table(
          {
              {"config", config.source},
              {"ranks", number(communicator.size()) + " over " + communicator.name() + " (" +
                            ranks.how + "), " + number(threads) + " thread(s) each"},
              {"device", engine.optimizer().device().str()},
              {"model", config.model.type + ", " +
                            format_count(static_cast<double>(engine.optimizer().num_parameters())) +
                            " trainable parameters"},
              {"data", data.describe()},
              {"batch", number(config.batch.train_batch_size) + " = " +
                            number(config.batch.micro_batch_size) + " micro * " +
                            number(config.batch.accumulation_steps) + " accumulation * " +
                            number(communicator.size()) + " ranks"},
              {"precision", std::string(dtype_name(config.precision)) +
                                " working weights, fp32 master, gradients " +
                                gradients_text(engine.optimizer().options())},
              {"ZeRO stage", stage},
              {"optimizer", kernels::optimizer_name(config.optimizer.kind)},
              {"SAM", sam_text(config.sam)},
              {"bytes a rank", format_bytes(memory.weights) + " weights, " +
                                   format_bytes(memory.gradients) + " gradients, " +
                                   format_bytes(memory.master) + " master, " +
                                   format_bytes(memory.states) + " optimizer states" +
                                   (sam_bytes > 0 ? ", " + format_bytes(sam_bytes) + " SAM" : "")},
              {"steps", number(config.train.steps) + ", seed " + number(config.train.seed)},
          })
          .c_str());
  for (const auto& warning : config.warnings) std::printf("warning: %s\n", warning.c_str());
  for (const auto& note : engine.notes()) std::printf("note: %s\n", note.c_str());
  std::fflush(stdout);
}

void print_sample(Engine& engine, TrainableModel& model, const BatchSource& data) {
  auto* gpt = dynamic_cast<Gpt*>(&model);
  const int64_t length = engine.config().train.sample_length;
  if (gpt == nullptr || length == 0 || data.prompt().empty()) return;
  const auto scope = engine.eval();
  const std::string text = gpt->generate(data.prompt(), length, 0.8, engine.config().train.seed);
  std::printf("sample:\n%s\n", text.c_str());
}

}  // namespace

int train(const TrainArguments& arguments) {
  install_stop_signals();
  const RankInfo ranks = discover_ranks(environment_map(), arguments.ranks);
  const Config config = load_config(arguments.config, arguments.overrides, ranks.world_size);
  if (config.train.steps < 1 && !config.train.max_duration) {
    fail_config(config.source, ": train.steps is missing; say how many optimizer steps to train");
  }
  const int threads = choose_threads(config, ranks);
  at::set_num_threads(threads);
  set_num_threads(threads);
  const at::Device device = choose_device(config, ranks);

  // Whatever can be wrong with the data or the folder is found before ranks wait for each other.
  const auto data = open_batches(config, ranks.rank, ranks.world_size, device);
  std::unique_ptr<MetricsWriter> metrics;
  if (ranks.rank == 0 && !arguments.out.empty()) {
    metrics = std::make_unique<MetricsWriter>(arguments.out);
    metrics->write_config(config.resolved_json);
  }
  const auto communicator = connect(ranks, device.is_cuda(), tcp_store_exchange(ranks));

  const auto model = make_model(config.model, config.train.seed);
  model->to(device);
  torch::manual_seed(static_cast<uint64_t>(config.train.seed) * 1000003u +
                     static_cast<uint64_t>(ranks.rank));
  EngineOptions options;
  options.local_ranks = ranks.local_world_size;
  options.batches_per_epoch = data->num_train_samples() / config.batch.train_batch_size;
  options.tokens_per_sample = data->tokens_per_sample();
  Engine engine(model, config, *communicator, std::move(options));
  if (ranks.rank == 0) print_header(engine, *data, *communicator, ranks, threads);
  Trainer trainer(engine, *model, *data, *communicator, std::move(metrics));
  trainer.run();
  if (ranks.rank == 0 && trainer.stopped_by() == 0) print_sample(engine, *model, *data);
  return trainer.stopped_by() == 0 ? 0 : 128 + trainer.stopped_by();
}

std::string version_text() {
  return std::string("zerosharp ") + kVersion + "\n" +
         format_table({{"LibTorch", TORCH_VERSION},
                       {"compiler", __VERSION__},
                       {"CUDA", built_with_cuda() ? "yes" : "no"},
                       {"NCCL", built_with_nccl() ? "yes" : "no"},
                       {"MPI", built_with_mpi() ? "yes" : "no"}});
}

}  // namespace zerosharp
