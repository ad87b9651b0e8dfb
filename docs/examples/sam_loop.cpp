// SAM in a loop of one's own (docs/sam.md): the step in parts, where the loop keeps both passes in
// its own hands, and the step with a closure, side by side on two ranks. Ends with 0 if the loss
// has fallen.
#include <torch/torch.h>

#include <cstdio>
#include <vector>

#include "engine/engine.h"
#include "zero/comm/thread_communicator.h"

const char* const kConfig = R"({
  "train_batch_size": 64, "gradient_accumulation_steps": 2,
  "bf16": {"enabled": true}, "zero_optimization": {"stage": 1},
  "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
  "sam": {"enabled": true, "rho": 0.05, "scope": "global"}})";

void train(zerosharp::Communicator& ranks, double& first_loss, double& last_loss) {
  const auto config = zerosharp::parse_config(kConfig, "inline", {}, ranks.size());
  torch::nn::Sequential net(torch::nn::Linear(4, 32), torch::nn::ReLU(), torch::nn::Linear(32, 1));
  zerosharp::Engine engine(net.ptr(), config, ranks);  // every rank has rank 0's weights now
  auto source = at::detail::createCPUGenerator(7 + static_cast<uint64_t>(ranks.rank()));

  for (int number = 0; number < 80; ++number) {
    // Both passes need the same data, so it is drawn before the step and not inside it.
    std::vector<at::Tensor> batch;
    for (int64_t i = 0; i < config.batch.accumulation_steps; ++i) {
      batch.push_back(at::randn({config.batch.micro_batch_size, 4}, source));
    }
    const auto loss_of = [&](int64_t i) {
      const at::Tensor& x = batch[static_cast<size_t>(i)];
      const at::Tensor y = net->forward(x.to(at::kBFloat16)).to(at::kFloat);
      return at::mse_loss(y, x.sum(1, /*keepdim=*/true));
    };

    if (number % 2 == 0) {
      zerosharp::SplitStep step = engine.begin_ascent();
      for (int64_t i = 0; i < step.micro_batches(); ++i) step.backward(loss_of(i));
      if (step.end_ascent()) {  // weights are w + e now: every micro-batch again
        for (int64_t i = 0; i < config.batch.accumulation_steps; ++i) step.backward(loss_of(i));
      }
      step.finish();  // the update, from the clean masters
    } else {
      engine.train_batch(loss_of);  // the same
    }

    const zerosharp::StepOutcome& done = engine.report().outcome;  // equal on all ranks
    if (ranks.rank() == 0) (number == 0 ? first_loss : last_loss) = done.loss;
    if (ranks.rank() != 0 || number % 20 != 0) continue;
    std::printf("step %d  loss %.4f  at w + e %.4f  expected rise %.4f\n", number, done.loss,
                done.loss_perturbed, done.expected_gap);
  }
}

int main() {
  double first = 0, last = 0;
  zerosharp::run_thread_ranks(2, [&](auto& ranks) { train(ranks, first, last); });
  return last < 0.1 * first ? 0 : 1;
}
