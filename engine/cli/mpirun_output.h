// What Open MPI's mpirun prints, taken apart.
#pragma once
#include <deque>
#include <optional>
#include <string>
#include <vector>

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

/// The command that makes a rank of `program` tell how it ended: a shell runs it and, should it
/// fail, writes "rank code" to the file `report` before it ends itself. Open MPI 4.1 names the
/// first rank that failed in its messages, but now and then, when others end at the same time, it
/// does not.
std::vector<std::string> reporting_rank(const std::string& report,
                                        const std::vector<std::string>& program);

/// Finds out which rank failed first, and how, from what mpirun and the ranks say.
class MpirunVerdict {
 public:
  /// A line of mpirun itself.
  void read(const std::string& line);
  /// A line of a rank: one may say that it failed.
  void read_rank_line(int rank, const std::string& line);
  /// What ranks wrote into the report of reporting_rank(), in the order of their ends.
  void read_report(const std::string& text);

  /// The rank to blame, if anyone named it: the one that called MPI_Abort (the others are then
  /// ended by mpirun), else the first in the report, else the one mpirun names, else the first that
  /// printed an error.
  std::optional<int> rank() const;
  /// How that rank ended; `of_mpirun` where nobody said.
  ExitStatus status(ExitStatus of_mpirun) const;
  /// The last lines of mpirun itself, for failures that are no rank's.
  const std::deque<std::string>& last_words() const { return last_words_; }

 private:
  /// A rank and its exit code, as one witness has them.
  struct Testimony {
    std::optional<int> rank, code;
  };

  Testimony abort_, report_, mpirun_, itself_;
  std::deque<std::string> last_words_;
};

}  // namespace zerosharp
