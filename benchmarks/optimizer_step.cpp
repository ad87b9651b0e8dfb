// Claim: the fused optimizer pass runs at the speed of memory. For each size it prints GB/s at the
// bytes the pass must move, and the ratio to the limit measured in the same run: on the CPU a loop
// with the same streams and no arithmetic, on CUDA a device-to-device copy.
//
//   bench_optimizer_step [--threads N] [--numel N] [--cuda_numel N] [Google Benchmark flags]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/same_streams.h"
#include "kernels/cast.h"
#include "kernels/cpu/parallel.h"
#include "kernels/norm.h"
#include "kernels/optimizer_step.h"
#include "kernels/perturb.h"

#ifdef ZEROSHARP_CUDA
#include <cuda_runtime_api.h>
#endif

namespace {

using namespace zerosharp;

constexpr double kAdamWBytes = 28;  // bf16 gradient 2, master 8, states 16, bf16 weight 2

/// Bandwidth of the limit, by the memory it was measured in.
struct Limit {
  double bytes_per_second = 0;
};
Limit g_cpu_limit, g_cuda_limit;

/// Buffers of one shard; pages are touched by the threads that use them later.
struct CpuShard {
  explicit CpuShard(int64_t n)
      : grad(static_cast<size_t>(n)),
        weight(static_cast<size_t>(n)),
        master(static_cast<size_t>(n)),
        m(static_cast<size_t>(n)),
        v(static_cast<size_t>(n)) {
    for (size_t i = 0; i < master.size(); ++i) {
      master[i] = static_cast<float>(i % 1000) * 1e-3f;
      grad[i] = static_cast<uint16_t>(0x3c00 + i % 256);
      v[i] = 1e-4f;
    }
  }
  std::vector<uint16_t> grad, weight;
  std::vector<float> master, m, v;
};

void report(benchmark::State& state, double bytes, Limit* limit, bool is_limit, double seconds) {
  const double rate = bytes * static_cast<double>(state.iterations()) / seconds;
  if (is_limit) limit->bytes_per_second = rate;
  state.counters["GB/s"] = rate / 1e9;
  if (limit->bytes_per_second > 0) state.counters["of_limit"] = rate / limit->bytes_per_second;
}

double now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class Body>
void time_cpu(benchmark::State& state, double bytes, bool is_limit, Body body) {
  body();
  const double start = now();
  for (auto _ : state) body();
  report(state, bytes, &g_cpu_limit, is_limit, now() - start);
}

void cpu_limit(benchmark::State& state, std::shared_ptr<CpuShard> s) {
  const auto n = static_cast<int64_t>(s->master.size());
  const auto zero = static_cast<uint32_t>(std::getenv("ZEROSHARP_NEVER_SET") != nullptr);
  time_cpu(state, kAdamWBytes * static_cast<double>(n), true, [&] {
    kernels::cpu::parallel_runs(n, [&](int64_t begin, int64_t end) {
      benchmarks::same_streams(s->grad.data(), reinterpret_cast<uint32_t*>(s->master.data()),
                               reinterpret_cast<uint32_t*>(s->m.data()),
                               reinterpret_cast<uint32_t*>(s->v.data()), s->weight.data(), zero,
                               begin, end);
    });
    benchmark::ClobberMemory();
  });
}

kernels::OptimizerShard shard_of(CpuShard& s) {
  return {static_cast<int64_t>(s.master.size()),
          s.grad.data(),
          DType::kBF16,
          s.master.data(),
          s.m.data(),
          s.v.data(),
          s.weight.data(),
          DType::kBF16};
}

void cpu_adamw(benchmark::State& state, std::shared_ptr<CpuShard> s) {
  kernels::OptimizerStep step;
  step.lr = 1e-4;
  step.weight_decay = 0.01;
  time_cpu(state, kAdamWBytes * static_cast<double>(s->master.size()), false,
           [&] { kernels::optimizer_step(shard_of(*s), step, Stream::cpu()); });
}

void cpu_norm(benchmark::State& state, std::shared_ptr<CpuShard> s) {
  double sums[2] = {0, 0};
  const auto n = static_cast<int64_t>(s->grad.size());
  time_cpu(state, 2.0 * static_cast<double>(n), false, [&] {
    kernels::sum_squares(s->grad.data(), DType::kBF16, n, sums, nullptr, Stream::cpu());
  });
  benchmark::DoNotOptimize(sums[0]);
}

void cpu_perturb(benchmark::State& state, std::shared_ptr<CpuShard> s) {
  const float scale = 1e-3f;
  double stats[3] = {0, 0, 0};
  kernels::PerturbShard shard{static_cast<int64_t>(s->grad.size()),
                              s->grad.data(),
                              DType::kBF16,
                              s->master.data(),
                              s->weight.data(),
                              DType::kBF16};
  kernels::PerturbStep step;
  step.scale = &scale;
  time_cpu(state, 8.0 * static_cast<double>(s->grad.size()), false,
           [&] { kernels::perturb(shard, step, stats, nullptr, Stream::cpu()); });
}

#ifdef ZEROSHARP_CUDA

struct Events {
  Events() {
    cudaEventCreate(&start);
    cudaEventCreate(&stop);
  }
  ~Events() {
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
  }
  cudaEvent_t start = nullptr, stop = nullptr;
};

/// Device memory of one shard with values that are neither zero nor equal.
struct CudaShard {
  explicit CudaShard(int64_t n) : numel(n) {
    ok = cudaMalloc(&bytes, static_cast<size_t>(n) * 16 + 8 * 256) == cudaSuccess;
    if (!ok) return;
    char* base = static_cast<char*>(bytes);
    const auto take = [&](int64_t size) {
      char* at = base;
      base += (size + 255) / 256 * 256;
      return at;
    };
    master = reinterpret_cast<float*>(take(4 * n));
    m = reinterpret_cast<float*>(take(4 * n));
    v = reinterpret_cast<float*>(take(4 * n));
    grad = take(2 * n);
    weight = take(2 * n);
    void* scratch = nullptr;
    ok = cudaMalloc(&scratch, sizeof(double) * (kernels::kReductionWorkspace + 8)) == cudaSuccess;
    workspace = static_cast<double*>(scratch);
    std::vector<float> host(1 << 20);
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(i * 7919 % 1009) * 1e-4f;
    for (int64_t at = 0; at < n; at += static_cast<int64_t>(host.size())) {
      const auto count = std::min<int64_t>(static_cast<int64_t>(host.size()), n - at);
      for (float* buffer : {master, m, v}) {
        cudaMemcpy(buffer + at, host.data(), static_cast<size_t>(count) * 4,
                   cudaMemcpyHostToDevice);
      }
      kernels::cast(master + at, DType::kF32, grad + 2 * at, DType::kBF16, count,
                    Stream::on_cuda(nullptr));
    }
    cudaDeviceSynchronize();
  }
  ~CudaShard() {
    cudaFree(bytes);
    cudaFree(workspace);
  }
  int64_t numel;
  bool ok = false;
  void* bytes = nullptr;
  float *master = nullptr, *m = nullptr, *v = nullptr;
  char *grad = nullptr, *weight = nullptr;
  double* workspace = nullptr;
};

template <class Body>
void time_cuda(benchmark::State& state, double bytes, bool is_limit, Body body) {
  Events events;
  for (int i = 0; i < 3; ++i) body();
  double total = 0;
  for (auto _ : state) {
    cudaEventRecord(events.start);
    body();
    cudaEventRecord(events.stop);
    cudaEventSynchronize(events.stop);
    float ms = 0;
    cudaEventElapsedTime(&ms, events.start, events.stop);
    state.SetIterationTime(ms / 1e3);
    total += ms / 1e3;
  }
  report(state, bytes, &g_cuda_limit, is_limit, total);
}

void cuda_copy(benchmark::State& state, std::shared_ptr<CudaShard> s) {
  // Half of the shard's memory onto the other half: read and written once.
  const int64_t half = 6 * s->numel / 256 * 256;
  time_cuda(state, 2.0 * static_cast<double>(half), true, [&] {
    cudaMemcpyAsync(static_cast<char*>(s->bytes) + half, s->bytes, static_cast<size_t>(half),
                    cudaMemcpyDeviceToDevice);
  });
}

void cuda_adamw(benchmark::State& state, std::shared_ptr<CudaShard> s) {
  kernels::OptimizerShard shard{s->numel, s->grad, DType::kBF16, s->master,
                                s->m,     s->v,    s->weight,    DType::kBF16};
  kernels::OptimizerStep step;
  step.lr = 1e-4;
  step.weight_decay = 0.01;
  time_cuda(state, kAdamWBytes * static_cast<double>(s->numel), false,
            [&] { kernels::optimizer_step(shard, step, Stream::on_cuda(nullptr)); });
}

void cuda_norm(benchmark::State& state, std::shared_ptr<CudaShard> s) {
  time_cuda(state, 2.0 * static_cast<double>(s->numel), false, [&] {
    kernels::sum_squares(s->grad, DType::kBF16, s->numel, s->workspace, s->workspace + 8,
                         Stream::on_cuda(nullptr));
  });
}

void cuda_perturb(benchmark::State& state, std::shared_ptr<CudaShard> s) {
  auto* scale = reinterpret_cast<float*>(s->workspace + 4);
  const float value = 1e-3f;
  cudaMemcpy(scale, &value, sizeof value, cudaMemcpyHostToDevice);
  kernels::PerturbShard shard{s->numel, s->grad, DType::kBF16, s->master, s->weight, DType::kBF16};
  kernels::PerturbStep step;
  step.scale = scale;
  time_cuda(state, 8.0 * static_cast<double>(s->numel), false, [&] {
    kernels::perturb(shard, step, s->workspace, s->workspace + 8, Stream::on_cuda(nullptr));
  });
}

void register_cuda(int64_t numel) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::puts("no CUDA device answers: the CUDA half is left out");
    return;
  }
  auto s = std::make_shared<CudaShard>(numel);
  if (!s->ok) {
    std::puts("not enough device memory for --cuda_numel: the CUDA half is left out");
    return;
  }
  const auto add = [&](const char* name, auto function) {
    benchmark::RegisterBenchmark(name, function, s)->UseManualTime()->Unit(benchmark::kMillisecond);
  };
  add("cuda/copy (limit)", cuda_copy);
  add("cuda/adamw", cuda_adamw);
  add("cuda/sum_squares", cuda_norm);
  add("cuda/perturb", cuda_perturb);
}

#else
void register_cuda(int64_t) {}
#endif

/// Takes "--name value" out of the arguments.
int64_t take(int& argc, char** argv, const char* name, int64_t fallback) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], name) != 0) continue;
    fallback = std::atoll(argv[i + 1]);
    std::rotate(argv + i, argv + i + 2, argv + argc);
    argc -= 2;
  }
  return fallback;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t threads = take(argc, argv, "--threads", 2);
  const int64_t numel = take(argc, argv, "--numel", 50'000'000);
  const int64_t cuda_numel = take(argc, argv, "--cuda_numel", 1'300'000'000);
  zerosharp::set_num_threads(static_cast<int>(threads));
  if (numel > 0) {
    auto s = std::make_shared<CpuShard>(numel);
    const auto add = [&](const char* name, auto function) {
      benchmark::RegisterBenchmark(name, function, s)->UseRealTime()->Unit(benchmark::kMillisecond);
    };
    add("cpu/same_streams (limit)", cpu_limit);
    add("cpu/adamw", cpu_adamw);
    add("cpu/sum_squares", cpu_norm);
    add("cpu/perturb", cpu_perturb);
  }
  if (cuda_numel > 0) register_cuda(cuda_numel);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
