// A quadratic whose gradients are known exactly, large enough that each of 4 ranks owns a piece,
// and SAM's step on it in float64.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "tests/support/run_ranks.h"

namespace zerosharp::testing {

using at::Tensor;

inline constexpr int64_t kNumel = 512;  // of a and b; each of 4 ranks owns a piece
inline constexpr int64_t kHalf = kNumel / 2;
inline constexpr double kRho = 1.5, kLr = 0.1;

inline Tensor range() { return at::arange(kNumel, at::kDouble); }
inline Tensor start() { return at::sin(1.0 + 0.7 * range()) + 0.3; }
inline Tensor curvature() { return 0.5 + at::cos(range()).square(); }
inline Tensor slope(double phase) { return at::sin(2.3 * phase + 1.1 * range()) + 0.2; }
inline Tensor gradient(const Tensor& w, const Tensor& c) { return curvature() * w + c; }
inline double loss_at(const Tensor& w, const Tensor& c) {
  return (0.5 * curvature() * w * w + c * w).sum().item<double>();
}
inline Tensor along(const Tensor& g, double rho = kRho) { return rho * g / g.norm(); }
/// SGD's step with the gradient at w + e.
inline Tensor stepped(const Tensor& w, const Tensor& e, const Tensor& c) {
  return w - kLr * gradient(w + e, c);
}
inline double distance(const Tensor& x, const Tensor& y) {
  return (x - y).abs().max().item<double>();
}

/// The quadratic above; its weights are a and b, one after the other.
struct Bowl : torch::nn::Module {
  Bowl() {
    const Tensor all = start().to(at::kFloat);
    a = register_parameter("a", all.narrow(0, 0, kHalf).clone());
    b = register_parameter("b", all.narrow(0, kHalf, kHalf).clone());
  }
  static Tensor part(const Tensor& w, const Tensor& c, int64_t begin) {
    const Tensor x = w.to(at::kFloat);
    const auto cut = [&](const Tensor& t) { return t.narrow(0, begin, kHalf).to(at::kFloat); };
    return (0.5 * cut(curvature()) * x * x + cut(c) * x).sum();
  }
  Tensor loss_a(const Tensor& c) const { return part(a, c, 0); }
  Tensor loss_b(const Tensor& c) const { return part(b, c, kHalf); }
  Tensor loss(const Tensor& c) const { return loss_a(c) + loss_b(c); }
  Tensor flat() const { return at::cat({a, b}).detach().to(at::kDouble); }
  Tensor a, b;
};

/// Tests of one step of SAM on it, at each stage.
class SamBowl : public ::testing::TestWithParam<int64_t> {
 protected:
  static Config config(DType precision = DType::kF32) {
    Config config = sgd(kLr, GetParam(), precision);
    config.sam.enabled = true;
    config.sam.rho = kRho;
    config.sam.epsilon = 0;
    return config;
  }
  using Body = std::function<void(Engine&, Bowl&, int)>;
  static Tensor trained(int world, const Config& config, const Body& body,
                        const std::function<EngineOptions(Bowl&)>& options = {}) {
    std::vector<Tensor> results(static_cast<size_t>(world));
    run_thread_ranks(world, [&](Communicator& comm) {
      auto module = std::make_shared<Bowl>();
      Engine engine(module, config, comm, options ? options(*module) : EngineOptions());
      body(engine, *module, comm.rank());
      results[static_cast<size_t>(comm.rank())] = module->flat();
    });
    for (const Tensor& other : results) EXPECT_TRUE(same_bits(other, results[0]));
    return results[0];
  }
  /// Ours is as it should be, and that is not what the flaw gives.
  static void expect_not(const Tensor& flawed, const Tensor& right, const Tensor& ours) {
    EXPECT_LT(distance(ours, right), 1e-5);
    EXPECT_GT(distance(ours, flawed), 1e-3);
  }
};

}  // namespace zerosharp::testing
