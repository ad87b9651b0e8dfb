// A program that a test starts, talks to by signals, and can be sure to be rid of.
#pragma once
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace zerosharp::testing {

/// A folder that goes away with the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = ::testing::TempDir() + "zerosharp-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "no folder " << name;
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Asks `condition` until it holds; false if it did not within `seconds`.
inline bool becomes_true(double seconds, const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return condition();
}

/// One program with its output in files. An environment variable marks it and all processes that
/// come from it, however far they have detached themselves, so that none is overlooked.
class RunningProgram {
 public:
  /// `environment`: "NAME=value" sets, "NAME" removes.
  explicit RunningProgram(std::vector<std::string> command,
                          std::vector<std::string> environment = {}) {
    static int count = 0;
    mark_ = "ZEROSHARP_TEST_MARK=" + std::to_string(getpid()) + "-" + std::to_string(++count);
    environment.push_back(mark_);
    pid_ = fork();
    if (pid_ == 0) become(command, environment);
  }
  ~RunningProgram() {
    for (const pid_t pid : family()) kill(pid, SIGKILL);
    if (!status_) waitpid(pid_, nullptr, 0);
  }
  RunningProgram(const RunningProgram&) = delete;
  RunningProgram& operator=(const RunningProgram&) = delete;

  void send(int signal) const { kill(pid_, signal); }

  /// The exit code, or 1000 + the signal that ended it; nothing if it runs on after `seconds`.
  std::optional<int> exit_code(double seconds) {
    becomes_true(seconds, [this] {
      int status = 0;
      if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) {
        status_ = WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
      }
      return status_.has_value();
    });
    return status_;
  }

  std::string out() const { return read_text(folder_ / "out"); }
  std::string err() const { return read_text(folder_ / "err"); }

  bool prints(const std::string& text, double seconds) const {
    return becomes_true(seconds, [&] { return out().find(text) != std::string::npos; });
  }

  /// The live processes that come from the program, itself included.
  std::vector<pid_t> family() const {
    std::vector<pid_t> pids;
    DIR* proc = opendir("/proc");
    while (const dirent* entry = readdir(proc)) {
      const pid_t pid = std::atoi(entry->d_name);
      if (pid <= 0) continue;
      const std::string environment = read_text("/proc/" + std::to_string(pid) + "/environ") + '\0';
      if (environment.find(mark_ + '\0') != std::string::npos) pids.push_back(pid);
    }
    closedir(proc);
    return pids;
  }

 private:
  [[noreturn]] void become(const std::vector<std::string>& command,
                           const std::vector<std::string>& environment) const {
    for (const std::string& entry : environment) putenv(const_cast<char*>(entry.c_str()));
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(open((folder_ / "out").c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    dup2(open((folder_ / "err").c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(126);
  }

  TemporaryFolder folder_;
  std::string mark_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

}  // namespace zerosharp::testing
