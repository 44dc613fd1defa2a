#include "tools/programs/program.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <new>
#include <utility>

#include "gtopk_version.hpp"

namespace gtopk::programs {
namespace {

std::string& who() {
  static std::string name;
  return name;
}

/// Joins the lines of an error.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

int report(const CLI::App& app, std::string_view what, int code) {
  const std::string place = who().empty() ? std::string() : who() + ": ";
  fmt::print(stderr, "{}: {}{}\n", app.get_name(), place, one_line(std::string(what)));
  return code;
}

}  // namespace

int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  // A closed stdout is noticed in print_line(), instead of by a signal that would end this rank
  // while the others depend on it.
  std::signal(SIGPIPE, SIG_IGN);
  app.set_version_flag("--version", fmt::format("{} {}", app.get_name(), kVersion));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return report(app, fmt::format("{} (--help says more)", error.what()), kUsage);
  }
  try {
    return body();
  } catch (const UsageError& error) {
    return report(app, error.what(), kUsage);
  } catch (const std::bad_alloc&) {
    return report(app, "out of memory", kFailed);
  } catch (const std::exception& error) {
    return report(app, error.what(), kFailed);
  }
}

void name_in_errors(std::string name) { who() = std::move(name); }

bool print_line(std::string_view line) {
  return std::fwrite(line.data(), 1, line.size(), stdout) == line.size() &&
         std::fputc('\n', stdout) != EOF && std::fflush(stdout) == 0;
}

std::vector<std::uint64_t> sizes_between(std::uint64_t begin, std::uint64_t end, double factor) {
  if (begin < 1 || end < begin) {
    throw UsageError(
        fmt::format("sizes go from -b {} to -e {}: expected 1 <= begin <= end", begin, end));
  }
  if (!(factor > 1)) {
    throw UsageError(fmt::format("-f is {}: expected a factor above 1", factor));
  }
  std::vector<std::uint64_t> sizes;
  for (auto size = static_cast<double>(begin); size < static_cast<double>(end); size *= factor) {
    const auto whole = static_cast<std::uint64_t>(std::llround(size));
    if (sizes.empty() || sizes.back() != whole) {
      sizes.push_back(whole);
    }
  }
  if (sizes.empty() || sizes.back() != end) {
    sizes.push_back(end);
  }
  return sizes;
}

void add_size(CLI::App& app, const std::string& names, std::uint64_t& size,
              const std::string& about) {
  app.add_option(names, size, about + "; K, M, G: times 1024, 1024^2, 1024^3")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
}

std::vector<std::string> chosen(std::string_view option, const std::string& names,
                                const std::vector<Choice>& choices) {
  std::vector<std::string> asked = CLI::detail::split(names, ',');
  const auto is_asked = [&](std::string_view name) {
    return std::find(asked.begin(), asked.end(), name) != asked.end();
  };
  const bool all = is_asked("all");
  std::vector<std::string> found;
  std::string known = "all";
  for (const Choice& choice : choices) {
    known += fmt::format(", {}", choice.name);
    if (all || is_asked(choice.name)) {
      found.emplace_back(choice.name);
    }
  }
  for (const std::string& name : asked) {
    const bool is_known =
        name == "all" || std::find(found.begin(), found.end(), name) != found.end();
    if (!is_known) {
      throw UsageError(fmt::format("{} has no '{}'; available: {}", option, name, known));
    }
  }
  return found;
}

std::string described(const std::vector<Choice>& choices) {
  std::string text;
  for (const Choice& choice : choices) {
    text += fmt::format("  {:<13} {}\n", choice.name, choice.description);
  }
  return text;
}

void check_memory(std::uint64_t bytes, std::string_view what) {
  const auto pages = static_cast<std::uint64_t>(std::max(sysconf(_SC_PHYS_PAGES), 0L));
  const std::uint64_t there = pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes <= there) {
    return;
  }
  throw UsageError(fmt::format("{} needs {:.3g} GB on this rank, and this host has {:.3g} GB", what,
                               static_cast<double>(bytes) * 1e-9,
                               static_cast<double>(there) * 1e-9));
}

JsonFile::JsonFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) {
    return;
  }
  const std::ofstream file(path_, std::ios::app);
  if (!file) {
    throw UsageError(fmt::format("--json: cannot write '{}'", path_));
  }
}

void JsonFile::write(const std::string& text) const {
  if (path_.empty()) {
    return;
  }
  std::ofstream file(path_);
  file << text << '\n';
  file.close();
  if (!file) {
    throw std::runtime_error(fmt::format("cannot write '{}'", path_));
  }
}

}  // namespace gtopk::programs
