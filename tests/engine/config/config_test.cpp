// Keys, types, ranges and defaults; what is refused, what warns; overrides.
#include "engine/config/config.h"

#include <cstdio>
#include <fstream>

#include "engine/config/key_table.h"
#include "tests/engine/config/parse.h"

namespace zerosharp {
namespace {

using namespace zerosharp::testing;
using kernels::OptimizerKind;

TEST(Config, DefaultsAreThoseOfTheTable) {
  const Config config = parse(with_batch(""));
  EXPECT_EQ(config.batch.train_batch_size, 4);
  EXPECT_EQ(config.batch.micro_batch_size, 2);
  EXPECT_EQ(config.batch.accumulation_steps, 1);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.precision, DType::kF32);
  EXPECT_EQ(config.zero_stage, 0);
  EXPECT_EQ(config.optimizer.kind, OptimizerKind::kAdamW);
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_FALSE(config.scheduler);
  EXPECT_FALSE(config.grad_accum_dtype);
  EXPECT_FALSE(config.sam.enabled);
  EXPECT_EQ(config.sam.rho, 0.05);
  EXPECT_EQ(config.train.device, "auto");
  EXPECT_EQ(config.model.type, "gpt");
  EXPECT_TRUE(config.warnings.empty()) << all_warnings(config);
}

TEST(Config, IntegersMayBeWrittenAsNumbers) {
  EXPECT_EQ(parse(R"({"train_batch_size": 2e1})").batch.train_batch_size, 20);
  EXPECT_EQ(parse(R"({"train_batch_size": 4.0})").batch.train_batch_size, 4);
  EXPECT_EQ(parse(with_batch(R"("train": {"seed": 5e8})")).train.seed, 500000000);
  expect_parts(error_of(R"({"train_batch_size": 4.5})"), {"must be an integer, got 4.5"});
  expect_parts(error_of(R"({"train_batch_size": 1e300})"), {"must be an integer, got 1e300"});
  expect_parts(error_of(R"({"train_batch_size": 99999999999999999999})"), {"must be an integer"});
  expect_parts(error_of(R"({"train_batch_size": "4"})"), {"must be an integer, got \"4\""});
}

TEST(Config, WrongTypesNameWhatIsExpected) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("gradient_clipping": "1.0")", "gradient_clipping: must be a number, got \"1.0\""},
      {R"("bf16": true)", "bf16: must be a section { … }, got true"},
      {R"("bf16": {"enabled": "yes"})", "bf16.enabled: must be true or false, got \"yes\""},
      {R"("bf16": {"enabled": 2})", "bf16.enabled: must be true or false, got 2"},
      {R"("optimizer": {"type": 3})", "optimizer.type: must be one of AdamW|"},
      {R"("optimizer": {"type": "Lamb"})", "got \"Lamb\""},
      {R"("optimizer": {"type": "AdamW", "params": {"betas": 0.9}})", "array of numbers, got 0.9"},
      {R"("optimizer": {"type": "AdamW", "params": {"betas": [0.9]}})", "got [0.9]"},
      {R"("optimizer": {"type": "AdamW", "params": {"betas": [0.9, 1]}})",
       "in [0, 1), got [0.9, 1]"},
      {R"("optimizer": {"type": "AdamW", "params": {"betas": [0.9, 2]}})", "between 0 and 1"},
      {R"("data": {"path": 7})", "data.path: must be a string or an array of strings, got 7"},
      {R"("data": {"path": []})", "data.path: must be a string or an array of strings, got []"},
      {R"("data": {"path": ["a", 1]})", "data.path: must be a string or an array of strings"},
      {R"("data": {"test_path": 7})", "data.test_path: must be a string, got 7"},
      {R"("model": {"type": "mlp", "hidden_sizes": [8.5]})", "array of integers, got [8.5]"},
      {R"("model": {"type": "mlp", "hidden_sizes": [0]})", "numbers of at least 1, got [0]"},
      {R"("zero_optimization": {"overlap_comm": 3})", "overlap_comm: must be true or false, got 3"},
  };
  for (const auto& [more, part] : cases) expect_parts(error_of(with_batch(more)), {part});
}

TEST(Config, RangesAreChecked) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("sam": {"rho": -0.1})", "sam.rho: must be a number of at least 0, got -0.1"},
      {R"("sam": {"interval": 0})", "sam.interval: must be an integer of at least 1, got 0"},
      {R"("sam": {"variant": "esam"})", "preconditioned|aesam|looksam, got \"esam\""},
      {R"("sam": {"ascent_fraction": 1.5})",
       "sam.ascent_fraction: must be a number between 0 and 1"},
      {R"("sam": {"sigma": 1})", "sam.sigma: means nothing to sam.variant \"sam\""},
      {R"("sam": {"variant": "gsam", "k": 2})", "it belongs to \"looksam\""},
      {R"("sam": {"group_size": 2})", "sam.group_size: means nothing without"},
      {R"("gradient_clipping": -1)", "gradient_clipping: must be a number of at least 0, got -1"},
      {R"("zero_optimization": {"stage": 4})", "stage: must be an integer between 0 and 3"},
      {R"("zero_optimization": {"reduce_bucket_size": -1})", "of at least 0, got -1"},
      {R"("model": {"dropout": 1.5})", "between 0 and 1, got 1.5"},
      {R"("model": {"n_embd": 10})", "model.n_embd: 10 is not a multiple of model.n_head 4"},
      {R"("train": {"steps": 0})", "train.steps: must be an integer of at least 1, got 0"},
      {R"("data": {"validation_fraction": 0.95})", "between 0 and 0.9, got 0.95"},
      {R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}})",
       "scheduler.params.warmup_num_steps: must be an integer of at least 1, got 0"},
  };
  for (const auto& [more, part] : cases) expect_parts(error_of(with_batch(more)), {part});
}

TEST(Config, NanIsNoNumber) {
  expect_parts(error_of(with_batch(R"("sam": {"rho": NaN})")), {"run.json:1:", "not valid JSON"});
  for (const char* word : {"nan", "NaN", "inf", "1e999"}) {
    expect_parts(error_of(with_batch(""), {std::string("sam.rho=") + word}),
                 {"(override): sam.rho: must be a number", word});
  }
}

TEST(Config, UnknownKeysGetTheNearestKnownName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("optimiser": {"type": "SGD"})", "did you mean optimizer?"},
      {R"("sam": {"roh": 0.1})", "did you mean sam.rho?"},
      {R"("train": {"step": 5})", "did you mean train.steps?"},
      {R"("zero_optimization": {"stgae": 1})", "did you mean zero_optimization.stage?"},
      {R"("lr": 0.1)", "it belongs at optimizer.params.lr"},
      {R"("enabled": true)", "it belongs at bf16.enabled or "},
      {R"("xylophone_quartet": 1)", "no known key is like it"},
      {R"("gradient_accumulation_dtype": "fp32")", "unknown key"},
      {R"("fp16": {"opt_level": "O2"})", "fp16.opt_level: unknown key"},
      {R"("sam.rho": 0.1)", "sections are nested"},
      {R"("": 1)", "unknown key"},
  };
  for (const auto& [more, part] : cases) expect_parts(error_of(with_batch(more)), {part});
}

TEST(Config, AllComplaintsComeAtOnce) {
  const std::string message = error_of(with_batch(
      "\n\"sam\": {\"rho\": -1},\n\"nonsense\": 1,\n\"bf16\": {\"enabled\": true},\n\"fp16\": "
      "{\"enabled\": true}"));
  expect_parts(message, {"run.json:2:9: sam.rho", "run.json:3:1: nonsense",
                         "run.json:5:10: fp16.enabled: true, and bf16.enabled is true as well"});
  std::string many;
  for (int i = 0; i < 30; ++i) many += (i ? ", \"x" : "\"x") + std::to_string(i) + "\": 1";
  expect_parts(error_of(with_batch(many)), {"… and 10 more"});
}

TEST(Config, DeepSpeedKeysWithoutEffectWarnOncePerReason) {
  const Config config = parse(with_batch(
      R"("steps_per_print": 10, "zero_optimization": {"reduce_bucket_size": 5e8,
         "contiguous_gradients": true, "sub_group_size": 1e9, "overlap_comm": null}, "$schema": "x",
         "flops_profiler": {"anything": [1, {"goes": true}]})"));
  ASSERT_EQ(config.warnings.size(), 4u) << all_warnings(config);
  expect_parts(all_warnings(config), {"steps_per_print (train.log_interval",
                                      "zero_optimization.contiguous_gradients, "
                                      "zero_optimization.reduce_bucket_size (each group",
                                      "sub_group_size (belongs", "flops_profiler"});
}

TEST(Config, WhatWouldChangeTrainingIsRefusedUnlessItAsksForNothing) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("sparse_gradients": true)", R"("sparse_gradients": false)"},
      {R"("gradient_allreduce_op": "sum")", R"("gradient_allreduce_op": "mean")"},
      {R"("sequence_parallel_size": 2)", R"("sequence_parallel_size": 1.0)"},
      {R"("elasticity": {"enabled": true})", R"("elasticity": {"enabled": false, "x": 1})"},
      {R"("amp": {"enabled": true})", R"("amp": {})"},
      {R"("bf16": {"bf16_optimizer_states": true})", R"("bf16": {"bf16_optimizer_states": false})"},
      {R"("zero_optimization": {"zero_hpz_partition_size": 1.5})",
       R"("zero_optimization": {"zero_hpz_partition_size": 1})"},
      {R"("zero_optimization": {"mics_shard_size": 1e300})",
       R"("zero_optimization": {"mics_shard_size": -1})"},
      {R"("zero_optimization": {"zenflow": {"topk_ratio": 0.1}})",
       R"("zero_optimization": {"zenflow": null})"},
  };
  for (const auto& [refused, neutral] : cases) {
    expect_parts(error_of(with_batch(refused)), {"(got ", "remove the key"});
    EXPECT_TRUE(parse(with_batch(neutral)).warnings.empty()) << neutral;
  }
  for (const int stage : {2, 3}) {
    expect_parts(
        error_of(with_batch(R"("zero_optimization": {"stage": )" + std::to_string(stage) + "}")),
        {"is not available; use 0 (replicated) or 1"});
  }
  expect_parts(
      error_of(with_batch(R"("zero_optimization": {"offload_param": {"device": "nvme"}})")),
      {"offload_param.device", "nvme offload is not available"});
}

TEST(Config, EveryHonouredKeyIsExplained) {
  const std::string help = describe_keys();
  for (const KeySpec& key : key_table()) {
    EXPECT_FALSE(key.meaning.empty()) << key.path;
    EXPECT_EQ(find_key(key.path), &key) << key.path << " stands twice in the table";
    if (key.effect == KeyEffect::kHonoured) {
      EXPECT_NE(help.find(std::string(key.path)), std::string::npos) << key.path;
    }
    const size_t dot = key.path.rfind('.');
    if (dot == std::string_view::npos) continue;
    const KeySpec* section = find_key(key.path.substr(0, dot));
    ASSERT_NE(section, nullptr) << key.path;
    EXPECT_EQ(section->type, KeyType::kSection) << key.path;
  }
}

/// The text of a file of the source tree.
std::string source_file(const std::string& path) {
  std::ifstream file(ZEROSHARP_SOURCE_DIR "/" + path);
  if (!file) throw std::runtime_error(path + " is missing");
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Config, EveryKeyIsDocumented) {
  const std::string page = source_file("docs/config.md");
  for (const KeySpec& key : key_table()) {
    std::string name(key.path);
    if (key.effect == KeyEffect::kHonoured) {
      if (key.type == KeyType::kSection) continue;
      const std::string rho =
          "sam.rho_scheduler.";  // takes every schedule's settings, as scheduler
      if (name.rfind(rho, 0) == 0 && name != rho + "name" &&
          find_key("scheduler." + name.substr(rho.size())) != nullptr) {
        continue;
      }
      expect_parts(page, {("| `" + name + "` |").c_str()});
    } else {
      name = name.substr(name.rfind('.') + 1);
      if (name.rfind("stage3_gather_fp16", 0) != 0 && name.rfind("stage3_", 0) == 0)
        name.erase(0, 7);
      EXPECT_NE(page.find(name + "`"), std::string::npos) << key.path;
    }
  }
}

TEST(Config, ShippedFilesAreReadWithoutWarnings) {
  for (const char* path :
       {"configs/gpt-text.json", "configs/mlp-fashion.json", "configs/resnet-fashion.json"}) {
    for (const int world : {1, 2, 4}) {
      const Config config = parse_config(source_file(path), path, {}, world);
      EXPECT_TRUE(config.warnings.empty()) << path << ": " << all_warnings(config);
      EXPECT_GT(config.train.steps, 0);
      EXPECT_TRUE(config.sam.enabled);
    }
  }
}

TEST(Config, ParametersOfAnotherTypeAreErrors) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("optimizer": {"type": "SGD", "params": {"betas": [0.9, 0.99]}})",
       "optimizer.params.betas: means nothing to optimizer.type sgd"},
      {R"("optimizer": {"type": "Lion", "params": {"eps": 1e-8}})", "optimizer.params.eps"},
      {R"("scheduler": {"type": "cosine", "params": {"warmup_num_steps": 5}})",
       "scheduler.params.warmup_num_steps: means nothing to scheduler.type cosine"},
      {R"("scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 5}})",
       "scheduler.params.total_num_steps"},
      {R"("model": {"hidden_sizes": [8]})", "model.hidden_sizes: means nothing to model.type gpt"},
      {R"("optimizer": {"params": {"lr": 0.1}})", "optimizer.type: is missing"},
      {R"("scheduler": {"params": {"warmup_steps": 1}})", "scheduler.type: is missing"},
      {R"("scheduler": {"type": "OneCycle"})", "scheduler.params.cycle_max_lr: is required"},
      {R"("scheduler": {"type": "cosine"})", "scheduler.params.total_steps must be at least 1"},
      {R"("scheduler": {"type": "LRRangeTest"})", "scheduler.type: must be one of"},
      {R"("model": {"type": "mlp"})", "data.type: text does not fit model.type mlp"},
      {R"("optimizer": {"type": "SGD", "params": {"nesterov": true}})",
       "true needs momentum > 0 and dampening 0, got momentum 0"},
  };
  for (const auto& [more, part] : cases) expect_parts(error_of(with_batch(more)), {part});
}

TEST(Config, DoubtfulSchedulesWarn) {
  const Config config = parse(with_batch(
      R"("scheduler": {"type": "cosine", "params": {"warmup_steps": 9, "total_steps": 5}})"));
  expect_parts(all_warnings(config), {"LR warm-up of 9 steps leaves nothing of 5"});
}

TEST(Override, IsTypedLikeTheFile) {
  const Config config =
      parse(with_batch(R"("sam": {"rho": 0.1}, "train": {"steps": 5})"),
            {"sam.rho=0.2", "sam.enabled=true", "train.steps=1e2", "optimizer.type=lion",
             "sam.scope=local", "optimizer.params.betas=[0.5, 0.75]", "bf16={\"enabled\": true}",
             "data.path=2024", "data.test_path=a=b", "sam.rho=0.3"});
  EXPECT_EQ(config.sam.rho, 0.3);  // the later one wins
  EXPECT_TRUE(config.sam.enabled);
  EXPECT_EQ(config.sam.scope, SamScope::kLocal);
  EXPECT_EQ(config.train.steps, 100);
  EXPECT_EQ(config.optimizer.kind, OptimizerKind::kLion);
  EXPECT_EQ(config.optimizer.beta2, 0.75);
  EXPECT_EQ(config.precision, DType::kBF16);
  EXPECT_EQ(config.data.paths, std::vector<std::string>{"2024"});  // a name, not a number
  EXPECT_EQ(config.data.test_path, "a=b");
}

TEST(Override, NullGoesBackToTheDefault) {
  const std::string text = with_batch(
      R"("sam": {"rho": 0.1}, "scheduler": {"type": "constant", "params": {"warmup_steps": 3}})");
  EXPECT_EQ(parse(text, {"sam.rho=null"}).sam.rho, 0.05);
  EXPECT_TRUE(parse(text).scheduler);
  EXPECT_FALSE(parse(text, {"scheduler=null"}).scheduler);
}

TEST(Override, ErrorsSayWhereTheyCameFrom) {
  const std::pair<const char*, const char*> cases[] = {
      {"sam.rho=-1", "(override): sam.rho: must be a number of at least 0, got -1"},
      {"sam.roh=1", "(override): sam.roh: unknown key; did you mean sam.rho?"},
      {"bf16.enabled=maybe", "(override): bf16.enabled: must be true or false, got \"maybe\""},
      {"optimizer.params.lr=auto", "\"auto\" is filled in by a trainer"},
      {"sam.rho", "(override): sam.rho: an override has the form key.path=value"},
      {"=1", "an override has the form key.path=value"},
      {"bf16={\"enabled\": true, \"enabled\": false}", "(override): bf16: (override):1:19: key"},
  };
  for (const auto& [override_text, part] : cases) {
    expect_parts(error_of(with_batch(R"("optimizer": {"type": "SGD", "params": {"lr": 1}})"),
                          {override_text}),
                 {part});
  }
}

TEST(Override, OfATypeWarnsAboutWhatTheFileSetForTheOldOne) {
  const std::string text =
      with_batch(R"("optimizer": {"type": "AdamW", "params": {"lr": 0.1, "eps": 1e-6}})");
  const Config config = parse(text, {"optimizer.type=Lion"});
  EXPECT_EQ(config.optimizer.kind, OptimizerKind::kLion);
  expect_parts(all_warnings(config),
               {"run.json:1:78: optimizer.params.eps: no effect with optimizer.type lion"});
  expect_parts(error_of(text, {"optimizer.type=Lion", "optimizer.params.eps=1e-7"}),
               {"(override): optimizer.params.eps: means nothing to"});
}

TEST(LoadConfig, ReadsAFileAndNamesTheOneItCannot) {
  const std::string path = ::testing::TempDir() + "zerosharp_config_test.json";
  std::ofstream(path) << with_batch("\n\"sam\": {\"rho\": 0.25}");
  const Config config = load_config(path, {}, 2);
  std::remove(path.c_str());
  EXPECT_EQ(config.sam.rho, 0.25);
  EXPECT_EQ(config.source, path);
  try {
    load_config(path, {}, 2);
    FAIL() << "a removed file was read";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.what(), path + ": the configuration file cannot be opened; check the path");
  }
  EXPECT_THROW(load_config(::testing::TempDir(), {}, 2), ConfigError);  // a folder
}

}  // namespace
}  // namespace zerosharp
