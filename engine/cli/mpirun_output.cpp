#include "engine/cli/mpirun_output.h"

#include <cstdio>
#include <cstring>

namespace zerosharp {
namespace {

/// The number that follows the first `words` of `line`.
std::optional<int> number_after(const std::string& line, const char* words) {
  const size_t at = line.find(words);
  int number = 0;
  if (at == std::string::npos) return std::nullopt;
  if (std::sscanf(line.c_str() + at + std::strlen(words), "%d", &number) != 1) return std::nullopt;
  return number;
}

/// "  Process name: [[job,family],rank]".
std::optional<int> rank_of_process_name(const std::string& line) {
  int job = 0, family = 0, rank = 0;
  if (std::sscanf(line.c_str(), " Process name: [[%d,%d],%d]", &job, &family, &rank) != 3) {
    return std::nullopt;
  }
  return rank;
}

void keep_first(std::optional<int>& kept, std::optional<int> found) {
  if (!kept) kept = found;
}

}  // namespace

std::optional<TaggedLine> parse_tag(const std::string& line) {
  int job = 0;
  TaggedLine tagged;
  char stream[8] = "";
  int length = 0;
  if (std::sscanf(line.c_str(), "[%d,%d]<%6[a-z]>:%n", &job, &tagged.rank, stream, &length) != 3 ||
      length == 0) {
    return std::nullopt;
  }
  tagged.is_error = std::strcmp(stream, "stderr") == 0;
  tagged.text = line.substr(static_cast<size_t>(length));
  return tagged;
}

void MpirunVerdict::read(const std::string& line) {
  constexpr size_t kLastWords = 20;
  last_words_.push_back(line);
  if (last_words_.size() > kLastWords) last_words_.pop_front();

  keep_first(blamed_by_mpirun_, number_after(line, "mpirun noticed that process rank "));
  keep_first(blamed_by_mpirun_, number_after(line, "MPI_ABORT was invoked on rank "));
  keep_first(blamed_by_mpirun_, rank_of_process_name(line));
  keep_first(signal_, number_after(line, "exited on signal "));
  keep_first(code_, number_after(line, "Exit code:"));
  keep_first(code_, number_after(line, "with errorcode "));
}

void MpirunVerdict::read_rank_line(int rank, const std::string& line) {
  if (line.rfind("zerosharp: error:", 0) == 0) keep_first(blamed_by_itself_, rank);
}

std::optional<int> MpirunVerdict::rank() const {
  return blamed_by_mpirun_ ? blamed_by_mpirun_ : blamed_by_itself_;
}

ExitStatus MpirunVerdict::status(ExitStatus of_mpirun) const {
  if (signal_) return {128 + *signal_, *signal_};
  if (code_ && *code_ != 0) return {*code_, 0};
  return of_mpirun;
}

}  // namespace zerosharp
