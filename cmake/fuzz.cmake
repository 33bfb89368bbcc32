# fuzz/NAME.c becomes fuzz_NAME, with libFuzzer, which only clang has: cmake
# --preset fuzz. scripts/fuzz builds and runs them. Each is compiled with the
# sources that it tests and src/base, not with the whole library, because clang
# needs minutes for instrumented kernels.
if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "DS_FUZZ needs clang: cmake --preset fuzz")
endif()
set(DS_FUZZ_config src/config/*.c src/comm/names.c)
set(DS_FUZZ_hostfile launcher/hosts.c launcher/select.c launcher/environment.c launcher/argv.c launcher/world_info.c)
set(tensors src/tensor/*.c src/device/*.c src/device/cpu/memory.c) # with the kernels of fuzz/kernels.h: none
set(DS_FUZZ_pickle src/checkpoint/*.c ${tensors})
set(DS_FUZZ_zip ${DS_FUZZ_pickle})
set(DS_FUZZ_safetensors ${DS_FUZZ_pickle})
set(DS_FUZZ_latest src/engine/checkpoint/folder.c src/engine/checkpoint/manifest.c)

set(DS_FUZZ_tokenizer src/text/*.c src/text/jinja/*.c)
set(DS_FUZZ_jinja ${DS_FUZZ_tokenizer})
set(DS_FUZZ_lm_config src/models/config*.c)

# Sources of several fuzzers are compiled once.
function(ds_fuzz_flags target)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/launcher)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(${target} PRIVATE ds_options PkgConfig::JANSSON PkgConfig::CRYPTO PkgConfig::ZLIB)
endfunction()
function(ds_fuzz_objects result) # of PATTERN...
    string(MAKE_C_IDENTIFIER "tried_${ARGN}" target)
    if(NOT TARGET ${target})
        list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/ OUTPUT_VARIABLE patterns)
        file(GLOB sources CONFIGURE_DEPENDS ${patterns})
        add_library(${target} OBJECT ${sources})
        ds_fuzz_flags(${target})
    endif()
    set(${result} $<TARGET_OBJECTS:${target}> PARENT_SCOPE)
endfunction()

file(GLOB DS_FUZZERS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/fuzz/*.c)
foreach(source ${DS_FUZZERS})
    get_filename_component(name ${source} NAME_WE)
    ds_fuzz_objects(base src/base/*.c)
    ds_fuzz_objects(tried ${DS_FUZZ_${name}})
    add_executable(fuzz_${name} ${source} ${base} ${tried})
    ds_fuzz_flags(fuzz_${name})
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    target_link_libraries(fuzz_${name} PRIVATE Threads::Threads m ${CMAKE_DL_LIBS})
endforeach()
