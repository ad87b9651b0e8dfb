# <torch/torch.h> costs 20 s to 112 s in every file that includes it; one precompiled header for the
# whole tree makes that a few seconds. Everything that uses it must be compiled with equal flags, so
# -fPIC is given to executables too.

# zerosharp_use_torch_pch(TARGET): compiles TARGET with the shared precompiled LibTorch header.
function(zerosharp_use_torch_pch target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
  if(target STREQUAL "zs_torch_pch")
    target_precompile_headers(zs_torch_pch PRIVATE <torch/torch.h>)
  else()
    target_precompile_headers(${target} REUSE_FROM zs_torch_pch)
  endif()
endfunction()

file(WRITE ${PROJECT_BINARY_DIR}/torch_pch.cpp "// carries the precompiled header\n")
add_library(zs_torch_pch OBJECT ${PROJECT_BINARY_DIR}/torch_pch.cpp)
target_link_libraries(zs_torch_pch PRIVATE zs_settings zerosharp_torch::cpu)
set_target_properties(zs_torch_pch PROPERTIES POSITION_INDEPENDENT_CODE ON)
zerosharp_use_torch_pch(zs_torch_pch)
