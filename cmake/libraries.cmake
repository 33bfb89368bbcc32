# External libraries. One message names all that are missing, with their
# packages.
find_package(Threads REQUIRED)
find_package(Python3 COMPONENTS Interpreter QUIET)
find_package(PkgConfig QUIET)
if(NOT PKG_CONFIG_FOUND)
    message(FATAL_ERROR "pkg-config is not installed. Debian, Ubuntu: apt-get install pkg-config. "
        "./quickstart installs all that is needed.")
endif()

set(DS_MISSING "")
set(DS_LINKED "")  # targets that the library is linked with; those opened when first needed are not
set(DS_MODULES "") # their names for pkg-config
macro(ds_library prefix module package)
    pkg_check_modules(${prefix} QUIET IMPORTED_TARGET GLOBAL ${module})
    if(NOT "${ARGN}" STREQUAL opened)
        list(APPEND DS_LINKED PkgConfig::${prefix})
        list(APPEND DS_MODULES ${module})
    endif()
    if(NOT ${prefix}_FOUND)
        string(APPEND DS_MISSING " ${package}")
    endif()
endmacro()
ds_library(JANSSON jansson libjansson-dev)
ds_library(CURL libcurl libcurl4-openssl-dev opened)
ds_library(ARCHIVE libarchive libarchive-dev opened)
ds_library(PCRE2 libpcre2-8 libpcre2-dev opened)
ds_library(UTF8PROC libutf8proc libutf8proc-dev opened)
ds_library(CRYPTO libcrypto libssl-dev)
ds_library(PNG libpng libpng-dev)
ds_library(ZLIB zlib zlib1g-dev)
# optional: its header, which is C11 from 2.0 on; it is opened when first needed
pkg_check_modules(URING QUIET liburing>=2.0)
if(DS_MISSING)
    message(FATAL_ERROR "Libraries are missing. Debian, Ubuntu: apt-get install${DS_MISSING}\n"
        "./quickstart installs what the programs need, ./check what the tests need too.")
endif()

if(DS_TESTS)
    pkg_check_modules(CMOCKA QUIET IMPORTED_TARGET cmocka)
    if(NOT CMOCKA_FOUND)
        message(STATUS "no cmocka, so no tests are built (Debian, Ubuntu: libcmocka-dev; ./check installs it)")
        set(DS_TESTS OFF) # in this run; a later one looks again
    endif()
endif()
