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

/// Exit code 128 + N stands for signal N.
ExitStatus status_of(int code) {
  constexpr int kLastSignal = 64;
  const bool by_signal = code > 128 && code <= 128 + kLastSignal;
  return {code, by_signal ? code - 128 : 0};
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

std::vector<std::string> reporting_rank(const std::string& report,
                                        const std::vector<std::string>& program) {
  // The shell outlives a SIGTERM to both, and keeps its own words ("Killed") to itself.
  constexpr const char* kScript =
      "trap : TERM; exec 3>&2 2>/dev/null; (exec \"$@\" 2>&3 3>&-); code=$?; "
      "[ $code = 0 ] || echo \"$OMPI_COMM_WORLD_RANK $code\" >\"$0\"; exit $code";
  std::vector<std::string> command = {"/bin/sh", "-c", kScript, report};
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

void MpirunVerdict::read(const std::string& line) {
  constexpr size_t kLastWords = 20;
  last_words_.push_back(line);
  if (last_words_.size() > kLastWords) last_words_.pop_front();

  keep_first(abort_.rank, number_after(line, "MPI_ABORT was invoked on rank "));
  keep_first(abort_.code, number_after(line, "with errorcode "));
  keep_first(mpirun_.rank, number_after(line, "mpirun noticed that process rank "));
  keep_first(mpirun_.rank, rank_of_process_name(line));
  keep_first(mpirun_.code, number_after(line, "Exit code:"));
  if (const auto signal = number_after(line, "exited on signal ")) {
    keep_first(mpirun_.code, 128 + *signal);
  }
}

void MpirunVerdict::read_rank_line(int rank, const std::string& line) {
  if (line.rfind("zerosharp: error:", 0) == 0) keep_first(itself_.rank, rank);
}

void MpirunVerdict::read_report(const std::string& text) {
  int rank = 0, code = 0;
  if (std::sscanf(text.c_str(), "%d %d", &rank, &code) != 2) return;
  report_ = {rank, code};
}

std::optional<int> MpirunVerdict::rank() const {
  for (const Testimony* witness : {&abort_, &report_, &mpirun_, &itself_}) {
    if (witness->rank) return witness->rank;
  }
  return std::nullopt;
}

ExitStatus MpirunVerdict::status(ExitStatus of_mpirun) const {
  for (const Testimony* witness : {&abort_, &report_, &mpirun_}) {
    if (witness->rank && witness->code.value_or(0) != 0) return status_of(*witness->code);
  }
  return of_mpirun;
}

}  // namespace zerosharp
