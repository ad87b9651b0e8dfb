// What mpirun says about its ranks, in the words of Open MPI 4.1.
#include "engine/cli/mpirun_output.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace zerosharp {
namespace {

TEST(MpirunOutput, TagsAreTakenApart) {
  const auto out = parse_tag("[1,12]<stdout>:step 3: [1,2]<stderr>:x");
  ASSERT_TRUE(out);
  EXPECT_EQ(out->rank, 12);
  EXPECT_FALSE(out->is_error);
  EXPECT_EQ(out->text, "step 3: [1,2]<stderr>:x");
  const auto err = parse_tag("[4,0]<stderr>:");
  ASSERT_TRUE(err);
  EXPECT_TRUE(err->is_error);
  EXPECT_EQ(err->text, "");
  for (const char* own : {"", "----", "[1,2] text", "[1,2]<stdout", "  Process name: [[3,1],2]"}) {
    EXPECT_FALSE(parse_tag(own)) << own;
  }
}

struct VerdictCase {
  std::vector<std::string> lines;  // of mpirun
  std::optional<int> rank;
  int code, signal;
};

TEST(MpirunOutput, VerdictNamesTheRankAndHowItEnded) {
  const ExitStatus of_mpirun = {99, 0};
  const VerdictCase cases[] = {
      {{"the job to be terminated. The first process to do so was:", "",
        "  Process name: [[13625,1],1]", "  Exit code:    3"},
       1,
       3,
       0},
      {{"mpirun noticed that process rank 2 with PID 0 on node vm exited on signal 9 (Killed)."},
       2,
       137,
       9},
      {{"MPI_ABORT was invoked on rank 5 in communicator MPI_COMM_WORLD", "with errorcode 4."},
       5,
       4,
       0},
      {{"mpirun was unable to launch the specified application"}, std::nullopt, 99, 0},
  };
  for (const VerdictCase& c : cases) {
    SCOPED_TRACE(c.lines.front());
    MpirunVerdict verdict;
    for (const auto& line : c.lines) verdict.read(line);
    EXPECT_EQ(verdict.rank(), c.rank);
    EXPECT_EQ(verdict.status(of_mpirun).code, c.code);
    EXPECT_EQ(verdict.status(of_mpirun).signal, c.signal);
    EXPECT_EQ(verdict.last_words().size(), c.lines.size());
  }
}

TEST(MpirunOutput, WhoIsBelievedBeforeWhom) {
  const ExitStatus of_mpirun = {99, 0};
  MpirunVerdict verdict;
  verdict.read_rank_line(0, "a warning");
  EXPECT_FALSE(verdict.rank());
  verdict.read_rank_line(3, "zerosharp: error: [rank 3] out of memory");
  verdict.read_rank_line(1, "zerosharp: error: [rank 1] a peer is gone");
  EXPECT_EQ(verdict.rank(), 3);
  EXPECT_EQ(verdict.status(of_mpirun).code, 99);

  verdict.read("  Process name: [[1,1],2]");
  verdict.read("  Exit code:    5");
  EXPECT_EQ(verdict.rank(), 2);
  EXPECT_EQ(verdict.status(of_mpirun).code, 5);

  verdict.read_report("");  // no rank wrote any
  EXPECT_EQ(verdict.rank(), 2);
  verdict.read_report("4 139\n0 143\n");
  EXPECT_EQ(verdict.rank(), 4);
  EXPECT_EQ(verdict.status(of_mpirun).code, 139);
  EXPECT_EQ(verdict.status(of_mpirun).signal, 11);

  verdict.read("MPI_ABORT was invoked on rank 6 in communicator MPI_COMM_WORLD");
  verdict.read("with errorcode 1.");
  EXPECT_EQ(verdict.rank(), 6);
  EXPECT_EQ(verdict.status(of_mpirun).code, 1);
  EXPECT_EQ(verdict.status(of_mpirun).signal, 0);
}

}  // namespace
}  // namespace zerosharp
