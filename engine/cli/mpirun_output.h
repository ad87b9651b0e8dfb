// What Open MPI's mpirun prints, taken apart.
#pragma once
#include <deque>
#include <optional>
#include <string>

#include "engine/cli/child_processes.h"

namespace zerosharp {

/// One line of a rank behind mpirun --tag-output: "[job,rank]<stdout>:text".
struct TaggedLine {
  int rank = -1;
  bool is_error = false;  ///< it came from stderr
  std::string text;
};

/// Nothing for a line without a tag: those are mpirun's own.
std::optional<TaggedLine> parse_tag(const std::string& line);

/// Finds out which rank failed, and how, from what mpirun and the ranks print.
class MpirunVerdict {
 public:
  /// A line of mpirun itself.
  void read(const std::string& line);
  /// A line of a rank: one may say that it failed before mpirun does.
  void read_rank_line(int rank, const std::string& line);

  /// The rank to blame, if anyone named it. mpirun's word goes before a rank's.
  std::optional<int> rank() const;
  /// How that rank ended; `of_mpirun` where mpirun did not say.
  ExitStatus status(ExitStatus of_mpirun) const;
  /// The last lines of mpirun itself, for failures that are no rank's.
  const std::deque<std::string>& last_words() const { return last_words_; }

 private:
  std::optional<int> blamed_by_mpirun_, blamed_by_itself_, signal_, code_;
  std::deque<std::string> last_words_;
};

}  // namespace zerosharp
