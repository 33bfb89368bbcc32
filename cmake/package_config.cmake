# Read by cpack for each kind of package. A .deb names the packages of the
# libraries that it needs; dpkg-shlibdeps, which uses file, finds them.
if(CPACK_GENERATOR STREQUAL "DEB")
    foreach(tool_package dpkg-shlibdeps:dpkg-dev file:file)
        string(REPLACE ":" ";" tool_package ${tool_package})
        list(GET tool_package 0 tool)
        list(GET tool_package 1 package)
        find_program(DS_FOUND_${package} ${tool} PATHS ENV PATH NO_DEFAULT_PATH)
        if(NOT DS_FOUND_${package})
            message(FATAL_ERROR "A .deb needs ${tool}, to know which packages it depends on: "
                "apt-get install ${package}, or make only the .tar.gz: cpack -G TGZ")
        endif()
    endforeach()
    set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
    set(CMAKE_SUPPRESS_DEVELOPER_WARNINGS ON) # "missing soname": plugins have none
endif()
