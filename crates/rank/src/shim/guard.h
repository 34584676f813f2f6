// Catches C++ exceptions before they cross the boundary to Rust.
#pragma once

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace zp {

inline std::string& last_error() {
  thread_local std::string message;
  return message;
}

// Runs `body`. On an exception, stores the message for zp_last_error() and returns `failure`.
template <typename Result, typename Body>
Result guarded(Result failure, Body&& body) {
  try {
    return body();
  } catch (const c10::Error& error) {
    last_error() = error.what_without_backtrace();
  } catch (const std::exception& error) {
    last_error() = error.what();
  } catch (...) {
    last_error() = "an exception that is no std::exception";
  }
  return failure;
}

} // namespace zp
