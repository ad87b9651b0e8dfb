#include "engine/cli/child_processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "engine/cli/command_line.h"

namespace zerosharp {
namespace {

/// A background process that reads the terminal is stopped by the kernel, for ever.
void let_go_of_terminal() {
  if (isatty(STDIN_FILENO) == 0) return;
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
}

[[noreturn]] void become(const std::vector<std::string>& command,
                         const std::vector<std::string>& environment, int out, int err, int failure,
                         int death_signal, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, death_signal);
  if (getppid() != parent) _exit(127);  // it died before it could be watched
  setpgid(0, 0);
  let_go_of_terminal();
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  for (const std::string& entry : environment) putenv(const_cast<char*>(entry.c_str()));
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int error = errno;
  [[maybe_unused]] const auto told = write(failure, &error, sizeof error);
  _exit(127);
}

/// read() that a signal does not interrupt.
ssize_t read_uninterrupted(int fd, void* data, size_t size) {
  ssize_t got = 0;
  do {
    got = read(fd, data, size);
  } while (got < 0 && errno == EINTR);
  return got;
}

void take_lines(std::string& partial, const std::function<void(const std::string&)>& sink) {
  size_t begin = 0;
  for (size_t end; (end = partial.find('\n', begin)) != std::string::npos; begin = end + 1) {
    sink(partial.substr(begin, end - begin));
  }
  partial.erase(0, begin);
}

/// Reads once; closes the end at end of file.
void read_some(int& fd, std::string& partial, const std::function<void(const std::string&)>& sink) {
  char buffer[16384];
  const ssize_t got = read(fd, buffer, sizeof buffer);
  if (got > 0) {
    partial.append(buffer, static_cast<size_t>(got));
  } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
    close(fd);
    fd = -1;
    if (!partial.empty()) partial += '\n';
  }
  take_lines(partial, sink);
}

void reap(std::vector<Child>& children) {
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    for (Child& child : children) {
      if (child.pid != pid) continue;  // an adopted orphan
      child.running = false;
      child.status.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      child.status.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
  }
}

std::multimap<pid_t, pid_t> children_by_parent() {
  std::multimap<pid_t, pid_t> family;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return family;
  while (const dirent* entry = readdir(proc)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    std::ifstream stat("/proc/" + std::string(entry->d_name) + "/stat");
    std::string text;
    std::getline(stat, text);
    const size_t name_end = text.rfind(')');  // the name may hold anything
    if (name_end == std::string::npos || name_end + 4 > text.size()) continue;
    if (text[name_end + 2] == 'Z') continue;
    family.emplace(std::atoi(text.c_str() + name_end + 4), pid);
  }
  closedir(proc);
  return family;
}

}  // namespace

Pipe::Pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw UsageError(std::string("no pipe could be made: ") + std::strerror(errno) +
                     "; raise the limit of open files (ulimit -n)");
  }
  read = ends[0];
  write = ends[1];
}

Child start_child(const std::vector<std::string>& command,
                  const std::vector<std::string>& environment, int death_signal) {
  Pipe out, err, failure;
  const pid_t self = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    become(command, environment, out.write, err.write, failure.write, death_signal, self);
  }
  close(out.write);
  close(err.write);
  close(failure.write);
  int error = pid < 0 ? errno : 0;
  const bool failed = pid < 0 || read_uninterrupted(failure.read, &error, sizeof error) > 0;
  close(failure.read);
  if (failed) {
    if (pid > 0) waitpid(pid, nullptr, 0);
    throw UsageError(command[0] + " cannot be started: " + std::strerror(error));
  }
  Child child;
  child.pid = pid;
  child.out = out.read;
  child.err = err.read;
  return child;
}

void pump(std::vector<Child>& children, std::chrono::milliseconds wait, const LineSink& sink) {
  std::vector<pollfd> ends;
  for (const Child& child : children) {
    for (const int fd : {child.out, child.err}) {
      if (fd >= 0) ends.push_back({fd, POLLIN, 0});
    }
  }
  poll(ends.data(), ends.size(), static_cast<int>(wait.count()));
  for (size_t i = 0; i < children.size(); ++i) {
    Child& child = children[i];
    const auto ready = [&](int fd) {
      for (const pollfd& end : ends) {
        if (end.fd == fd && end.revents != 0) return true;
      }
      return false;
    };
    if (child.out >= 0 && ready(child.out)) {
      read_some(child.out, child.partial_out, [&](const std::string& l) { sink(i, false, l); });
    }
    if (child.err >= 0 && ready(child.err)) {
      read_some(child.err, child.partial_err, [&](const std::string& l) { sink(i, true, l); });
    }
  }
  reap(children);
}

void adopt_orphans() {
  signal(SIGCHLD, SIG_DFL);  // inherited as ignored, exit codes would be lost
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

int signal_descendants(int signal, pid_t spared) {
  const auto family = children_by_parent();
  std::vector<pid_t> left = {getpid()};
  int count = 0;
  while (!left.empty()) {
    const pid_t parent = left.back();
    left.pop_back();
    const auto [begin, end] = family.equal_range(parent);
    for (auto child = begin; child != end; ++child) {
      if (child->second != spared) kill(child->second, signal);
      left.push_back(child->second);
      ++count;
    }
  }
  return count;
}

void end_descendants(std::vector<Child>& children, double grace_seconds, const LineSink& sink,
                     pid_t spared) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPause(50);
  const auto deadline = Clock::now() + std::chrono::duration<double>(grace_seconds);
  signal_descendants(SIGTERM, spared);
  while (signal_descendants(0) > 0 && Clock::now() < deadline) pump(children, kPause, sink);
  // A process may fork while it is looked for: repeat until nobody is found.
  for (int i = 0; i < 100 && signal_descendants(SIGKILL) > 0; ++i) pump(children, kPause, sink);
  // What is left in the pipes: they hold 64 KiB, and a read takes 16.
  for (int i = 0; i < 20; ++i) pump(children, std::chrono::milliseconds(1), sink);
}

}  // namespace zerosharp
