#include "engine/monitor/process_memory.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace zerosharp {
namespace {

int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.compare(0, field.size(), field) != 0) continue;
    return std::stoll(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

}  // namespace

int64_t rss_bytes() { return status_bytes("VmRSS"); }
int64_t peak_rss_bytes() { return status_bytes("VmHWM"); }

double process_age_seconds() {
  std::ifstream stat("/proc/self/stat");
  std::ifstream uptime("/proc/uptime");
  std::string text;
  double now = 0;
  if (!std::getline(stat, text) || !(uptime >> now)) return 0;
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string field;
  for (int i = 3; i <= 22 && fields >> field; ++i) continue;  // field 22: start, in clock ticks
  return now - std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace zerosharp
