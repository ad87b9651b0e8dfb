#include "engine/cli/rank_output.h"

#include <cstdio>
#include <cstring>
#include <string_view>

namespace zerosharp {

void RankOutput::print(int rank, bool is_error, const std::string& line) {
  if (is_error && is_repeated_error(line)) return;
  std::FILE* stream = is_error ? stderr : stdout;
  if (rank > 0) std::fprintf(stream, "[r%d] ", rank);
  std::fprintf(stream, "%s\n", line.c_str());
  std::fflush(stream);
  if (!is_error) return;
  constexpr size_t kLastWords = 5;
  auto& lines = errors_[rank];
  lines.push_back(line);
  if (lines.size() > kLastWords) lines.pop_front();
  last_error_rank_ = rank;
}

void RankOutput::report(int rank, ExitStatus status) const {
  const auto found = errors_.find(rank);
  if (found != errors_.end() && last_error_rank_ != rank) {
    std::fprintf(stderr, "zerosharp launch: last lines of rank %d:\n", rank);
    for (const auto& line : found->second) std::fprintf(stderr, "  %s\n", line.c_str());
  }
  if (status.signal != 0) {
    std::fprintf(stderr, "zerosharp launch: rank %d was killed by signal %d (%s)\n", rank,
                 status.signal, strsignal(status.signal));
  } else {
    std::fprintf(stderr, "zerosharp launch: rank %d failed with exit code %d\n", rank, status.code);
  }
}

/// Ranks often fail of one cause: the same message but for its "[rank N]" is shown once.
bool RankOutput::is_repeated_error(const std::string& line) {
  constexpr std::string_view kStart = "zerosharp: error: [rank ";
  if (line.rfind(kStart, 0) != 0) return false;
  const size_t end = line.find(']', kStart.size());
  if (end == std::string::npos) return false;
  return !messages_.insert(line.substr(end + 1)).second;
}

}  // namespace zerosharp
