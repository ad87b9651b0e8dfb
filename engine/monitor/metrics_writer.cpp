#include "engine/monitor/metrics_writer.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/error.h"

namespace zerosharp {
namespace {

using Json = nlohmann::ordered_json;

/// JSON has no NaN: it becomes null and leaves a mark.
void put(Json& json, Json& marked, const char* name, double value) {
  if (std::isfinite(value)) {
    json[name] = value;
  } else {
    json[name] = nullptr;
    marked["nan"] = true;
  }
}

}  // namespace

MetricsWriter::MetricsWriter(const std::string& folder) : folder_(folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fail_config("--out: the folder ", folder, " cannot be made: ", error.message(),
                "; choose another with --out DIR");
  }
  const std::string path = folder + "/metrics.jsonl";
  errno = 0;
  metrics_.open(path, std::ios::trunc);
  if (!metrics_) {
    fail_config("--out: ", path, " cannot be written: ", std::strerror(errno),
                "; choose another folder with --out DIR");
  }
}

void MetricsWriter::write_config(const std::string& json) {
  write_file("config.json", json + "\n");
}

void MetricsWriter::write_step(const StepRecord& r) {
  Json json;
  json["step"] = r.step;
  put(json, json, "loss", r.loss);
  put(json, json, "lr", r.lr);
  put(json, json, "grad_norm", r.grad_norm);
  json["tokens"] = r.tokens;
  put(json, json, "step_ms", r.step_ms);
  put(json, json, "tokens_per_s", r.tokens_per_s);
  json["rss_bytes"] = r.rss_bytes;
  json["device_bytes"] = r.device_bytes;
  json["skipped"] = r.skipped;
  put(json, json, "loss_scale", r.loss_scale);
  if (r.sam) {
    Json sam;
    put(sam, json, "rho", r.sam->rho);
    put(sam, json, "e_norm", r.sam->e_norm);
    put(sam, json, "loss_perturbed", r.sam->loss_perturbed);
    put(sam, json, "moved", r.sam->moved);
    put(sam, json, "efficacy", r.sam->efficacy);
    put(sam, json, "realised", r.sam->realised);
    if (r.sam->cosine) put(sam, json, "cosine", *r.sam->cosine);
    json["sam"] = sam;
  }
  write_line(json.dump());
}

void MetricsWriter::write_eval(int64_t step, double loss) {
  Json json;
  json["step"] = step;
  put(json, json, "eval_loss", loss);
  write_line(json.dump());
}

void MetricsWriter::write_summary(const RunSummary& s) {
  Json json;
  json["steps"] = s.steps;
  json["skipped"] = s.skipped;
  json["tokens"] = s.tokens;
  put(json, json, "seconds", s.seconds);
  put(json, json, "seconds_to_first_step", s.seconds_to_first_step);
  put(json, json, "median_step_ms", s.median_step_ms);
  put(json, json, "final_loss", s.final_loss);
  if (s.eval_loss) put(json, json, "eval_loss", *s.eval_loss);
  if (s.unigram_loss) put(json, json, "unigram_loss", *s.unigram_loss);
  json["num_parameters"] = s.num_parameters;
  json["peak_rss_bytes_per_rank"] = s.peak_rss_bytes_per_rank;
  json["state_bytes"] = s.state_bytes;
  write_file("summary.json", json.dump(2) + "\n");
}

void MetricsWriter::write_file(const std::string& name, const std::string& text) {
  const std::string path = folder_ + "/" + name;
  const std::string temporary = path + ".tmp";
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << text;
    file.flush();
    if (!file) fail<Error>("--out: ", temporary, " cannot be written: ", std::strerror(errno));
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) fail<Error>("--out: ", path, " cannot be written: ", error.message());
}

void MetricsWriter::write_line(const std::string& json) {
  metrics_ << json << '\n' << std::flush;
  if (!metrics_) {
    fail<Error>("--out: writing ", folder_, "/metrics.jsonl failed: ", std::strerror(errno));
  }
}

}  // namespace zerosharp
