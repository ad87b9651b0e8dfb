#include "engine/config/key_table.h"

#include <algorithm>
#include <sstream>

#include "engine/config/key_list.h"

namespace zerosharp {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<KeySpec> build_table() {
  std::vector<KeySpec> table = honoured_keys();
  for (const std::vector<KeySpec>& more : {composer_keys(), deepspeed_keys()}) {
    table.insert(table.end(), more.begin(), more.end());
  }
  return table;
}

std::string_view last_part(std::string_view path) {
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

/// Edit distance (insert, delete, replace, swap of neighbours).
size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

const std::vector<KeySpec>& key_table() {
  static const std::vector<KeySpec> table = build_table();
  return table;
}

const KeySpec* find_key(std::string_view path) {
  for (const KeySpec& key : key_table()) {
    if (key.path == path) return &key;
  }
  return nullptr;
}

std::string suggest_key(const std::string& path) {
  const std::string_view name = last_part(path);
  if (name == "max_grad_norm") return "set gradient_clipping at the top level instead";
  std::string homes;
  for (const KeySpec& key : key_table()) {
    if (last_part(key.path) == name) homes += (homes.empty() ? "" : " or ") + std::string(key.path);
  }
  if (!homes.empty()) return "it belongs at " + homes;
  if (name.size() > 100) return "no known key is like it";
  const KeySpec* nearest = nullptr;
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  for (const KeySpec& key : key_table()) {
    // A sibling of the same name counts a little nearer than one elsewhere.
    const bool sibling =
        key.path.size() - last_part(key.path).size() == path.size() - name.size() &&
        path.compare(0, path.size() - name.size(), key.path, 0, path.size() - name.size()) == 0;
    const size_t far = 2 * distance(name, last_part(key.path)) + (sibling ? 0 : 1);
    if (far >= 2 * best) continue;
    best = (far + 1) / 2;
    nearest = &key;
  }
  if (nearest == nullptr) return "no known key is like it; see `zerosharp help train`";
  return "did you mean " + std::string(nearest->path) + "?";
}

std::string describe_keys() {
  std::ostringstream text;
  for (const KeySpec& key : key_table()) {
    if (key.effect != KeyEffect::kHonoured) continue;
    if (key.type == KeyType::kSection) {
      text << "\n" << key.path << ": " << key.meaning << "\n";
      continue;
    }
    text << "  " << key.path;
    if (!key.fallback.empty()) text << " = " << key.fallback;
    text << "  " << key.meaning;
    if (key.type == KeyType::kChoice) text << " [" << key.choices << "]";
    if (key.least > -kInf && key.most < kInf) {
      text << " [" << key.least << " … " << key.most << "]";
    } else if (key.least > -kInf) {
      text << " [≥ " << key.least << "]";
    }
    text << "\n";
  }
  return text.str();
}

}  // namespace zerosharp
