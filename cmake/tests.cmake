# tests/FOLDER/NAME.c is the executable test_FOLDER_NAME and the CTest test
# FOLDER/NAME with the label FOLDER ("reference": compares with files of PyTorch
# and DeepSpeed, from $DS_REFERENCE or tests/golden). DS_TEST_FOLDERS chooses
# some. With a sanitizer DS_TEST_QUICK is set, which shortens repetitive tests.
file(GLOB DS_TEST_SOURCES CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/tests
    ${PROJECT_SOURCE_DIR}/tests/*/*.c)
set(DS_TEST_FOLDERS "" CACHE STRING "folders of tests/ to build; none: all")
if(DS_TEST_FOLDERS)
    string(REPLACE ";" "|" folders "${DS_TEST_FOLDERS}")
    list(FILTER DS_TEST_SOURCES INCLUDE REGEX "^(${folders})/")
endif()
set(DS_TEST_ENVIRONMENT "")
set(DS_TEST_SECONDS 1200) # a hang ends then; on a machine with twenty times its work no test does
if(DS_SANITIZE)
    set(DS_TEST_ENVIRONMENT DS_TEST_QUICK=1)
endif()
# DS_TEST_DEVICE=cuda ctest: these run on the GPU, the others on the CPU.
file(STRINGS ${PROJECT_SOURCE_DIR}/tests/gpu/on.txt DS_TEST_ON_GPU REGEX "^[+a-z]")
list(TRANSFORM DS_TEST_ON_GPU REPLACE "^[+]" "")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/gpu/on.txt)
set(DS_TEST_EACH_ISA reference/ops reference/ops_next_index reference/ops_next_layers
    reference/ops_next_loss reference/ops_next_pointwise ops/gradients ops/values)
# These also run with an emulated matrix unit (tests/device/emulator/amx.h):
# NAME.amx_emulated. Of a sanitizer those that call the kernels, in all sizes.
set(DS_TEST_AMX "")
if("avx512" IN_LIST DS_ISAS AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
    if(NOT DS_SANITIZE)
        set(DS_TEST_AMX ${DS_TEST_EACH_ISA})
    endif()
    list(APPEND DS_TEST_AMX device/amx device/attention device/attention_parts
        device/conv_bf16 device/gemm_bf16)
    add_library(amx_emulator OBJECT ${PROJECT_SOURCE_DIR}/tests/device/emulator/amx.c)
    target_link_libraries(amx_emulator PRIVATE ds_options)
    target_compile_definitions(amx_emulator PRIVATE _GNU_SOURCE)
    target_link_options(amx_emulator INTERFACE -Wl,--wrap=dsi_cpu_find_amx)
endif()
# Each test program has the whole library: lld, where it is installed, links
# them in half of the time; programs are linked side by side, each by one thread.
set(DS_LLD_FLAGS -fuse-ld=lld -Wl,--threads=1)
include(CheckLinkerFlag)
check_linker_flag(C "${DS_LLD_FLAGS}" DS_LLD)
file(GLOB DS_TEST_HELPERS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*.c)
if(DS_TEST_HELPERS)
    add_library(test_helpers STATIC ${DS_TEST_HELPERS})
    target_include_directories(test_helpers PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(test_helpers PRIVATE ds_options deepspeed_static PkgConfig::CMOCKA
        PkgConfig::JANSSON PkgConfig::ARCHIVE)
    target_compile_definitions(test_helpers PRIVATE DS_GOLDEN="${PROJECT_SOURCE_DIR}/tests/golden")
endif()
add_custom_target(test_programs) # without those of tests/gpu, which need the commands and the emulator
foreach(source ${DS_TEST_SOURCES})
    get_filename_component(folder ${source} DIRECTORY)
    get_filename_component(name ${source} NAME_WE)
    if(folder STREQUAL "headers")
        continue()
    endif()
    set(target test_${folder}_${name})
    add_executable(${target} ${PROJECT_SOURCE_DIR}/tests/${source})
    if(NOT folder STREQUAL "gpu")
        add_dependencies(test_programs ${target})
    endif()
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(${target} PRIVATE ds_options $<TARGET_NAME_IF_EXISTS:test_helpers> examples_common launcher_parts deepspeed_static
        PkgConfig::CMOCKA PkgConfig::JANSSON PkgConfig::ARCHIVE PkgConfig::CRYPTO PkgConfig::PNG Threads::Threads m)
    if(DS_LLD)
        target_link_options(${target} PRIVATE ${DS_LLD_FLAGS})
    endif()
    target_compile_definitions(${target} PRIVATE DS_GOLDEN="${PROJECT_SOURCE_DIR}/tests/golden"
        DS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    set_target_properties(${target} PROPERTIES DS_ADDRESS_ONLY ON) # undefined: the library's business, a third of the build
    if(NOT folder STREQUAL "device") # tests there compute much themselves
        # in half of -O2's time; GCC knows too little then for some warnings
        target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-Og>
            $<$<C_COMPILER_ID:GNU>:-Wno-maybe-uninitialized> $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>)
    endif()
    set(environment ${DS_TEST_ENVIRONMENT})
    if(NOT ${folder}/${name} IN_LIST DS_TEST_ON_GPU)
        list(APPEND environment DS_TEST_DEVICE=cpu)
    endif()
    if(${folder}/${name} IN_LIST DS_TEST_AMX)
        target_link_libraries(${target} PRIVATE amx_emulator)
        add_test(NAME ${folder}/${name}.amx_emulated COMMAND ${target})
        set_tests_properties(${folder}/${name}.amx_emulated PROPERTIES LABELS ${folder} TIMEOUT ${DS_TEST_SECONDS}
            ENVIRONMENT "DS_CPU=amx;DS_TEST_AMX=emulated;DS_TEST_QUICK=1;${environment}"
            SKIP_REGULAR_EXPRESSION "the best this processor has is")
    endif()
    if(NOT ${folder}/${name} IN_LIST DS_TEST_EACH_ISA)
        add_test(NAME ${folder}/${name} COMMAND ${target})
        set_tests_properties(${folder}/${name} PROPERTIES LABELS ${folder} TIMEOUT ${DS_TEST_SECONDS}
            ENVIRONMENT "${environment}")
        continue()
    endif()
    # The same test with the kernels of every instruction set; skipped, with the
    # library's message, if the processor lacks it.
    foreach(isa ${DS_ISAS} avx512_bf16 amx)
        add_test(NAME ${folder}/${name}.${isa} COMMAND ${target})
        set_tests_properties(${folder}/${name}.${isa} PROPERTIES LABELS ${folder} TIMEOUT ${DS_TEST_SECONDS}
            ENVIRONMENT "DS_CPU=${isa};${environment}"
            SKIP_REGULAR_EXPRESSION "the best this processor has is")
    endforeach()
    # And by the core of the contract alone: a composition of core kernels in
    # place of each fusion.
    add_test(NAME ${folder}/${name}.core COMMAND ${target})
    set_tests_properties(${folder}/${name}.core PROPERTIES LABELS ${folder} TIMEOUT ${DS_TEST_SECONDS}
        ENVIRONMENT "DS_CPU=generic;DS_FUSIONS=off;${environment}")
endforeach()

# After ./quickstart, which builds the programs alone, ctest says that the tests
# are not built, once, in place of a page for each of them.
file(WRITE ${CMAKE_BINARY_DIR}/tests_built.cmake "file(GLOB built ${CMAKE_BINARY_DIR}/test_*)
if(NOT built)
    message(FATAL_ERROR \"the tests are not built: cmake --build ${CMAKE_BINARY_DIR}\")
endif()
")
set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${CMAKE_BINARY_DIR}/tests_built.cmake)

include(cmake/gpu_tests.cmake)

# These start jobs of 2 and 4 processes.
if(TARGET test_comm_mpi)
    set_tests_properties(comm/mpi PROPERTIES LABELS "comm;mpi")
    add_dependencies(test_comm_mpi test_comm_collectives test_comm_messages)
    if(TARGET test_engine_moe)
        add_dependencies(test_comm_mpi test_engine_moe)
    endif()
    foreach(mpi ${DS_MPIS})
        add_dependencies(test_comm_mpi deepspeed_${mpi})
    endforeach()
endif()

# Each public header alone, as C11 and as C++17. Tests of the tree itself have
# the label "tree".
file(GLOB DS_HEADERS CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include
    ${PROJECT_SOURCE_DIR}/include/*.h ${PROJECT_SOURCE_DIR}/include/deepspeed/*.h)
if(DS_SANITIZE)
    set(DS_HEADERS "") # nothing runs in them
endif()
find_program(DS_CXX NAMES c++ g++ clang++)
foreach(header ${DS_HEADERS})
    add_test(NAME headers/c11/${header} COMMAND ${CMAKE_C_COMPILER} -std=c11 -Wall -Wextra -Wpedantic
        -Werror -fsyntax-only -I${PROJECT_SOURCE_DIR}/include -x c ${PROJECT_SOURCE_DIR}/include/${header})
    set_tests_properties(headers/c11/${header} PROPERTIES LABELS tree)
    if(DS_CXX)
        add_test(NAME headers/c++17/${header} COMMAND ${DS_CXX} -std=c++17 -Wall -Wextra -Wpedantic
            -Werror -fsyntax-only -I${PROJECT_SOURCE_DIR}/include -x c++
            ${PROJECT_SOURCE_DIR}/include/${header})
        set_tests_properties(headers/c++17/${header} PROPERTIES LABELS tree)
    endif()
endforeach()
# tests/programs/NAME.sh runs the programs as a user does.
if(DS_EXAMPLES)
    file(GLOB DS_SCRIPTS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/programs/*.sh)
    if(DS_SANITIZE)
        list(FILTER DS_SCRIPTS EXCLUDE REGEX "/protocols.sh$") # no program of the build runs
    endif()
    foreach(script ${DS_SCRIPTS})
        get_filename_component(name ${script} NAME_WE)
        add_test(NAME programs/${name} COMMAND ${script} ${PROJECT_BINARY_DIR})
        set_tests_properties(programs/${name} PROPERTIES LABELS programs TIMEOUT ${DS_TEST_SECONDS} SKIP_RETURN_CODE 77
            ENVIRONMENT "${DS_TEST_ENVIRONMENT}")
    endforeach()
endif()

# tests/launcher/cluster and slurm use network namespaces as hosts; skipped if
# not root.
if(NOT DS_SANITIZE AND DS_EXAMPLES)
    foreach(script cluster slurm)
        add_test(NAME launcher/${script} COMMAND ${PROJECT_SOURCE_DIR}/tests/launcher/${script} ${PROJECT_BINARY_DIR})
        set_tests_properties(launcher/${script} PROPERTIES LABELS "launcher;mpi" TIMEOUT ${DS_TEST_SECONDS} SKIP_RETURN_CODE 77)
    endforeach()
endif()

# Long tests begin first: as the last ones they would be alone.
foreach(test launcher/cluster programs/protocols comm/mpi gpu/selftest programs/deepspeed programs/restart
        programs/cuda device/conv parallel/zero_ranks gpu/decode_again gpu/rank_graph.late gpu/on/engine/resume
        gpu/by_mpi gpu/early)
    if(TEST ${test})
        set_tests_properties(${test} PROPERTIES COST 100)
    endif()
endforeach()

# Some code reads each supported key of ds_config.json.
if(Python3_FOUND)
    add_test(NAME tree/config COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_config.py
        ${PROJECT_SOURCE_DIR})
    set_tests_properties(tree/config PROPERTIES LABELS tree)
    # docs/environment.md lists the environment variables that programs read.
    add_test(NAME tree/environment COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_environment.py
        ${PROJECT_SOURCE_DIR})
    set_tests_properties(tree/environment PROPERTIES LABELS tree)
    # docs/from-pytorch.md says which names of torch.nn are here.
    add_test(NAME tree/torch_names COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/torch_names.py --check
        ${PROJECT_SOURCE_DIR})
    set_tests_properties(tree/torch_names PROPERTIES LABELS tree)
endif()

# Manual pages have the options of the commands' --help.
if(DS_EXAMPLES AND NOT DS_SANITIZE)
    add_test(NAME tree/manual COMMAND ${PROJECT_SOURCE_DIR}/scripts/man_pages --check ${PROJECT_BINARY_DIR})
    set_tests_properties(tree/manual PROPERTIES LABELS tree)
endif()

# The shared library exports every function of the public headers, and nothing
# else.
if(Python3_FOUND AND NOT DS_SANITIZE)
    add_test(NAME tree/symbols COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/check_symbols.py
        $<TARGET_FILE:deepspeed_shared> ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/scripts/symbols.txt)
    set_tests_properties(tree/symbols PROPERTIES LABELS tree)
endif()
