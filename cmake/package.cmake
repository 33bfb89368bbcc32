# cpack --config build/release/CPackConfig.cmake -B OUT: a .tar.gz and, if dpkg
# is installed, .deb packages.
#
#     deepspeed           library, commands, programs
#     deepspeed-dev       headers, static library, files for pkg-config and CMake
#     deepspeed-openmpi, deepspeed-mpich    ranks as processes; opened if that MPI started the program
#     deepspeed-sample    the small built-in part of CIFAR-10
set(CPACK_PACKAGE_NAME deepspeed)
set(CPACK_PACKAGE_VENDOR "deepspeed.c")
set(CPACK_PACKAGE_CONTACT ${DS_MAINTAINER})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS ${CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS})
set(CPACK_GENERATOR TGZ)
set(CPACK_COMPONENTS_ALL runtime dev sample ${DS_MPIS})
find_program(DS_DPKG dpkg)
if(DS_DPKG)
    list(APPEND CPACK_GENERATOR DEB)
endif()
# read by cpack: it refuses .deb packages where their dependencies cannot be found
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/package_config.cmake)

# The first line of a description is the title of the package.
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_NAME deepspeed)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS "deepspeed-sample, libcurl4 | libcurl4t64, libarchive13 | libarchive13t64, ca-certificates, libpcre2-8-0, libutf8proc2 | libutf8proc3, libturbojpeg0 | libturbojpeg, liburing2")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS "deepspeed-openmpi | deepspeed-mpich")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_LIST_DIR}/triggers) # Debian's: ldconfig runs
set(CPACK_COMPONENT_RUNTIME_DESCRIPTION "training system of DeepSpeed in C: library and commands
The deepspeed command, libdeepspeed and the CIFAR-10 programs of the
tutorials: training of small and medium networks on one or many processes,
without Python.")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME deepspeed-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
# pkg-config needs the packages that deepspeed.pc requires for the static
# library, even if it is not used
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS
    "deepspeed (= ${PROJECT_VERSION}), libjansson-dev, libssl-dev, libpng-dev, zlib1g-dev")
set(CPACK_COMPONENT_DEV_DESCRIPTION "training system of DeepSpeed in C: headers and documents
Headers, the static library, files for pkg-config and CMake, the documents,
and the programs of the tutorials as source.")
set(CPACK_DEBIAN_SAMPLE_PACKAGE_NAME deepspeed-sample)
set(CPACK_DEBIAN_SAMPLE_PACKAGE_SHLIBDEPS OFF)
set(CPACK_DEBIAN_SAMPLE_PACKAGE_ARCHITECTURE all)
set(CPACK_COMPONENT_SAMPLE_DESCRIPTION "training system of DeepSpeed in C: a sample of CIFAR-10
A small part of CIFAR-10, for first steps without a network.")
set(CPACK_DEBIAN_OPENMPI_PACKAGE_RECOMMENDS openmpi-bin) # mpirun
set(CPACK_DEBIAN_MPICH_PACKAGE_RECOMMENDS mpich)
set(DS_MPI_TITLE_openmpi "Open MPI")
set(DS_MPI_TITLE_mpich "MPICH")
foreach(name ${DS_MPIS})
    string(TOUPPER ${name} upper)
    set(CPACK_DEBIAN_${upper}_PACKAGE_NAME deepspeed-${name})
    set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "deepspeed (= ${PROJECT_VERSION})")
    set(CPACK_COMPONENT_${upper}_DESCRIPTION "training system of DeepSpeed in C: ranks of ${DS_MPI_TITLE_${name}}
The plugin by which programs run as several processes under the launcher of
${DS_MPI_TITLE_${name}}, on one host or on many.")
endforeach()
# ninja package_source
set(CPACK_SOURCE_GENERATOR TXZ)
set(CPACK_SOURCE_IGNORE_FILES "/[.]git(/|$)" "^${PROJECT_SOURCE_DIR}/(build[^/]*|data|install|packages|deepspeed_runs)/" __pycache__
    "^${PROJECT_BINARY_DIR}/" "^${PROJECT_SOURCE_DIR}/[^/]*[.]pth$")
include(CPack)
