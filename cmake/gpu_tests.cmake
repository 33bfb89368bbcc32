# GPUs without a GPU: tests/gpu/emulator is a libcuda.so.1 that runs the kernels
# of src/device/cuda on the CPU; tests/gpu/on_cpu runs any program on it.
# gpu/real is the same with the driver and the GPU of this machine, if it has
# one.
include(CheckLanguage)
check_language(CXX)
set(DS_GPU_TESTS OFF)
# The emulator's scheduler of threads is never instrumented, which saves a fifth
# of the tests' time with a sanitizer. It touches the kernels' memory only by
# memcpy and memset, which AddressSanitizer sees, and the PTX machine checks each
# address itself.
foreach(name blocks fibers meetings wgmma)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/gpu/emulator/${name}.cpp
        PROPERTIES COMPILE_OPTIONS "-fno-sanitize=all;-O2")
endforeach()
foreach(name lanes numbers products races reach run)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/gpu/emulator/ptx_machine/${name}.cpp
        PROPERTIES COMPILE_OPTIONS "-fno-sanitize=all")
endforeach()
if(DS_CUDA AND CMAKE_CXX_COMPILER AND (NOT DS_TEST_FOLDERS OR "gpu" IN_LIST DS_TEST_FOLDERS))
    enable_language(CXX)
    set(DS_GPU_TESTS ON)
    function(ds_fake_sanitize name)
        if(DS_SANITIZE STREQUAL "address")
            target_compile_options(${name} PRIVATE -fsanitize=address,undefined
                -fno-sanitize-recover=all -fno-sanitize=vptr
                # a fifth of the compiler's time: an index that has wrapped is seen where it is used
                -fno-sanitize=pointer-overflow)
            target_compile_definitions(${name} PRIVATE SANITIZED_KERNELS)
            target_link_options(${name} PRIVATE -fsanitize=address,undefined)
        endif()
    endfunction()
    file(GLOB DS_EMULATOR CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/gpu/emulator/*.c
        ${PROJECT_SOURCE_DIR}/tests/gpu/emulator/*.cpp ${PROJECT_SOURCE_DIR}/tests/gpu/emulator/ptx_machine/*.cpp)
    add_library(fake_libcuda MODULE ${DS_EMULATOR} ${DS_CUDA_KERNELS})
    set_source_files_properties(${DS_CUDA_KERNELS} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
    target_include_directories(fake_libcuda PRIVATE ${PROJECT_SOURCE_DIR}/src
        ${PROJECT_SOURCE_DIR}/tests/gpu/emulator)
    target_compile_definitions(fake_libcuda PRIVATE CUDA_ON_CPU _GNU_SOURCE)
    target_compile_options(fake_libcuda PRIVATE -Wall -Wextra -fvisibility=hidden
        $<$<COMPILE_LANGUAGE:CXX>:-Wno-unknown-pragmas> $<$<COMPILE_LANGUAGE:CXX>:-Wno-unused-function>
        $<$<COMPILE_LANGUAGE:CXX>:-std=c++17> $<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions>
        $<$<COMPILE_LANGUAGE:CXX>:$<IF:$<BOOL:${DS_SANITIZE}>,-O1,-O2>>)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # wrong there for the tiles of products, which are loaded a step before they are stored
        target_compile_options(fake_libcuda PRIVATE -Wno-maybe-uninitialized)
    endif()
    # LeakSanitizer of GCC 10 takes a wrong size of thread-local variables that it
    # finds by a call (glibc 2.31), and ends with a signal.
    set(DS_FAKE_TLS -ftls-model=initial-exec)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/gpu/emulator/libcuda.c
        PROPERTIES COMPILE_OPTIONS ${DS_FAKE_TLS})
    ds_fake_sanitize(fake_libcuda)
    target_link_libraries(fake_libcuda PRIVATE Threads::Threads)
    target_link_options(fake_libcuda PRIVATE -Wl,-soname,libcuda.so.1)
    set_target_properties(fake_libcuda PROPERTIES PREFIX "" OUTPUT_NAME libcuda SUFFIX .so.1
        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/gpu)

    # A library of NVIDIA's for the emulator's GPUs: its file in build/gpu/FOLDER,
    # of the sources that follow.
    function(ds_fake_library name file folder)
        add_library(${name} MODULE ${ARGN})
        target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
        target_compile_definitions(${name} PRIVATE _GNU_SOURCE)
        target_compile_options(${name} PRIVATE -Wall -Wextra -fvisibility=hidden -std=c++17 -fno-exceptions
            ${DS_FAKE_TLS})
        ds_fake_sanitize(${name})
        # by its path: CMake may make -lcuda of it, which may be NVIDIA's
        target_link_libraries(${name} PRIVATE "-Wl,--no-as-needed,$<TARGET_FILE:fake_libcuda>" Threads::Threads rt)
        add_dependencies(${name} fake_libcuda)
        target_link_options(${name} PRIVATE -Wl,-soname,${file})
        set_target_properties(${name} PROPERTIES PREFIX "" OUTPUT_NAME ${file} SUFFIX ""
            BUILD_RPATH ${PROJECT_BINARY_DIR}/gpu
            LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/gpu/${folder})
    endfunction()

    file(GLOB DS_FAKE_NCCL CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/gpu/fake_nccl/*.cpp)
    ds_fake_library(fake_libnccl libnccl.so.2 "" ${DS_FAKE_NCCL})
    # where only DS_CUBLAS finds it
    ds_fake_library(fake_libcublas libcublasLt.so cublas ${PROJECT_SOURCE_DIR}/tests/gpu/fake_cublas/cublas.cpp)
endif()

# Kernels with planted mistakes, plain and with sanitizers whatever the build.
function(ds_mistakes name)
    set(folder ${PROJECT_SOURCE_DIR}/tests/gpu)
    set(source ${folder}/mistakes/mistakes.cu)
    set_source_files_properties(${source} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-x;c++")
    add_executable(${name} EXCLUDE_FROM_ALL ${source} ${folder}/emulator/blocks.cpp ${folder}/emulator/fibers.cpp
        ${folder}/emulator/meetings.cpp ${folder}/emulator/wgmma.cpp)
    target_include_directories(${name} PRIVATE ${folder}/emulator ${PROJECT_SOURCE_DIR}/src/device/cuda/kernels)
    target_compile_definitions(${name} PRIVATE CUDA_ON_CPU _GNU_SOURCE)
    target_compile_options(${name} PRIVATE -std=c++17 -O1 -Wno-unknown-pragmas -Wno-unused-function ${ARGN})
    target_link_options(${name} PRIVATE ${ARGN})
    add_dependencies(test_gpu_mistakes ${name})
endfunction()

# The tests of tests/gpu: driver makes its own settings, the others run with the
# emulator in front of any driver of the machine.
foreach(source ${DS_TEST_SOURCES})
    if(NOT source MATCHES "^gpu/")
        continue()
    endif()
    get_filename_component(name ${source} NAME_WE)
    target_compile_definitions(test_gpu_${name} PRIVATE TEST_CHOOSES_DEVICES)
    if(NOT DS_GPU_TESTS AND NOT name STREQUAL "real")
        set_tests_properties(gpu/${name} PROPERTIES DISABLED ON)
        set_target_properties(test_gpu_${name} PROPERTIES EXCLUDE_FROM_ALL ON) # some need the emulator's path
        continue()
    endif()
    if((name STREQUAL "mistakes" AND DS_SANITIZE) OR (name STREQUAL "waits" AND DS_SANITIZE STREQUAL "thread"))
        set_tests_properties(gpu/${name} PROPERTIES DISABLED ON)
        if(name STREQUAL "mistakes")
            target_compile_definitions(test_gpu_mistakes PRIVATE MISTAKES="" MISTAKES_SANITIZED="")
        endif()
        continue()
    endif()
    set_tests_properties(gpu/${name} PROPERTIES TIMEOUT ${DS_TEST_SECONDS} SKIP_RETURN_CODE 77)
    if(name STREQUAL "real")
        continue()
    endif()
    add_dependencies(test_gpu_${name} fake_libcuda fake_libnccl fake_libcublas)
    target_compile_definitions(test_gpu_${name} PRIVATE FAKE_LIBCUDA="$<TARGET_FILE:fake_libcuda>"
        FAKE_LIBCUBLAS="$<TARGET_FILE:fake_libcublas>")
    target_link_libraries(test_gpu_${name} PRIVATE ${CMAKE_DL_LIBS})
    if(name STREQUAL "ptx_machine")
        target_compile_definitions(test_gpu_ptx_machine PRIVATE DS_REPORT="$<TARGET_FILE:ds_report>")
        add_dependencies(test_gpu_ptx_machine ds_report)
    endif()
    if(NOT name STREQUAL "driver")
        set(count 1)
        if(name MATCHES "^(ranks|rank_graph|nccl|data_parallel|zero|offload|waits)$")
            set(count 4)
        endif()
        set_tests_properties(gpu/${name} PROPERTIES
            ENVIRONMENT "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/gpu;FAKE_CUDA_COUNT=${count};${DS_TEST_ENVIRONMENT}")
    endif()
endforeach()

if(DS_GPU_TESTS AND TARGET test_gpu_mistakes AND NOT DS_SANITIZE)
    ds_mistakes(gpu_mistakes)
    target_compile_definitions(test_gpu_mistakes PRIVATE MISTAKES="$<TARGET_FILE:gpu_mistakes>"
        MISTAKES_SANITIZED="${PROJECT_BINARY_DIR}/gpu_mistakes_sanitized")
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_FLAGS -fsanitize=address,undefined)
    check_cxx_source_compiles("int main() { return 0; }" DS_CXX_SANITIZERS)
    unset(CMAKE_REQUIRED_FLAGS)
    if(DS_CXX_SANITIZERS)
        ds_mistakes(gpu_mistakes_sanitized -fsanitize=address,undefined -fno-sanitize-recover=all
            -fno-sanitize=vptr)
        target_compile_definitions(gpu_mistakes_sanitized PRIVATE SANITIZED_KERNELS)
    endif()
endif()

# A sanitizer runs a test with late work alone: it has the same accesses in
# another order, and memory that was freed too early is gone then.
function(ds_late_alone name)
    if(DS_SANITIZE)
        set_tests_properties(gpu/${name} PROPERTIES DISABLED ON)
    endif()
endfunction()

if(DS_GPU_TESTS AND TARGET test_gpu_data_parallel)
    ds_late_alone(data_parallel)
    add_test(NAME gpu/data_parallel.lazy COMMAND test_gpu_data_parallel)
    set_tests_properties(gpu/data_parallel.lazy PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS}
        ENVIRONMENT "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/gpu;FAKE_CUDA_COUNT=4;DS_TEST_QUICK=1;FAKE_CUDA_LAZY=1")
endif()

# The same without NCCL; and with work that is done only at a synchronisation,
# NCCL's as late as it may (late) or as early (early), collectives that take
# long, and sums in another order of ranks.
if(DS_GPU_TESTS AND TARGET test_gpu_ranks)
    set(DS_RANKS_ENVIRONMENT LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/gpu FAKE_CUDA_COUNT=4 FAKE_NCCL_ORDER=ring)
    add_test(NAME gpu/ranks.host COMMAND test_gpu_ranks)
    set_tests_properties(gpu/ranks.host PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS}
        ENVIRONMENT "${DS_RANKS_ENVIRONMENT};DS_NCCL=off;${DS_TEST_ENVIRONMENT}")
    set(orders ranks.late rank_graph.late)
    if(NOT DS_SANITIZE)
        list(APPEND orders ranks.early nccl.late rank_graph.early)
    endif()
    foreach(order ${orders})
        string(REGEX REPLACE "[.].*" "" name ${order})
        set(how "FAKE_CUDA_LAZY=1;FAKE_NCCL_DELAY=1000")
        if(order MATCHES "early")
            set(how FAKE_CUDA_LAZY=2)
        endif()
        if(TARGET test_gpu_${name})
            ds_late_alone(${name})
            add_test(NAME gpu/${order} COMMAND test_gpu_${name})
            set_tests_properties(gpu/${order} PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS}
                ENVIRONMENT "${DS_RANKS_ENVIRONMENT};DS_TEST_QUICK=1;${how}")
        endif()
    endforeach()
endif()

if(DS_GPU_TESTS AND TARGET test_gpu_zero)
    ds_late_alone(zero)
    add_test(NAME gpu/zero.lazy COMMAND test_gpu_zero)
    set_tests_properties(gpu/zero.lazy PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS}
        ENVIRONMENT "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/gpu;FAKE_CUDA_COUNT=4;DS_TEST_QUICK=1;FAKE_CUDA_LAZY=1")
endif()

# Some kernels in two other orders of threads, with work that is done as late as
# it may. A sanitizer sees one of these.
if(DS_GPU_TESTS AND TARGET test_gpu_conv_back AND TARGET test_gpu_small_entropy AND TARGET test_gpu_conv_parts AND
   TARGET test_gpu_linear_entropy AND TARGET test_gpu_data AND TARGET test_gpu_conv_step AND TARGET test_gpu_held AND TARGET test_gpu_route AND
   TARGET test_gpu_groups AND TARGET test_gpu_decode)
    set(orders seeded)
    if(NOT DS_SANITIZE)
        list(APPEND orders backward)
    endif()
    foreach(name conv_back small_entropy conv_parts linear_entropy data conv_step held route groups decode)
        ds_late_alone(${name})
        foreach(order ${orders})
            add_test(NAME gpu/${name}.${order} COMMAND test_gpu_${name})
            set_tests_properties(gpu/${name}.${order} PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS}
                ENVIRONMENT "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/gpu;FAKE_CUDA_COUNT=1;DS_TEST_QUICK=1;FAKE_CUDA_LAZY=1;CUDA_ON_CPU_ORDER=$<IF:$<STREQUAL:${order},seeded>,5,${order}>")
        endforeach()
    endforeach()
endif()

# In another order of threads, with work that is done only at a synchronisation;
# and tests of other folders on the GPU (tests/gpu/on.txt).
if(DS_GPU_TESTS AND TARGET test_gpu_ops)
    set(DS_GPU_ENVIRONMENT LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/gpu FAKE_CUDA_COUNT=1)
    ds_late_alone(ops)
    add_test(NAME gpu/ops.backward COMMAND test_gpu_ops)
    set_tests_properties(gpu/ops.backward PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS}
        ENVIRONMENT "${DS_GPU_ENVIRONMENT};DS_TEST_QUICK=1;FAKE_CUDA_LAZY=1;CUDA_ON_CPU_ORDER=backward")
    set(on optim/sgd)
    if(NOT DS_SANITIZE)
        file(STRINGS ${PROJECT_SOURCE_DIR}/tests/gpu/on.txt on REGEX "^[a-z]")
    endif()
    foreach(name ${on})
        string(REPLACE "/" "_" target test_${name})
        if(TARGET ${target})
            add_test(NAME gpu/on/${name} COMMAND ${PROJECT_SOURCE_DIR}/tests/gpu/on_cpu $<TARGET_FILE:${target}>)
            set_tests_properties(gpu/on/${name} PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS}
                ENVIRONMENT "FAKE_CUDA_COUNT=4;DS_TEST_QUICK=1;${DS_TEST_ENVIRONMENT}")
        endif()
    endforeach()
endif()

# The estimate of --estimate_memory beside the memory of two emulated GPUs.
if(DS_GPU_TESTS AND TARGET test_engine_estimate AND NOT DS_SANITIZE)
    add_test(NAME gpu/on/engine/estimate COMMAND ${PROJECT_SOURCE_DIR}/tests/gpu/on_cpu $<TARGET_FILE:test_engine_estimate>)
    set_tests_properties(gpu/on/engine/estimate PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS}
        ENVIRONMENT "FAKE_CUDA_COUNT=2;${DS_TEST_ENVIRONMENT}")
endif()

# Ranks that are processes: through pinned host memory, and by an MPI that is
# made CUDA-aware.
if(DS_GPU_TESTS AND DS_MPIS AND TARGET test_comm_collectives AND TARGET test_comm_messages AND NOT DS_SANITIZE)
    add_library(fake_mpi MODULE ${PROJECT_SOURCE_DIR}/tests/gpu/fake_mpi/cuda_aware.c)
    target_compile_definitions(fake_mpi PRIVATE _GNU_SOURCE)
    target_compile_options(fake_mpi PRIVATE -Wall -Wextra -fvisibility=hidden)
    target_link_libraries(fake_mpi PRIVATE ${CMAKE_DL_LIBS})
    set_target_properties(fake_mpi PROPERTIES PREFIX "" OUTPUT_NAME cuda_aware
        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/gpu)
    add_test(NAME gpu/by_mpi COMMAND ${PROJECT_SOURCE_DIR}/tests/gpu/by_mpi ${PROJECT_BINARY_DIR})
    set_tests_properties(gpu/by_mpi PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS} SKIP_RETURN_CODE 77
        ENVIRONMENT "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/gpu;FAKE_CUDA_COUNT=4;DS_CUBLAS=off;${DS_TEST_ENVIRONMENT}")
endif()

# The declarations of NVIDIA's libraries beside their headers and files, where
# those are installed.
if(DS_GPU_TESTS AND NOT DS_SANITIZE)
    find_path(DS_CUDA_INCLUDE cuda.h PATHS /usr/local/cuda/include)
    find_file(DS_CUDA_STUB libcuda.so PATHS /usr/local/cuda/lib64/stubs NO_DEFAULT_PATH)
    add_executable(test_gpu_headers ${PROJECT_SOURCE_DIR}/tests/gpu/headers/headers.cpp)
    target_include_directories(test_gpu_headers PRIVATE ${PROJECT_SOURCE_DIR}/src)
    if(DS_CUDA_INCLUDE)
        target_include_directories(test_gpu_headers SYSTEM PRIVATE ${DS_CUDA_INCLUDE})
    endif()
    target_compile_features(test_gpu_headers PRIVATE cxx_std_17)
    target_compile_options(test_gpu_headers PRIVATE -Wall -Wextra)
    target_compile_definitions(test_gpu_headers PRIVATE DRIVER_STUB="$<IF:$<BOOL:${DS_CUDA_STUB}>,${DS_CUDA_STUB},>")
    target_link_libraries(test_gpu_headers PRIVATE ${CMAKE_DL_LIBS})
    add_test(NAME gpu/headers COMMAND test_gpu_headers)
    set_tests_properties(gpu/headers PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS} SKIP_RETURN_CODE 77)
endif()

# The same by the machine that executes PTX, with races looked for: what takes it
# seconds.
if(DS_GPU_TESTS AND NOT DS_SANITIZE)
    set(DS_PTX_ENVIRONMENT LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/gpu FAKE_CUDA_COUNT=1 DS_TEST_QUICK=1 DS_CUBLAS=off
        FAKE_CUDA_MACHINE=ptx FAKE_CUDA_RACES=1 FAKE_CUDA_LAZY=1 CUDA_ON_CPU_ORDER=7)
    foreach(name linear_entropy held small_entropy conv_back optimizer_bits)
        if(TARGET test_gpu_${name})
            add_test(NAME gpu/${name}.ptx COMMAND test_gpu_${name})
            set_tests_properties(gpu/${name}.ptx PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS}
                ENVIRONMENT "${DS_PTX_ENVIRONMENT}")
        endif()
    endforeach()
    foreach(kernel PTX softmax norm entropy adam reduce)
        add_test(NAME gpu/selftest.ptx.${kernel} COMMAND ds_report --gpu_selftest --quick --only ${kernel})
        set_tests_properties(gpu/selftest.ptx.${kernel} PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS}
            ENVIRONMENT "${DS_PTX_ENVIRONMENT}")
    endforeach()
endif()

# The PTX files are of their sources.
if(NOT DS_SANITIZE)
    add_test(NAME gpu/ptx COMMAND ${PROJECT_SOURCE_DIR}/scripts/make_ptx --check)
    set_tests_properties(gpu/ptx PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS})
endif()

# The driver is given PTX that an assembler takes.
if(DS_GPU_TESTS AND NOT DS_SANITIZE)
    add_test(NAME gpu/early COMMAND ${PROJECT_SOURCE_DIR}/tests/gpu/early ${PROJECT_BINARY_DIR})
    set_tests_properties(gpu/early PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS} SKIP_RETURN_CODE 77)
endif()

# Programs that are packed for a machine with a GPU run elsewhere.
find_program(DS_ZSTD zstd)
if(DS_GPU_TESTS AND DS_ZSTD AND TARGET test_gpu_linear_entropy AND NOT DS_SANITIZE)
    add_test(NAME gpu/pack COMMAND ${PROJECT_SOURCE_DIR}/tests/gpu/pack --check ${PROJECT_BINARY_DIR})
    set_tests_properties(gpu/pack PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS})
endif()

# Every kernel, dtype and layout beside the CPU, in a random order, with work
# that is done as late as it may; and kernels that older GPUs have in place of
# some. Of convolutions these are of channels last: the others are those above.
if(DS_GPU_TESTS)
    set(DS_SELFTEST_ENVIRONMENT LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/gpu FAKE_CUDA_COUNT=1 FAKE_CUDA_LAZY=1 DS_CUBLAS=off)
    add_test(NAME gpu/selftest COMMAND ds_report --gpu_selftest --quick)
    set_tests_properties(gpu/selftest PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS}
        ENVIRONMENT "${DS_SELFTEST_ENVIRONMENT};CUDA_ON_CPU_ORDER=3")
    foreach(kernel conv2d matmul)
        string(REPLACE conv2d "channels last" only ${kernel})
        add_test(NAME gpu/selftest.ampere.${kernel} COMMAND ds_report --gpu_selftest --quick --only ${only})
        set_tests_properties(gpu/selftest.ampere.${kernel} PROPERTIES LABELS gpu TIMEOUT ${DS_TEST_SECONDS}
            ENVIRONMENT "${DS_SELFTEST_ENVIRONMENT};CUDA_ON_CPU_ORDER=4;FAKE_CUDA_CAPABILITY=86")
    endforeach()
    add_dependencies(ds_report fake_libcuda)
endif()
