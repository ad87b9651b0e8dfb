// MPI ranks give the bits of thread ranks. Started by mpirun; every rank runs the whole test.
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/element.h"
#include "kernels/error.h"
#include "zero/comm/mpi_communicator.h"
#include "zero/comm/thread_communicator.h"

namespace {

using namespace zerosharp;

int g_failures = 0;
int g_checks = 0;

void expect(bool condition, const std::string& what) {
  ++g_checks;
  if (condition) return;
  ++g_failures;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

/// Pseudo-random bytes that are finite numbers in every type.
std::vector<char> input(int rank, DType dtype, int64_t numel) {
  std::vector<char> bytes(static_cast<size_t>(numel * element_bytes(dtype)));
  uint64_t state = static_cast<uint64_t>(rank) * 7919 + 17;
  for (int64_t i = 0; i < numel; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const float v = static_cast<float>(state >> 40) / 65536.0f - 128.0f;
    char* at = bytes.data() + i * element_bytes(dtype);
    if (dtype == DType::kBF16) {
      const auto x = kernels::to_bf16(v);
      std::memcpy(at, &x, sizeof x);
    } else if (dtype == DType::kF16) {
      const auto x = kernels::to_f16(v);
      std::memcpy(at, &x, sizeof x);
    } else if (dtype == DType::kF32) {
      std::memcpy(at, &v, sizeof v);
    } else if (dtype == DType::kF64) {
      const double x = v;
      std::memcpy(at, &x, sizeof x);
    } else {
      const auto x = static_cast<int64_t>(v);
      std::memcpy(at, &x, sizeof x);
    }
  }
  return bytes;
}

using Body = void (*)(Communicator&, FlatSpan);

void compare(Communicator& mpi, DType dtype, int64_t numel, Body body, const std::string& what) {
  std::vector<char> mine = input(mpi.rank(), dtype, numel);
  body(mpi, {mine.data(), numel, dtype});
  std::vector<char> expected;
  run_thread_ranks(mpi.size(), [&](Communicator& thread) {
    std::vector<char> bytes = input(thread.rank(), dtype, numel);
    body(thread, {bytes.data(), numel, dtype});
    if (thread.rank() == mpi.rank()) expected = bytes;
  });
  expect(mine == expected, what + " of " + std::to_string(numel) + " " + dtype_name(dtype));
}

void run_all(Communicator& mpi) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI64}) {
    for (const int64_t numel : {0, 1, 3, 7, 64, 1000, 65537}) {
      compare(
          mpi, dtype, numel, [](Communicator& c, FlatSpan s) { c.all_reduce(s, ReduceOp::kSum); },
          "all_reduce sum");
      compare(
          mpi, dtype, numel, [](Communicator& c, FlatSpan s) { c.all_reduce(s, ReduceOp::kMax); },
          "all_reduce max");
      compare(
          mpi, dtype, numel, [](Communicator& c, FlatSpan s) { c.broadcast(s, c.size() - 1); },
          "broadcast");
      compare(
          mpi, dtype, numel * mpi.size(),
          [](Communicator& c, FlatSpan s) { c.all_gather_async(s).wait(); }, "all_gather");
      if (dtype == DType::kI64) continue;
      compare(
          mpi, dtype, numel * mpi.size(),
          [](Communicator& c, FlatSpan s) {
            c.reduce_scatter(s, ReduceOp::kMean);
            c.all_gather(s);  // the other shards are unspecified before this
          },
          "reduce_scatter mean");
    }
  }
}

/// The debug checks name both calls, and the communicator refuses every later one.
void disagree() {
  const auto mpi = make_mpi_communicator();
  if (mpi->size() == 1) return;
  mpi->set_debug_checks(true);
  float data[4] = {};
  const FlatSpan span{data, 4, DType::kF32};
  try {
    mpi->rank() == 0 ? mpi->all_reduce(span, ReduceOp::kMean) : mpi->broadcast(span, 0);
    expect(false, "a disagreement is an error");
  } catch (const CommError& error) {
    const std::string message = error.what();
    expect(message.find("all_reduce (mean)") != std::string::npos &&
               message.find("broadcast") != std::string::npos,
           "both calls are named in: " + message);
  }
  try {
    mpi->barrier();
    expect(false, "a call after a failure is an error");
  } catch (const CommError& error) {
    const std::string message = error.what();
    expect(message.find("after a failed collective") != std::string::npos,
           "the failure is named in: " + message);
  }
}

/// All collectives of `group`, which holds `ranks` of the world, against thread ranks of its size.
void compare_group(Communicator& group, const std::vector<int>& ranks, const std::string& what) {
  for (const int64_t numel : {0, 1, 7, 1000}) {
    const auto calls = [](Communicator& c, FlatSpan s) {
      c.all_reduce(s, ReduceOp::kSum);
      c.reduce_scatter(s, ReduceOp::kMean);
      c.all_gather_async(s).wait();
      c.broadcast(s, c.size() - 1);
      c.barrier();
    };
    const int64_t all = numel * group.size();
    const auto mine = static_cast<size_t>(group.rank());
    std::vector<char> values = input(ranks[mine], DType::kF32, all);
    calls(group, {values.data(), all, DType::kF32});
    std::vector<char> expected;
    run_thread_ranks(group.size(), [&](Communicator& thread) {
      const auto rank = static_cast<size_t>(thread.rank());
      std::vector<char> bytes = input(ranks[rank], DType::kF32, all);
      calls(thread, {bytes.data(), all, DType::kF32});
      if (rank == mine) expected = bytes;
    });
    expect(values == expected, what + " of " + std::to_string(all));
  }
}

std::vector<int> every(int step, int from, int world) {
  std::vector<int> ranks;
  for (int rank = from; rank < world; rank += step) ranks.push_back(rank);
  return ranks;
}

/// Groups give the bits of thread ranks, do not mix and outlive what they come from.
void split() {
  auto mpi = make_mpi_communicator();
  const int rank = mpi->rank(), size = mpi->size();
  try {
    mpi->split(-1);
    expect(false, "a negative color is an error");
  } catch (const CommError& error) {
    const std::string message = error.what();
    expect(message.find("got -1") != std::string::npos, "the color is named in: " + message);
  }
  const auto alone = mpi->split(rank);
  expect(alone->size() == 1 && alone->rank() == 0, "a group of one");
  compare_group(*alone, {rank}, "calls in a group of one");
  const auto second = mpi->split(rank % 2);
  const auto ranks = every(2, rank % 2, size);
  expect(second->size() == static_cast<int>(ranks.size()) && second->rank() == rank / 2,
         "ranks keep their order");
  // The odd ranks make more calls than the even ones, and the whole calls in between.
  for (int round = 0; round < 1 + rank % 2; ++round) compare_group(*second, ranks, "second ranks");
  compare_group(*mpi, every(1, 0, size), "the whole between groups");
  const auto fourth = second->split(second->rank() % 2);
  compare_group(*fourth, every(4, rank % 4, size), "a group of a group");
  compare_group(*second, ranks, "second ranks again");
  mpi.reset();
  compare_group(*second, ranks, "a group beyond the whole");
  const auto same = second->split(0);
  compare_group(*same, ranks, "a group of a group beyond the whole");
}

/// Rank 1 ends by an exception while the others wait for it, in a group or in the whole: all must
/// end.
int leave_by_exception(bool in_group) {
  try {
    const auto mpi = make_mpi_communicator();
    const auto group = mpi->split(mpi->rank() == 2 ? 1 : 0);
    mpi->barrier();
    if (mpi->rank() == 1) fail_config("this rank's file is missing");
    if (in_group) group->barrier();
    mpi->barrier();
    std::puts("FAILED: the barrier was passed");
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (!built_with_mpi()) {
    std::puts("skipped: this build has no MPI");
    return 0;
  }
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "leave" || mode == "leave-group") return leave_by_exception(mode == "leave-group");
  try {
    const int64_t whole = int64_t{8} << 20;
    const int64_t tiny = 24;  // a few elements: every slice takes many rounds
    for (const auto& [chunk, checks] :
         {std::pair{whole, false}, std::pair{whole, true}, std::pair{tiny, false}}) {
      const auto mpi = make_mpi_communicator({chunk});
      mpi->set_debug_checks(checks);
      run_all(*mpi);
    }
    split();
    disagree();
    const auto mpi = make_mpi_communicator();
    mpi->barrier();
    std::printf("rank %d of %d: %d checks, %d failed\n", mpi->rank(), mpi->size(), g_checks,
                g_failures);
  } catch (const Error& error) {
    std::fprintf(stderr, "FAILED: %s\n", error.what());
    return 1;
  }
  return g_failures == 0 ? 0 : 1;
}
