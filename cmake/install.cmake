# cmake --install build/release --prefix P: libraries, headers, programs, files
# for pkg-config and CMake; the target uninstall removes them. The components are the packages of
# cmake/package.cmake: runtime, dev, sample, openmpi, mpich.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
# Permissions of packages, 755 and 644, also with the umask 002 of Ubuntu's users.
set(CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE
    GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(DS_CHMOD "execute_process(COMMAND chmod -R u=rwX,go=rX")
install(TARGETS deepspeed_shared EXPORT deepspeed
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT dev)
install(TARGETS deepspeed_static EXPORT deepspeed_static
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev)
install(TARGETS launcher ${DS_TOOLS} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
foreach(source ${DS_PROGRAMS})
    get_filename_component(name ${source} NAME_WE)
    install(TARGETS cifar10_${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
endforeach()
# All that is installed, without tests and benchmarks; ./quickstart builds this
# target.
add_custom_target(programs DEPENDS launcher ${DS_TOOLS} deepspeed_static)
foreach(source ${DS_PROGRAMS})
    get_filename_component(name ${source} NAME_WE)
    add_dependencies(programs cifar10_${name})
endforeach()
foreach(name ${DS_MPIS})
    add_dependencies(programs deepspeed_${name})
    install(TARGETS deepspeed_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/deepspeed COMPONENT ${name})
endforeach()
install(DIRECTORY DESTINATION ${DS_DATA_DIR}/cifar-10-sample COMPONENT sample)
install(CODE "file(ARCHIVE_EXTRACT INPUT ${PROJECT_SOURCE_DIR}/assets/cifar10-sample.tar.xz
    DESTINATION \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${DS_DATA_DIR}/cifar-10-sample\")
file(GLOB_RECURSE files RELATIVE \"\$ENV{DESTDIR}/\" \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${DS_DATA_DIR}/cifar-10-sample/*\")
list(TRANSFORM files PREPEND /)
foreach(file \${files})
    file(TOUCH \"\$ENV{DESTDIR}\${file}\") # those in the archive are of 1970
endforeach()
list(APPEND CMAKE_INSTALL_MANIFEST_FILES \${files})
${DS_CHMOD} \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${DS_DATA_DIR}/cifar-10-sample\")" COMPONENT sample)
install(FILES ${PROJECT_SOURCE_DIR}/assets/devils_dictionary.txt DESTINATION ${DS_DATA_DIR} COMPONENT runtime)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
    FILES_MATCHING PATTERN "*.h")

# Manual pages (scripts/man_pages), compressed if there is gzip, and
# completions; bash searches a file with the command's name.
file(GLOB DS_MANUALS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/man/*.1)
find_program(DS_GZIP gzip)
if(DS_GZIP)
    file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/man)
    foreach(page ${DS_MANUALS})
        get_filename_component(name ${page} NAME)
        add_custom_command(OUTPUT man/${name}.gz DEPENDS ${page} VERBATIM
            COMMAND sh -c "\"$1\" -9 -n <\"$2\" >\"$3\"" sh ${DS_GZIP} ${page} ${PROJECT_BINARY_DIR}/man/${name}.gz)
        list(APPEND DS_PACKED_MANUALS ${PROJECT_BINARY_DIR}/man/${name}.gz)
    endforeach()
    set(DS_MANUALS ${DS_PACKED_MANUALS})
    add_custom_target(manuals ALL DEPENDS ${DS_MANUALS})
    add_dependencies(programs manuals)
endif()
install(FILES ${DS_MANUALS} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT runtime)
foreach(command deepspeed ${DS_TOOLS} cifar10_tutorial cifar10_deepspeed cifar10_ddp cifar10_dataparallel)
    install(FILES ${PROJECT_SOURCE_DIR}/completions/deepspeed.bash RENAME ${command}
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT runtime)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE RENAME copyright
    DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/deepspeed COMPONENT runtime)
# The documents for writers of programs, with the paths of the source tree, so
# that links work; those to files that are not installed become plain text.
set(DS_DOC_DIR ${CMAKE_INSTALL_DATADIR}/doc/deepspeed-dev)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE RENAME copyright DESTINATION ${DS_DOC_DIR} COMPONENT dev)
foreach(name sample ${DS_MPIS})
    install(FILES ${PROJECT_SOURCE_DIR}/LICENSE RENAME copyright
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/deepspeed-${name} COMPONENT ${name})
endforeach()
# Debian's changelog, for the packages alone.
if(DS_GZIP)
    file(WRITE ${PROJECT_BINARY_DIR}/changelog "deepspeed (${PROJECT_VERSION}) unstable; urgency=medium\n\n  * Version ${PROJECT_VERSION}.\n\n"
        " -- ${DS_MAINTAINER}  Sun, 01 Nov 2026 00:00:00 +0000\n")
    execute_process(COMMAND ${DS_GZIP} -9 -n INPUT_FILE ${PROJECT_BINARY_DIR}/changelog
        OUTPUT_FILE ${PROJECT_BINARY_DIR}/changelog.gz)
    foreach(name runtime dev sample ${DS_MPIS})
        string(REPLACE "-runtime" "" package deepspeed-${name})
        install(FILES ${PROJECT_BINARY_DIR}/changelog.gz
            DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${name})
    endforeach()
endif()
install(CODE "set(DS_ROOT ${PROJECT_SOURCE_DIR})
set(DS_DOC_DIR ${DS_DOC_DIR})
include(${CMAKE_CURRENT_LIST_DIR}/install_documents.cmake)
${DS_CHMOD} \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${DS_DOC_DIR}\")" COMPONENT dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/pictures DESTINATION ${DS_DOC_DIR}/docs COMPONENT dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION ${DS_DOC_DIR} COMPONENT dev)
install(FILES ${PROJECT_SOURCE_DIR}/completions/_deepspeed
    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT runtime)

# Paths are relative to this file, so that --prefix and moving the folder work.
file(RELATIVE_PATH DS_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" DS_PC_PREFIX ${DS_PC_PREFIX})
string(REPLACE ";" " " DS_PC_REQUIRES "${DS_MODULES}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/deepspeed.pc.in deepspeed.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/deepspeed.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)

# find_package(deepspeed): deepspeed::deepspeed; with COMPONENTS static,
# deepspeed::static.
set(DS_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/deepspeed)
set_target_properties(deepspeed_shared PROPERTIES EXPORT_NAME deepspeed)
set_target_properties(deepspeed_static PROPERTIES EXPORT_NAME static)
foreach(target deepspeed_shared deepspeed_static)
    target_include_directories(${target} PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
foreach(set deepspeed deepspeed_static)
    install(EXPORT ${set} NAMESPACE deepspeed:: FILE ${set}-targets.cmake DESTINATION ${DS_CMAKE_DIR} COMPONENT dev)
endforeach()
set(DS_PKG_CHECKS "")
foreach(target module IN ZIP_LISTS DS_LINKED DS_MODULES)
    string(REPLACE "PkgConfig::" "" prefix ${target})
    string(APPEND DS_PKG_CHECKS "    pkg_check_modules(${prefix} REQUIRED IMPORTED_TARGET ${module})\n")
endforeach()
configure_file(${CMAKE_CURRENT_LIST_DIR}/deepspeed-config.cmake.in deepspeed-config.cmake @ONLY)
write_basic_package_version_file(deepspeed-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/deepspeed-config.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/deepspeed-config-version.cmake DESTINATION ${DS_CMAKE_DIR} COMPONENT dev)

add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -D MANIFEST=${PROJECT_BINARY_DIR}/install_manifest.txt
    -P ${CMAKE_CURRENT_LIST_DIR}/uninstall.cmake VERBATIM)
