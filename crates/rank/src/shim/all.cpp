// The whole shim as one translation unit: reading torch's headers is most of compiling it.

#include "autograd.cpp"
#include "c10d.cpp"
#include "memory.cpp"
