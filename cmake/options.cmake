# Compiler flags of all targets: warnings, sanitizers, hidden symbols;
# thread-local variables at fixed offsets, which a shared library may have if
# they are small (dsi_thread_memory).
add_library(ds_options INTERFACE)
target_compile_options(ds_options INTERFACE
    -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
    -Wwrite-strings -fvisibility=hidden -ftls-model=initial-exec
    # no path of this machine in binaries
    -ffile-prefix-map=${PROJECT_SOURCE_DIR}/= -ffile-prefix-map=${PROJECT_BINARY_DIR}=.)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 12)
    # wrong there for designated initializers that contain a compound literal
    target_compile_options(ds_options INTERFACE -Wno-missing-field-initializers)
endif()
target_compile_definitions(ds_options INTERFACE _GNU_SOURCE)
target_include_directories(ds_options INTERFACE ${PROJECT_SOURCE_DIR}/include)
if(DS_SANITIZE STREQUAL "address")
    target_compile_options(ds_options INTERFACE
        # a later -fno-sanitize=undefined of a target would come before this one
        $<IF:$<BOOL:$<TARGET_PROPERTY:DS_ADDRESS_ONLY>>,-fsanitize=address,-fsanitize=address$<COMMA>undefined>
        -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(ds_options INTERFACE -fsanitize=address,undefined)
elseif(DS_SANITIZE)
    target_compile_options(ds_options INTERFACE -fsanitize=${DS_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(ds_options INTERFACE -fsanitize=${DS_SANITIZE})
endif()
