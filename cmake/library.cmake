# libdeepspeed. The CPU's kernels are compiled once for each instruction set,
# with its name as suffix (src/device/cpu/simd/isa.h), and chosen at run time.
file(GLOB_RECURSE DS_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.c)
file(GLOB_RECURSE DS_KERNELS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cpu/*.c)
list(REMOVE_ITEM DS_KERNELS ${PROJECT_SOURCE_DIR}/src/device/cpu/memory.c ${PROJECT_SOURCE_DIR}/src/device/cpu/find_amx.c)
list(REMOVE_ITEM DS_SOURCES ${DS_KERNELS})
list(REMOVE_ITEM DS_SOURCES ${PROJECT_SOURCE_DIR}/src/comm/mpi_plugin.c) # mpi.cmake

include(cmake/cuda.cmake)

set(DS_ISAS generic)
set(DS_FLAGS_generic "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND DS_ISAS avx2 avx512)
    set(DS_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi -mbmi2)
    set(DS_FLAGS_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mbmi -mbmi2
        -mprefer-vector-width=512)
endif()
set(DS_FAST $<$<CONFIG:Release>:-O3;-falign-loops=32>)
if(DS_SANITIZE)
    set(DS_FAST -O1) # more takes a compiler two to six times the time, and finds no more
endif()
set(DS_OBJECTS "")
set(DS_ISA_DEFINES "")
foreach(isa ${DS_ISAS})
    add_library(kernels_${isa} OBJECT ${DS_KERNELS})
    target_link_libraries(kernels_${isa} PRIVATE ds_options)
    target_include_directories(kernels_${isa} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_compile_definitions(kernels_${isa} PRIVATE DSI_ISA=${isa} DSI_ISA_${isa})
    target_compile_options(kernels_${isa} PRIVATE ${DS_FLAGS_${isa}} -ffp-contract=fast -fno-math-errno
        -fno-trapping-math ${DS_FAST})
    if(DS_SANITIZE STREQUAL "address" AND NOT isa STREQUAL "generic")
        set_target_properties(kernels_${isa} PROPERTIES DS_ADDRESS_ONLY ON) # the same source: seen in generic
    endif()
    if(DS_SANITIZE AND NOT isa STREQUAL "generic")
        target_compile_options(kernels_${isa} PRIVATE -Og) # in less than half of -O1's time; tests take little longer
    endif()
    list(APPEND DS_OBJECTS $<TARGET_OBJECTS:kernels_${isa}>)
    list(APPEND DS_ISA_DEFINES DSI_HAVE_${isa})
endforeach()

add_library(ds_core OBJECT ${DS_SOURCES})
target_link_libraries(ds_core PRIVATE ds_options ${DS_LINKED})
target_include_directories(ds_core PRIVATE ${PROJECT_SOURCE_DIR}/src)
# These libraries are opened when first needed (src/base/library.h); only their
# headers are used here.
target_include_directories(ds_core PRIVATE ${CURL_INCLUDE_DIRS} ${ARCHIVE_INCLUDE_DIRS}
    ${PCRE2_INCLUDE_DIRS} ${UTF8PROC_INCLUDE_DIRS})
target_compile_definitions(ds_core PRIVATE ${DS_ISA_DEFINES})

# The library searches the sample of CIFAR-10 near itself, and in the installed
# place. The build folder has a link to the source tree's, whose path is in no
# binary.
include(GNUInstallDirs)
set(DS_DATA_DIR ${CMAKE_INSTALL_DATADIR}/deepspeed)
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/data/cifar10_obtain.c PROPERTIES COMPILE_DEFINITIONS
    "DSI_DATA_DIR=\"${CMAKE_INSTALL_FULL_DATADIR}/deepspeed\"")
file(CREATE_LINK ${PROJECT_SOURCE_DIR}/assets ${PROJECT_BINARY_DIR}/assets SYMBOLIC)
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/comm/reduce.c PROPERTIES COMPILE_OPTIONS
    "${DS_FAST}") # which vectorises sums
if(URING_FOUND)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/base/aio_ring.c PROPERTIES COMPILE_DEFINITIONS
        DSI_HAVE_URING INCLUDE_DIRECTORIES "${URING_INCLUDE_DIRS}")
endif()
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/comm/mpi_open.c PROPERTIES COMPILE_DEFINITIONS
    "DSI_PLUGIN_DIR=\"${CMAKE_INSTALL_FULL_LIBDIR}/deepspeed\";DSI_LIBDIR=\"${CMAKE_INSTALL_LIBDIR}\"")

# The shared library's file has its SONAME, libdeepspeed.so.0: of a link to it
# cpack would count the library again (Installed-Size).
foreach(kind STATIC SHARED)
    string(TOLOWER ${kind} k)
    add_library(deepspeed_${k} ${kind} $<TARGET_OBJECTS:ds_core> ${DS_OBJECTS})
    target_include_directories(deepspeed_${k} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
    target_link_libraries(deepspeed_${k} PRIVATE ${DS_LINKED} Threads::Threads m ${CMAKE_DL_LIBS} $<BUILD_INTERFACE:ds_options>)
    set_target_properties(deepspeed_${k} PROPERTIES OUTPUT_NAME deepspeed SOVERSION 0)
endforeach()
set(DS_MAP ${PROJECT_SOURCE_DIR}/cmake/libdeepspeed.map)
target_link_options(deepspeed_shared PRIVATE -Wl,-Bsymbolic-functions -Wl,--version-script=${DS_MAP})
set_target_properties(deepspeed_shared PROPERTIES LINK_DEPENDS ${DS_MAP})
if(NOT DS_SANITIZE) # a sanitizer's own symbols come with the program
    target_link_options(deepspeed_shared PRIVATE -Wl,--no-undefined)
endif()

# ds_command TARGET LIBRARY...: our commands find the library beside their
# folder, wherever both were installed.
function(ds_command target)
    target_link_libraries(${target} PRIVATE ds_options ${ARGN} deepspeed_shared m)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
endfunction()
