// nobounce: the program. Commands are in files of their own; here is what they have in common.
#include <sys/prctl.h>

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <csignal>
#include <cstdio>
#include <exception>

#include "cli/program.hpp"

namespace nobounce::cli {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  nobounce backend --socket /tmp/nb.sock --net peer --ip 10.77.0.1/24\n"
    "  nobounce ping --net vhost-user:/tmp/nb.sock --ip 10.77.0.2/24 10.77.0.1\n"
    "  nobounce perf --net vhost-user:/tmp/nb.sock --ip 10.77.0.2/24 --client 10.77.0.1\n"
    "  nobounce stat\n"
    "\n"
    "'nobounce COMMAND --help' shows a command's options.\n";

int run(int argc, char** argv) {
  CLI::App program("User-space network stack for confidential VMs", "nobounce");
  program.require_subcommand(1);
  program.set_version_flag("--version", "nobounce " NOBOUNCE_VERSION);
  program.footer(kExamples);
  Action action;
  define_backend(program, action);
  define_perf(program, action);
  define_ping(program, action);
  define_stat(program, action);
  define_demo(program, action);
  define_version(program, action);
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help
    return program.exit(done);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s\n", explain(program, error).c_str());
    return 2;
  }
  const std::string name = "nobounce " + program.get_subcommands().front()->get_name();
  const auto status = action();
  if (status) return *status;
  std::fprintf(stderr, "%s: %s\n", name.c_str(), status.error().to_string().c_str());
  return 1;
}

}  // namespace
}  // namespace nobounce::cli

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // Packets and keys of this process are nobody else's to read, not even of the same user's (TM-87).
  // The sanitizers look into their own process by the way this closes.
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
#endif
  try {
    return nobounce::cli::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nobounce: %s\n", error.what());
    return 1;
  }
}
