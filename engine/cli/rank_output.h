// What ranks print, as the person who launched them sees it.
#pragma once
#include <deque>
#include <map>
#include <set>
#include <string>

#include "engine/cli/child_processes.h"

namespace zerosharp {

/// Passes ranks' lines on to stdout and stderr: rank 0's as they are, the others' behind "[r1] ",
/// "[r2] " …, an error that several ranks report once. Remembers each rank's last words.
class RankOutput {
 public:
  /// One complete line of a rank, without its end.
  void print(int rank, bool is_error, const std::string& line);

  /// Prints the last words of the rank that failed, unless they stand last already, and what
  /// became of it.
  void report(int rank, ExitStatus status) const;

 private:
  bool is_repeated_error(const std::string& line);

  std::map<int, std::deque<std::string>> errors_;
  std::set<std::string> messages_;
  int last_error_rank_ = -1;
};

}  // namespace zerosharp
