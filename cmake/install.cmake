# cmake --install build/release --prefix P: libraries, headers, programs, a pkg-config file.
include(GNUInstallDirs)
install(TARGETS deepspeed_static deepspeed_shared
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS launcher ${DS_TOOLS} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h")
foreach(source ${DS_PROGRAMS})
    get_filename_component(name ${source} NAME_WE)
    install(TARGETS cifar10_${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endforeach()
# found from where the file lies, so that --prefix and moving the folder work
file(RELATIVE_PATH DS_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/deepspeed.pc.in deepspeed.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/deepspeed.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
