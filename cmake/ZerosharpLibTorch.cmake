# Imported targets over an unpacked LibTorch (the PyPI wheel's torch/ folder or the libtorch zip).
#
# find_package(Torch) of the CUDA wheels needs a CUDA toolkit even where only the CPU libraries are
# used, so the two libraries the project links are described here:
#   zerosharp_torch::cpu    headers, libtorch_cpu, libc10
#   zerosharp_torch::cuda   libc10_cuda (streams); libtorch_cuda is loaded at run time on demand
# Set LIBTORCH to the folder that holds include/ and lib/; scripts/setup prints it. Otherwise
# torch of the python3 on PATH is used.
set(LIBTORCH "" CACHE PATH "LibTorch folder (with include/ and lib/)")

if(NOT LIBTORCH)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(Python3_FOUND)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c
        "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE zerosharp_torch_guess OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(zerosharp_torch_guess)
      set(LIBTORCH ${zerosharp_torch_guess} CACHE PATH "LibTorch folder" FORCE)
    endif()
  endif()
endif()
if(NOT EXISTS ${LIBTORCH}/include/torch/csrc/api/include/torch/torch.h)
  message(FATAL_ERROR
    "LibTorch not found (LIBTORCH='${LIBTORCH}'). Run scripts/setup, or pass -DLIBTORCH=<folder "
    "with include/ and lib/>")
endif()

file(READ ${LIBTORCH}/include/torch/headeronly/version.h zerosharp_torch_version_h)
foreach(part MAJOR MINOR PATCH)
  string(REGEX MATCH "define TORCH_VERSION_${part} ([0-9]+)" unused "${zerosharp_torch_version_h}")
  set(zerosharp_torch_${part} ${CMAKE_MATCH_1})
endforeach()
set(ZEROSHARP_TORCH_VERSION
  ${zerosharp_torch_MAJOR}.${zerosharp_torch_MINOR}.${zerosharp_torch_PATCH})

if(NOT TARGET zerosharp_torch::cpu)
  add_library(zerosharp_torch::c10 SHARED IMPORTED GLOBAL)
  set_target_properties(zerosharp_torch::c10 PROPERTIES
    IMPORTED_LOCATION ${LIBTORCH}/lib/libc10.so)
  add_library(zerosharp_torch::cpu SHARED IMPORTED GLOBAL)
  set_target_properties(zerosharp_torch::cpu PROPERTIES
    IMPORTED_LOCATION ${LIBTORCH}/lib/libtorch_cpu.so
    IMPORTED_LINK_DEPENDENT_LIBRARIES zerosharp_torch::c10
    INTERFACE_LINK_LIBRARIES zerosharp_torch::c10
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_RPC;USE_TENSORPIPE"
    INTERFACE_INCLUDE_DIRECTORIES
      "${LIBTORCH}/include;${LIBTORCH}/include/torch/csrc/api/include")
  if(EXISTS ${LIBTORCH}/lib/libc10_cuda.so)
    add_library(zerosharp_torch::cuda SHARED IMPORTED GLOBAL)
    set_target_properties(zerosharp_torch::cuda PROPERTIES
      IMPORTED_LOCATION ${LIBTORCH}/lib/libc10_cuda.so
      INTERFACE_LINK_LIBRARIES zerosharp_torch::cpu)
  endif()
endif()

# libtorch_cpu.so needs libcudart and libcupti even on the CPU. The wheels nvidia-* put them beside
# torch/; a toolkit has them in its own folder.
file(GLOB zerosharp_torch_rpath LIST_DIRECTORIES true
  ${LIBTORCH}/../nvidia/*/lib ${LIBTORCH}/../nvidia/cu13/lib)
set(ZEROSHARP_TORCH_RPATH ${LIBTORCH}/lib)
foreach(folder IN LISTS zerosharp_torch_rpath)
  get_filename_component(folder ${folder} REALPATH)
  list(APPEND ZEROSHARP_TORCH_RPATH ${folder})
endforeach()
if(ZEROSHARP_CUDA)
  list(APPEND ZEROSHARP_TORCH_RPATH ${CUDAToolkit_LIBRARY_DIR})
endif()
list(REMOVE_DUPLICATES ZEROSHARP_TORCH_RPATH)
list(APPEND CMAKE_BUILD_RPATH ${ZEROSHARP_TORCH_RPATH})
message(STATUS "LibTorch ${ZEROSHARP_TORCH_VERSION} in ${LIBTORCH}")
