# launcher/*.c but main.c are the parts of the program deepspeed, which other
# commands and tests use too; tools/NAME.c is the command NAME. Tools may
# include internal headers (src/).
file(GLOB DS_LAUNCHER CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/launcher/*.c
    ${PROJECT_SOURCE_DIR}/launcher/*/*.c)
list(REMOVE_ITEM DS_LAUNCHER ${PROJECT_SOURCE_DIR}/launcher/main.c)
add_library(launcher_parts STATIC ${DS_LAUNCHER} ${PROJECT_SOURCE_DIR}/examples/common/parse_options.c)
target_include_directories(launcher_parts PUBLIC ${PROJECT_SOURCE_DIR}/launcher ${PROJECT_SOURCE_DIR}/examples/common
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(launcher_parts PRIVATE ds_options PkgConfig::JANSSON PkgConfig::CRYPTO)
target_include_directories(launcher_parts PUBLIC ${PROJECT_SOURCE_DIR}/include)
# launcher/older_libc.c has those that the C library lacks
include(CheckSymbolExists)
include(CheckFunctionExists)
set(CMAKE_REQUIRED_DEFINITIONS -D_GNU_SOURCE)
check_symbol_exists(sigabbrev_np string.h DS_HAVE_SIGABBREV_NP)
check_symbol_exists(closefrom unistd.h DS_HAVE_CLOSEFROM)
unset(CMAKE_REQUIRED_DEFINITIONS)
check_function_exists(openpty DS_HAVE_OPENPTY)
foreach(name SIGABBREV_NP CLOSEFROM)
    if(DS_HAVE_${name})
        target_compile_definitions(launcher_parts PUBLIC DS_HAVE_${name})
    endif()
endforeach()
if(NOT DS_HAVE_OPENPTY)
    target_link_libraries(launcher_parts PUBLIC util)
endif()

add_executable(launcher ${PROJECT_SOURCE_DIR}/launcher/main.c)
target_include_directories(launcher PRIVATE ${PROJECT_SOURCE_DIR}/src)
ds_command(launcher launcher_parts)
set_target_properties(launcher PROPERTIES OUTPUT_NAME deepspeed)

file(GLOB DS_TOOL_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/*.c)
file(GLOB DS_SELFTEST CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/selftest/*.c)
set(DS_TOOLS "")
foreach(source ${DS_TOOL_SOURCES})
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} ${source} $<$<STREQUAL:${name},ds_report>:${DS_SELFTEST}>)
    target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    ds_command(${name} launcher_parts PkgConfig::JANSSON)
    # tools/ds_NAME.c may have more files in tools/NAME
    string(REPLACE "ds_" "" folder ${name})
    file(GLOB more CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/${folder}/*.c)
    if(more)
        target_sources(${name} PRIVATE ${more})
    endif()
    list(APPEND DS_TOOLS ${name})
endforeach()
# ds_lm has options as the examples have them.
target_sources(ds_lm PRIVATE ${PROJECT_SOURCE_DIR}/examples/common/args.c
    ${PROJECT_SOURCE_DIR}/examples/common/best.c ${PROJECT_SOURCE_DIR}/examples/common/paths.c)
target_include_directories(ds_lm BEFORE PRIVATE ${PROJECT_SOURCE_DIR}/examples/common ${PROJECT_SOURCE_DIR}/tools)
target_compile_definitions(ds_lm PRIVATE DSI_DATA_DIR="${CMAKE_INSTALL_FULL_DATADIR}/deepspeed")
