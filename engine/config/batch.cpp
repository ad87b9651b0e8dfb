#include "engine/config/batch.h"

#include "kernels/error.h"

namespace zerosharp {
namespace {

/// micro · steps · world, refusing what 64 bits cannot hold.
int64_t multiply(int64_t micro, int64_t steps, int64_t world) {
  int64_t product = 0;
  if (__builtin_mul_overflow(micro, steps, &product) ||
      __builtin_mul_overflow(product, world, &product)) {
    fail_config("train_batch_size = ", micro, " * ", steps, " * ", world,
                " does not fit in 64 bits; lower train_micro_batch_size_per_gpu or "
                "gradient_accumulation_steps");
  }
  return product;
}

/// total / (known · ranks), refusing remainders and zero.
int64_t divide(int64_t total, int64_t known, int64_t world, const char* known_name,
               const char* result_name) {
  const int64_t by = multiply(1, known, world);
  const int64_t result = total / by;
  const std::string division =
      "train_batch_size " + std::to_string(total) + " / " +
      (known_name[0] != '\0' ? std::string(known_name) + " " + std::to_string(known) + " / "
                             : std::string()) +
      "world size " + std::to_string(world);
  if (result == 0) fail_config(result_name, " would be 0: ", division, "; raise train_batch_size");
  if (total % by != 0) {
    fail_config(result_name, " would not be whole: ", division, " = ", total, " / ", by,
                " leaves a remainder of ", total % by, "; make train_batch_size a multiple of ",
                by);
  }
  return result;
}

void check_given(const char* name, int64_t value) {
  if (value < 0) fail_config(name, " must be greater than 0, got ", value);
}

}  // namespace

BatchConfig derive_batch(const BatchConfig& given, int world_size) {
  constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
  constexpr const char* kSteps = "gradient_accumulation_steps";
  BatchConfig batch = given;
  const int64_t world = world_size;
  if (world < 1) fail_config("a run needs at least 1 rank, got world size ", world);
  check_given("train_batch_size", given.train_batch_size);
  check_given(kMicro, given.micro_batch_size);
  check_given(kSteps, given.accumulation_steps);
  if (batch.train_batch_size == 0 && batch.micro_batch_size == 0) {
    fail_config("one of train_batch_size and train_micro_batch_size_per_gpu is needed; add one");
  }
  if (batch.train_batch_size == 0) {
    if (batch.accumulation_steps == 0) batch.accumulation_steps = 1;
    batch.train_batch_size = multiply(batch.micro_batch_size, batch.accumulation_steps, world);
  } else if (batch.micro_batch_size == 0) {
    const char* known = batch.accumulation_steps == 0 ? "" : kSteps;
    if (batch.accumulation_steps == 0) batch.accumulation_steps = 1;
    batch.micro_batch_size =
        divide(batch.train_batch_size, batch.accumulation_steps, world, known, kMicro);
  } else if (batch.accumulation_steps == 0) {
    batch.accumulation_steps =
        divide(batch.train_batch_size, batch.micro_batch_size, world, kMicro, kSteps);
  }
  const int64_t product = multiply(batch.micro_batch_size, batch.accumulation_steps, world);
  if (batch.train_batch_size != product) {
    const int64_t per_rank = multiply(batch.micro_batch_size, batch.accumulation_steps, 1);
    const int64_t fitting = batch.train_batch_size / per_rank;
    const std::string ranks = fitting > 0 && batch.train_batch_size % per_rank == 0
                                  ? ", or start " + std::to_string(fitting) + " rank(s)"
                                  : "";
    fail_config("train_batch_size ", batch.train_batch_size, " != ", batch.micro_batch_size, " * ",
                batch.accumulation_steps, " * ", world, " (", kMicro, " * ", kSteps,
                " * world size ", world, "); give two of the three and leave the other out", ranks);
  }
  return batch;
}

}  // namespace zerosharp
