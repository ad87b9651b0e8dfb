// The hand-written loop of docs/custom-loops.md: a module of one's own, trained on two ranks with
// sharded AdamW and SAM.
#include <torch/torch.h>

#include <cstdio>

#include "engine/engine.h"
#include "zero/comm/thread_communicator.h"

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(4, 16));
    second = register_module("second", torch::nn::Linear(16, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::relu(first(x))); }
  torch::nn::Linear first = nullptr, second = nullptr;
};

int main() {
  const std::string json = R"({
    "train_batch_size": 32, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "sam": {"enabled": true, "rho": 0.05}})";
  double first_loss = 0, last_loss = 0;
  zerosharp::run_thread_ranks(2, [&](zerosharp::Communicator& ranks) {
    const auto config = zerosharp::parse_config(json, "inline", {}, ranks.size());
    torch::manual_seed(1);
    auto net = std::make_shared<Net>();
    zerosharp::Engine engine(net, config, ranks);
    auto data = at::detail::createCPUGenerator(100 + static_cast<uint64_t>(ranks.rank()));
    for (int step = 0; step < 60; ++step) {
      const at::Tensor x = at::randn({config.batch.micro_batch_size, 4}, data);
      const at::Tensor y = x.sum(1, true);
      const double loss = engine.train_batch([&](int64_t) {
        return at::mse_loss(net->forward(x.to(at::kBFloat16)).to(at::kFloat), y);
      });
      if (ranks.rank() == 0) (step == 0 ? first_loss : last_loss) = loss;
    }
  });
  std::printf("loss %.3f -> %.3f\n", first_loss, last_loss);
  return last_loss < 0.2 * first_loss ? 0 : 1;
}
