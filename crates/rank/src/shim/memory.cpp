#include "shim.h"

#include <ATen/Context.h>

#include "guard.h"

int zp_poison_memory() {
  return zp::guarded(-1, [] {
    // torch fills memory only if deterministic algorithms are enabled, too.
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(true);
    return 0;
  });
}
