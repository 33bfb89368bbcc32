# libdeepspeed_openmpi.so, libdeepspeed_mpich.so: src/comm/mpi_plugin.c compiled
# with each MPI that is installed. A program opens the one whose launcher
# started it, and none when it runs alone.
set(DS_MPI AUTO CACHE STRING "ranks as processes: ON (an MPI is required), OFF, or AUTO: with each MPI that is found")
set_property(CACHE DS_MPI PROPERTY STRINGS AUTO ON OFF)
set(DS_MPIS "")
set(DS_MPI_VERSIONS "") # "openmpi 4.1.4", for the report
set(DS_MPI_WHY_NOT "")
macro(ds_mpi name title module least package)
    pkg_check_modules(MPI_${name} QUIET IMPORTED_TARGET ${module}>=${least})
    if(MPI_${name}_FOUND)
        list(APPEND DS_MPIS ${name})
        list(APPEND DS_MPI_VERSIONS "${name} ${MPI_${name}_VERSION}")
        # Ubuntu 24.04's mpich.pc names libraries (ucp, ucs) of a package that
        # it does not ask for. libmpich.so loads them itself.
        set(libraries ${MPI_${name}_LINK_LIBRARIES})
        list(FILTER libraries INCLUDE REGEX "^/|mpi")
        set_target_properties(PkgConfig::MPI_${name} PROPERTIES INTERFACE_LINK_LIBRARIES "${libraries}")
    else()
        string(APPEND DS_MPI_WHY_NOT "\n  ${title} ${least} or newer: pkg-config does not find ${module} (Debian, Ubuntu: ${package})")
    endif()
endmacro()

if(DS_MPI)
    ds_mpi(openmpi "Open MPI" ompi-c 4.0 libopenmpi-dev)
    ds_mpi(mpich MPICH mpich 3.3 libmpich-dev)

    # If pkg-config knows none, the MPI of mpicc in PATH, which for another
    # processor is not the right one. MPIs derived from MPICH have its types.
    if(NOT DS_MPIS AND NOT CMAKE_CROSSCOMPILING)
        find_package(MPI QUIET COMPONENTS C)
        if(MPI_C_FOUND)
            include(CheckSymbolExists)
            set(CMAKE_REQUIRED_LIBRARIES MPI::MPI_C)
            check_symbol_exists(OPEN_MPI mpi.h DS_MPI_IS_OPEN)
            unset(CMAKE_REQUIRED_LIBRARIES)
            if(DS_MPI_IS_OPEN)
                set(DS_MPIS openmpi)
            else()
                set(DS_MPIS mpich)
            endif()
            set(DS_MPI_VERSIONS "${DS_MPIS} of mpicc, MPI ${MPI_C_VERSION}")
            set(DS_MPI_TARGET MPI::MPI_C)
        endif()
    endif()
    if(NOT DS_MPIS AND NOT DS_MPI STREQUAL AUTO)
        message(FATAL_ERROR "DS_MPI is ${DS_MPI}, but there is no MPI:${DS_MPI_WHY_NOT}\n"
            "  or any MPI with an mpicc in PATH. -DDS_MPI=AUTO builds without.")
    endif()
endif()

foreach(name ${DS_MPIS})
    add_library(deepspeed_${name} MODULE ${PROJECT_SOURCE_DIR}/src/comm/mpi_plugin.c)
    target_include_directories(deepspeed_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(deepspeed_${name} PRIVATE ds_options
        $<IF:$<BOOL:${DS_MPI_TARGET}>,${DS_MPI_TARGET},PkgConfig::MPI_${name}>)
endforeach()
