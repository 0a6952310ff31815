// Python bindings of the native host kernels: leto._kernels.

#include <nanobind/nanobind.h>

NB_MODULE(_kernels, module) { module.doc() = "Native host kernels over page addresses."; }
