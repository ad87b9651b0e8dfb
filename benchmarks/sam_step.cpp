// Claim: a step of SAM costs a second forward and backward pass and next to nothing more. The limit
// is made of the base optimizer's own step, measured in the same run: (2·pass + update) / (pass +
// update). Methods take turns, one step each, on the model of the main job with random tokens; a
// ratio is the median over rounds of (step / base's step of the same round).
//
//   bench_sam_step [RANKS] [ROUNDS] [CONFIG]       ranks are threads; prints JSON
#include <malloc.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/models/model.h"
#include "kernels/stream.h"
#include "zero/comm/thread_communicator.h"

namespace {

using namespace zerosharp;
using Clock = std::chrono::steady_clock;

constexpr int kWarmUpRounds = 3;
constexpr int64_t kSamples = 16;  // a rank and step

struct Method {
  const char* name;
  size_t base;  // index of the method its ratio is taken to
  int64_t accumulation;
  std::vector<std::string> overrides;
};

std::vector<Method> methods() {
  const std::vector<std::string> off = {"sam.enabled=false"};
  return {{"base", 0, 1, off},
          {"base, 2 micro-batches", 1, 2, off},
          {"sam global", 0, 1, {}},
          {"sam local", 0, 1, {"sam.scope=local"}},
          {"sam interval 10", 0, 1, {"sam.interval=10"}},
          {"sam, 2 micro-batches", 1, 2, {}},
          {"sam ascent_fraction 0.5", 1, 2, {"sam.ascent_fraction=0.5"}},
          {"sam params norm", 0, 1, {"sam.params=[\"norm\"]"}},
          {"msam", 0, 1, {"sam.variant=msam"}},
          {"gsam", 0, 1, {"sam.variant=gsam"}},
          {"looksam 5", 0, 1, {"sam.variant=looksam"}}};
}

/// Milliseconds of one step and of its parts.
struct Times {
  double first_pass = 0, ascent = 0, second_pass = 0, update = 0;
  bool twice = false;

  double total() const { return first_pass + ascent + second_pass + update; }
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// One rank's engine of one method.
class Run {
 public:
  Run(const Config& config, Communicator& ranks)
      : config_(config),
        ranks_(ranks),
        model_(make_model(config.model, config.train.seed)),
        engine_(model_, config, ranks) {}

  Times step(const at::Tensor& tokens) {
    Times times;
    ranks_.barrier();
    auto since = Clock::now();
    const auto lap = [&since] {
      const auto now = Clock::now();
      return std::chrono::duration<double, std::milli>(now - std::exchange(since, now)).count();
    };
    SplitStep step = engine_.begin_ascent();
    pass(step, tokens, step.micro_batches());
    times.first_pass = lap();
    times.twice = step.end_ascent();
    times.ascent = lap();
    if (times.twice) pass(step, tokens, config_.batch.accumulation_steps);
    times.second_pass = lap();
    step.finish();
    times.update = lap();
    return times;
  }

 private:
  void pass(SplitStep& step, const at::Tensor& tokens, int64_t micro_batches) {
    const int64_t size = config_.batch.micro_batch_size;
    const int64_t time = config_.model.block_size;
    for (int64_t i = 0; i < micro_batches; ++i) {
      const at::Tensor rows = tokens.narrow(0, i * size, size);
      step.backward(
          model_->loss(rows.narrow(1, 0, time).contiguous(), rows.narrow(1, 1, time).contiguous()));
    }
  }

  Config config_;
  Communicator& ranks_;
  std::shared_ptr<TrainableModel> model_;
  Engine engine_;
};

/// Rank 0's times by method and round.
std::vector<std::vector<Times>> measure(const std::string& path, int world, int rounds) {
  const std::vector<Method> all = methods();
  std::vector<std::vector<Times>> table(all.size());
  run_thread_ranks(world, [&](Communicator& ranks) {
    at::set_num_threads(1);
    std::vector<std::unique_ptr<Run>> runs;
    for (const Method& method : all) {
      std::vector<std::string> overrides = method.overrides;
      overrides.push_back("train_batch_size=" + std::to_string(kSamples * world));
      overrides.push_back("gradient_accumulation_steps=" + std::to_string(method.accumulation));
      runs.push_back(std::make_unique<Run>(load_config(path, overrides, world), ranks));
    }
    const ModelConfig model = load_config(path, {}, world).model;
    auto source = at::detail::createCPUGenerator(100 + static_cast<uint64_t>(ranks.rank()));
    for (int round = -kWarmUpRounds; round < rounds; ++round) {
      const at::Tensor tokens =
          at::randint(0, model.vocab_size, {kSamples, model.block_size + 1}, source, at::kLong);
      for (size_t turn = 0; turn < runs.size(); ++turn) {  // no method is always after the same one
        const size_t which = (turn + static_cast<size_t>(round + kWarmUpRounds)) % runs.size();
        const Times times = runs[which]->step(tokens);
        if (ranks.rank() == 0 && round >= 0) table[which].push_back(times);
      }
    }
  });
  return table;
}

/// `value` to the nearest of `steps` steps in one.
double rounded(double value, double steps) { return std::round(value * steps) / steps; }

template <class Value>
double median_of(const std::vector<Times>& times, bool twice, Value value) {
  std::vector<double> values;
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i].twice == twice) values.push_back(value(i));
  }
  return median(std::move(values));
}

/// Means over one-pass and two-pass steps of the medians of each kind, so that a method that
/// perturbs now and then is not taken for its commoner step.
nlohmann::ordered_json row(const Method& method, const std::vector<std::vector<Times>>& table,
                           size_t index) {
  const std::vector<Times>& own = table[index];
  const std::vector<Times>& base = table[method.base];
  double share = 0;
  for (const Times& times : own) share += times.twice ? 1.0 / static_cast<double>(own.size()) : 0.0;
  const auto mean = [&](const auto& value) {
    return share * median_of(own, true, value) + (1 - share) * median_of(own, false, value);
  };
  const auto part = [&](double Times::*which) {
    return rounded(mean([&](size_t i) { return own[i].*which; }), 100);
  };
  const double pass = median_of(base, false, [&](size_t i) { return base[i].first_pass; });
  const double update =
      median_of(base, false, [&](size_t i) { return base[i].total() - base[i].first_pass; });
  const double ratio = mean([&](size_t i) { return own[i].total() / base[i].total(); });
  const double limit = (2 * pass + update) / (pass + update);
  return {{"name", method.name},
          {"ms", rounded(mean([&](size_t i) { return own[i].total(); }), 100)},
          {"two_pass_share", rounded(share, 1000)},
          {"of_base", rounded(ratio, 1000)},
          {"two_passes_and_an_update_of_base", rounded(limit, 1000)},
          {"first_pass_ms", part(&Times::first_pass)},
          {"ascent_ms", part(&Times::ascent)},
          {"second_pass_ms", part(&Times::second_pass)},
          {"update_ms", part(&Times::update)}};
}

}  // namespace

int main(int argc, char** argv) {
  mallopt(M_MMAP_MAX, 0);  // as the program does
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  const int world = argc > 1 ? std::atoi(argv[1]) : 1;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 60;
  const std::string path = argc > 3 ? argv[3] : "configs/gpt-text.json";
  zerosharp::set_num_threads(1);
  try {
    const auto table = measure(path, world, rounds);
    const std::vector<Method> all = methods();
    nlohmann::ordered_json results = nlohmann::ordered_json::array();
    for (size_t i = 0; i < all.size(); ++i) results.push_back(row(all[i], table, i));
    const nlohmann::ordered_json report = {
        {"ranks", world}, {"rounds", rounds}, {"results", results}};
    std::printf("%s\n", report.dump(2).c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
