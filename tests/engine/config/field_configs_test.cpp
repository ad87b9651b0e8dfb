// What becomes of configuration files as people post them.
#include "tests/engine/config/field_configs.h"

#include "engine/schedule.h"
#include "tests/engine/config/parse.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::invalid_argument("no " + from);
  return text.replace(at, from.size(), to);
}

TEST(FieldConfig, UnresolvedAutosAreListedInOneGo) {
  const std::string message = error_of(kAutoEverywhere);
  expect_parts(message, {"train_batch_size, ", "train_micro_batch_size_per_gpu",
                         "gradient_accumulation_steps", "gradient_clipping", "optimizer.params.lr",
                         "optimizer.params.betas", "bf16.enabled", "fp16.enabled",
                         "scheduler.params.total_num_steps", "\"auto\"", "KEY=VALUE"});
  expect_parts(message, {"run.json:32:5: zero_optimization.stage: stage 2 is not available"});
  EXPECT_EQ(message.find("loss_scale"), std::string::npos);  // no fault of a disabled block
  EXPECT_EQ(message.find("required"), std::string::npos);    // "auto" is not said twice
}

TEST(FieldConfig, AutosAreResolvedOnTheCommandLine) {
  const std::vector<std::string> overrides = {"fp16.enabled=false",
                                              "bf16.enabled=true",
                                              "optimizer.params.lr=1e-4",
                                              "optimizer.params.betas=[0.9,0.95]",
                                              "optimizer.params.eps=1e-8",
                                              "optimizer.params.weight_decay=0.1",
                                              "scheduler.params.warmup_min_lr=0",
                                              "scheduler.params.warmup_max_lr=1e-4",
                                              "scheduler.params.warmup_num_steps=10",
                                              "scheduler.params.total_num_steps=100",
                                              "zero_optimization.stage=1",
                                              "gradient_accumulation_steps=2",
                                              "gradient_clipping=1",
                                              "train_batch_size=null",
                                              "train_micro_batch_size_per_gpu=4"};
  const Config config = parse(kAutoEverywhere, overrides);
  EXPECT_EQ(config.precision, DType::kBF16);
  EXPECT_EQ(config.batch.train_batch_size, 16);
  EXPECT_EQ(config.optimizer.lr, 1e-4);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  ASSERT_TRUE(config.scheduler);
  EXPECT_EQ(config.scheduler->total_num_steps, 100);
  EXPECT_EQ(config.zero_stage, 1);
}

TEST(FieldConfig, MisplacedOffloadIsSentHome) {
  expect_parts(error_of(kOffloadAtTopLevel), {"run.json:16:5: offload_optimizer: unknown key",
                                              "belongs at", "zero_optimization.offload_optimizer"});
}

TEST(FieldConfig, CpuOffloadIsReadAsItsSuccessor) {
  const Config config = parse(kDeprecatedCpuOffload);
  EXPECT_EQ(config.offload_optimizer_device, "cpu");
  expect_parts(config.resolved_json, {"\"offload_optimizer\"", "\"device\": \"cpu\""});
  int mentions = 0;
  for (const auto& line : config.warnings) {
    if (line.find("cpu_offload") == std::string::npos) continue;
    ++mentions;
    expect_parts(line, {"run.json:10:5", "deprecated", "offload_optimizer.device"});
  }
  EXPECT_EQ(mentions, 1);
  expect_parts(all_warnings(config), {"Adam means decoupled weight decay"});
  expect_parts(error_of(kDeprecatedCpuOffload, {"zero_optimization.offload_optimizer.device=none"}),
               {"zero_optimization.cpu_offload", "remove it"});
}

TEST(FieldConfig, CommentsAndTrailingCommasChangeNoValue) {
  const Config config = parse(kCommentsAndTrailingCommas);
  EXPECT_EQ(config.batch.micro_batch_size, 2);
  EXPECT_EQ(config.batch.accumulation_steps, 2);
  EXPECT_EQ(config.batch.train_batch_size, 8);
  EXPECT_EQ(config.precision, DType::kBF16);
  EXPECT_EQ(config.zero_stage, 1);
  EXPECT_EQ(config.optimizer.lr, 5e-5);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.999);
  EXPECT_EQ(config.optimizer.eps, 1e-8);
  EXPECT_EQ(config.optimizer.weight_decay, 3e-7);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  expect_parts(all_warnings(config), {"tensorboard"});
}

TEST(FieldConfig, FractionsAreNoIntegers) {
  expect_parts(error_of(kFractionalInteger),
               {"run.json:9:9: zero_optimization.stage3_prefetch_bucket_size: must be an integer",
                "15099494.4"});
}

TEST(FieldConfig, BooleansInQuotesAreReadByMeaning) {
  const Config config = parse(kStringBooleans);
  EXPECT_EQ(config.precision, DType::kBF16);
  expect_parts(all_warnings(config), {"bf16.enabled: \"true\" is read as true",
                                      "fp16.enabled: \"false\" is read as false"});
  expect_parts(error_of(replaced(kStringBooleans, "\"false\"", "\"no\"")),
               {"fp16.enabled: must be true or false, got \"no\""});
}

TEST(FieldConfig, LossScaleKeysOfBf16WarnOnce) {
  const Config config = parse(kBf16WithFp16Keys);
  EXPECT_EQ(config.precision, DType::kBF16);
  int lines = 0;
  for (const auto& line : config.warnings) {
    if (line.find("bf16.") == std::string::npos) continue;
    ++lines;
    expect_parts(line, {"no effect", "bf16.loss_scale,", "bf16.initial_scale_power",
                        "bf16.loss_scale_window", "bf16.hysteresis", "bf16.min_loss_scale"});
  }
  EXPECT_EQ(lines, 1);
}

TEST(FieldConfig, TyposAreErrorsAndKnownBlocksWarnings) {
  const std::string message = error_of(kTopLevelTypo);
  EXPECT_EQ(message,
            "run.json:4:5: gradient_cliping: unknown key; did you mean gradient_clipping?");
  const Config config = parse(replaced(kTopLevelTypo, "cliping", "clipping"));
  ASSERT_EQ(config.warnings.size(), 1u);
  expect_parts(config.warnings[0], {"comms_logger", "known to DeepSpeed"});
}

TEST(FieldConfig, ClippingIsNoOptimizerParameter) {
  expect_parts(error_of(kMaxGradNorm),
               {"run.json:17:7: optimizer.params.max_grad_norm", "gradient_clipping"});
}

TEST(FieldConfig, OffloadInsideItselfIsRefusedByPath) {
  expect_parts(error_of(kDoubleNestedOffload),
               {"zero_optimization.offload_optimizer.offload_optimizer: unknown key"});
}

TEST(FieldConfig, BatchTriadNeedsItsNumberOfRanks) {
  expect_parts(error_of(kBatchTriad, {}, 2),
               {"train_batch_size", "8 != 2 * 1 * 2", "world size 2", "start 4 rank(s)"});
  EXPECT_EQ(parse(kBatchTriad, {}, 4).batch.accumulation_steps, 1);
}

TEST(FieldConfig, StageAutoIsNeverStageZero) {
  expect_parts(error_of(kStageAuto), {"zero_optimization.stage", "\"auto\""});
  const Config config = parse(kStageAuto, {"zero_optimization.stage=1"});
  EXPECT_EQ(config.zero_stage, 1);
  expect_parts(all_warnings(config),
               {"zero_optimization.reduce_bucket_size", "zero_optimization.overlap_comm"});
}

TEST(FieldConfig, BooleanZeroIsStageOne) {
  const Config config = parse(kBooleanZero);
  EXPECT_EQ(config.zero_stage, 1);
  expect_parts(all_warnings(config),
               {"run.json:5:3: zero_optimization: true is an old form; it is read as stage 1",
                "allgather_size", "disable_allgather"});
  EXPECT_EQ(parse(replaced(kBooleanZero, "n\": true", "n\": false")).zero_stage, 0);
  expect_parts(error_of(replaced(kBooleanZero, "n\": true", "n\": 3")),
               {"zero_optimization: must be a section { … }, got 3"});
}

TEST(FieldConfig, WarmupInheritsTheOptimizersRate) {
  for (const std::string type : {"WarmupLR", "WarmupDecayLR"}) {
    const bool decays = type == "WarmupDecayLR";
    std::string text = replaced(kWarmupWithoutPeak, "WarmupLR", type);
    if (decays) {
      text = replaced(text, "\"warmup_num_steps\": 2",
                      "\"warmup_num_steps\": 2, \"total_num_steps\": 20");
    }
    const Config config = parse(text);
    ASSERT_TRUE(config.scheduler);
    double peak = 0;
    for (int64_t i = 0; i < 6; ++i) {
      peak = std::max(peak, scheduled_value(*config.scheduler, i, config.optimizer.lr).lr);
    }
    EXPECT_EQ(peak, 5e-5);
    expect_parts(all_warnings(config), {"warmup_max_lr", "5e-05"});
  }
}

TEST(FieldConfig, EmptyFileIsCalledEmpty) { expect_parts(error_of(""), {"run.json", "empty"}); }

TEST(FieldConfig, MicroBatchOfNothingIsRefused) {  // InstructERC #16
  expect_parts(error_of(R"({"train_batch_size": 2,
                            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})",
                        {}, 4),
               {"train_micro_batch_size_per_gpu would be 0", "world size 4"});
}

TEST(FieldConfig, AdamMeansAdamWUnlessToldOtherwise) {  // DeepSpeed #668
  using Kind = kernels::OptimizerKind;
  const auto optimizer = [](const std::string& type, const std::string& params) {
    return parse(
        with_batch(R"("optimizer": {"type": ")" + type + R"(", "params": {)" + params + "}}"));
  };
  EXPECT_EQ(optimizer("AdamW", "").optimizer.kind, Kind::kAdamW);
  EXPECT_EQ(optimizer("Adam", "\"adam_w_mode\": false").optimizer.kind, Kind::kAdam);
  EXPECT_EQ(optimizer("Adam", "\"adam_w_mode\": true").optimizer.kind, Kind::kAdamW);
  const Config adam = optimizer("Adam", "");
  EXPECT_EQ(adam.optimizer.kind, Kind::kAdamW);
  expect_parts(all_warnings(adam), {"Adam means decoupled", "adam_w_mode=false"});
  const Config contradiction = optimizer("AdamW", "\"adam_w_mode\": false");
  EXPECT_EQ(contradiction.optimizer.kind, Kind::kAdamW);
  expect_parts(all_warnings(contradiction), {"AdamW always decouples"});
}

}  // namespace
}  // namespace zerosharp
