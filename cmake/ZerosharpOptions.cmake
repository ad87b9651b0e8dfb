# Options, languages and what every target of the project is compiled with.
option(ZEROSHARP_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(ZEROSHARP_BUILD_BENCHMARKS "Build the benchmarks" OFF)
option(ZEROSHARP_WERROR "Treat warnings as errors" OFF)
option(ZEROSHARP_WITH_MPI "Build the MPI communicator when MPI is found" ON)
set(ZEROSHARP_WITH_CUDA AUTO CACHE STRING "Build CUDA kernels and NCCL: AUTO, ON or OFF")
set_property(CACHE ZEROSHARP_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)
set(ZEROSHARP_SANITIZE "" CACHE STRING "Sanitizers for all targets, e.g. address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

# CUDA: kernels live in .cu files that include no LibTorch header.
set(ZEROSHARP_CUDA OFF)
if(NOT ZEROSHARP_WITH_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_HOST_COMPILER)
    find_program(ZEROSHARP_CUDA_HOST g++)
    if(ZEROSHARP_CUDA_HOST)
      set(CMAKE_CUDA_HOST_COMPILER ${ZEROSHARP_CUDA_HOST} CACHE FILEPATH "Host compiler of nvcc")
    endif()
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "GPU architectures")
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(ZEROSHARP_CUDA ON)
  elseif(ZEROSHARP_WITH_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ZEROSHARP_WITH_CUDA=ON but no CUDA compiler was found (set CUDACXX)")
  endif()
endif()

find_package(Threads REQUIRED)

# One interface target carries the settings of the project's own code; nothing is set globally.
add_library(zs_settings INTERFACE)
target_compile_features(zs_settings INTERFACE cxx_std_20)
target_compile_options(zs_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unknown-pragmas>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Xclang -fno-pch-timestamp>)
if(ZEROSHARP_WERROR)
  target_compile_options(zs_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(ZEROSHARP_SANITIZE)
  target_compile_options(zs_settings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${ZEROSHARP_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all>)
  target_link_options(zs_settings INTERFACE -fsanitize=${ZEROSHARP_SANITIZE})
endif()
find_program(ZEROSHARP_LLD NAMES ld.lld)
if(ZEROSHARP_LLD)
  target_link_options(zs_settings INTERFACE -fuse-ld=lld)
endif()

# The compiler cache also covers files that use the precompiled header.
find_program(ZEROSHARP_CCACHE ccache)
if(ZEROSHARP_CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    ${ZEROSHARP_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${ZEROSHARP_CCACHE})
endif()

# zerosharp_library(NAME SOURCES… ): a static library zs_NAME with the alias zerosharp::NAME.
function(zerosharp_library name)
  add_library(zs_${name} STATIC ${ARGN})
  add_library(zerosharp::${name} ALIAS zs_${name})
  target_link_libraries(zs_${name} PRIVATE $<BUILD_INTERFACE:zs_settings>)
  target_compile_features(zs_${name} PUBLIC cxx_std_20)
  target_include_directories(zs_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/zerosharp>)
  set_target_properties(zs_${name} PROPERTIES
    EXPORT_NAME ${name} OUTPUT_NAME zerosharp_${name} POSITION_INDEPENDENT_CODE ON)
  set_property(GLOBAL APPEND PROPERTY ZEROSHARP_LIBRARIES zs_${name})
endfunction()
