# Sources of the kernels without bindings, and how each is compiled; included by whatever builds them.
set(LETO_KERNEL_SOURCES
  adam.cpp
  adam_portable.cpp
  chunk_update.cpp
  code_portable.cpp
  copy.cpp
  points.cpp
  product.cpp
  rows.cpp
  rs.cpp)
# Bits are part of the contract: no contraction beyond what adam_block.h spells out. The two -fno flags change no result;
# they let loops with square roots and divisions become vectors.
set(LETO_KERNEL_OPTIONS -Wall -Wextra -ffp-contract=off -fno-math-errno -fno-trapping-math)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  list(APPEND LETO_KERNEL_SOURCES adam_fma.cpp code_avx2.cpp code_gfni.cpp)
  list(APPEND LETO_KERNEL_OPTIONS -DLETO_X86)
endif()
list(TRANSFORM LETO_KERNEL_SOURCES PREPEND "${CMAKE_CURRENT_LIST_DIR}/")

set_source_files_properties("${CMAKE_CURRENT_LIST_DIR}/adam_fma.cpp" PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma")
set_source_files_properties("${CMAKE_CURRENT_LIST_DIR}/code_avx2.cpp" PROPERTIES COMPILE_OPTIONS "-mavx2")
# gcc's own AVX-512 header leaves an ignored operand uninitialised.
set_source_files_properties("${CMAKE_CURRENT_LIST_DIR}/code_gfni.cpp" PROPERTIES
  COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mgfni;-Wno-maybe-uninitialized;-Wno-uninitialized")
