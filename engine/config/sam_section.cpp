#include "engine/config/sam_section.h"

#include <algorithm>
#include <array>

#include "engine/config/composer_section.h"

namespace zerosharp {
namespace {

struct VariantEntry {
  SamVariant variant;
  const char* name;
  std::vector<std::string> keys;  // coefficients it reads
};

const std::vector<VariantEntry>& variants() {
  static const std::vector<VariantEntry> all = {
      {SamVariant::kSam, "sam", {}},
      {SamVariant::kAsam, "asam", {"eta"}},
      {SamVariant::kMsam, "msam", {}},
      {SamVariant::kGsam, "gsam", {"alpha"}},
      {SamVariant::kFsam, "fsam", {"sigma", "decay"}},
      {SamVariant::kVasso, "vasso", {"theta"}},
      {SamVariant::kPreconditioned, "preconditioned", {"delta"}},
      {SamVariant::kAeSam, "aesam", {"decay", "threshold_start", "threshold_end"}},
      {SamVariant::kLookSam, "looksam", {"alpha", "k"}},
  };
  return all;
}

SamVariant variant_named(const std::string& name) {
  for (const VariantEntry& entry : variants()) {
    if (name == entry.name) return entry.variant;
  }
  return SamVariant::kSam;  // other names have been complained about
}

constexpr std::array<const char*, 4> kScopes = {"global", "group", "local", "micro"};
constexpr std::array<const char*, 3> kRoundings = {"auto", "nearest", "stochastic"};

template <class Enum, size_t kCount>
Enum enum_named(const std::array<const char*, kCount>& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? Enum{} : static_cast<Enum>(found - names.begin());
}

void check_coefficients(const KeyValues& v, SamVariant variant, Complaints& complaints) {
  const std::string own = sam_variant_name(variant);
  for (const VariantEntry& entry : variants()) {
    for (const std::string& key : entry.keys) {
      const std::string path = "sam." + key;
      const auto& read = variants()[static_cast<size_t>(variant)].keys;
      if (!v.has(path) || std::find(read.begin(), read.end(), key) != read.end()) continue;
      complaints.add(v.where(path), path,
                     "means nothing to sam.variant \"" + own + "\"; it belongs to \"" + entry.name +
                         "\": set the variant, or leave the key out");
      return;
    }
  }
}

void read_times(const KeyValues& v, SamConfig& s, Complaints& complaints) {
  const auto read = [&](const std::string& path, const std::string& steps,
                        std::optional<Time>& to) {
    if (!v.has(path)) return;
    to = v.time(path, {});
    if (v.has(steps)) {
      complaints.add(v.where(path), path, "and " + steps + " say the same; remove one");
    }
  };
  read("sam.start", "sam.start_step", s.start);
  read("sam.end", "sam.end_step", s.end);
}

std::optional<RhoScheduleConfig> read_rho_scheduler(KeyValues& v, Complaints& complaints) {
  const std::string p = "sam.rho_scheduler.";
  if (!v.has_section("sam.rho_scheduler")) return std::nullopt;
  RhoScheduleConfig s;
  if (!v.has(p + "name")) {
    complaints.add(v.where("sam.rho_scheduler"), p + "name",
                   "is missing; name the schedule of rho, for example \"linear_in_lr\"");
    return std::nullopt;
  }
  s.linear_in_lr = v.string(p + "name", "") == "linear_in_lr";
  if (!s.linear_in_lr) {
    s.schedule = read_composer_schedule(v, p, {}, complaints);
    return s;
  }
  v.check_used(p, p + "name", "linear_in_lr", {"rho_min", "lr_min", "lr_max"});
  s.rho_min = v.number(p + "rho_min", 0);
  s.lr_min = v.number(p + "lr_min", 0);
  if (v.has(p + "lr_max")) s.lr_max = v.number(p + "lr_max", 0);
  if (s.lr_max && *s.lr_max <= s.lr_min) {
    complaints.add(v.where(p + "lr_max"), p + "lr_max",
                   "must lie above lr_min, got " + v.text(p + "lr_max"));
  }
  return s;
}

}  // namespace

const char* sam_variant_name(SamVariant variant) noexcept {
  return variants()[static_cast<size_t>(variant)].name;
}
const char* sam_scope_name(SamScope scope) noexcept { return kScopes[static_cast<size_t>(scope)]; }
const char* sam_rounding_name(SamRounding rounding) noexcept {
  return kRoundings[static_cast<size_t>(rounding)];
}

SamConfig read_sam(KeyValues& v, Complaints& complaints) {
  SamConfig s;
  s.enabled = v.boolean("sam.enabled", v.was_written("algorithms.sam"));
  s.rho = v.number("sam.rho", s.rho);
  s.epsilon = v.number("sam.epsilon", s.epsilon);
  s.interval = v.integer("sam.interval", s.interval);
  s.scope = enum_named<SamScope>(kScopes, v.string("sam.scope", "global"));
  s.group_size = v.integer("sam.group_size", s.group_size);
  s.variant = variant_named(v.string("sam.variant", "sam"));
  s.rounding = enum_named<SamRounding>(kRoundings, v.string("sam.rounding", "auto"));
  s.same_rng = v.boolean("sam.same_rng", s.same_rng);
  s.freeze_bn = v.boolean("sam.freeze_bn", s.freeze_bn);
  s.ascent_fraction = v.number("sam.ascent_fraction", s.ascent_fraction);
  s.params = v.strings("sam.params");
  s.start_step = v.integer("sam.start_step", s.start_step);
  s.end_step = v.integer("sam.end_step", s.end_step);
  read_times(v, s, complaints);
  s.skip_when_lr_zero = v.boolean("sam.skip_when_lr_zero", s.skip_when_lr_zero);
  s.rho_scheduler = read_rho_scheduler(v, complaints);
  s.report_cosine = v.boolean("sam.report_cosine", s.report_cosine);
  s.eta = v.number("sam.eta", s.eta);
  s.alpha = v.number("sam.alpha", s.variant == SamVariant::kLookSam ? 0.7 : s.alpha);
  s.sigma = v.number("sam.sigma", s.sigma);
  s.decay = v.number("sam.decay", s.decay);
  s.theta = v.number("sam.theta", s.theta);
  s.delta = v.number("sam.delta", s.delta);
  s.threshold_start = v.number("sam.threshold_start", s.threshold_start);
  s.threshold_end = v.number("sam.threshold_end", s.threshold_end);
  s.k = v.integer("sam.k", s.k);
  check_coefficients(v, s.variant, complaints);
  if (v.has("sam.group_size") && s.scope != SamScope::kGroup) {
    complaints.add(v.where("sam.group_size"), "sam.group_size",
                   "means nothing without \"scope\": \"group\"; set the scope, or leave it out");
  }
  return s;
}

}  // namespace zerosharp
