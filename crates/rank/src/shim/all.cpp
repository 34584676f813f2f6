// The whole shim is one translation unit, because parsing torch's headers takes most of the compile time.

#include "autograd.cpp"
#include "c10d.cpp"
#include "memory.cpp"
