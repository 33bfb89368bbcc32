# libdeepspeed_openmpi.so, libdeepspeed_mpich.so: src/comm/mpi_plugin.c compiled
# with each MPI that is installed. A program opens the one whose launcher
# started it, and none when it runs alone.
set(DS_MPIS "")
macro(ds_mpi name module)
    pkg_check_modules(MPI_${name} QUIET IMPORTED_TARGET ${module})
    if(MPI_${name}_FOUND)
        list(APPEND DS_MPIS ${name})
    endif()
endmacro()
ds_mpi(openmpi ompi-c)
ds_mpi(mpich mpich)

# If pkg-config knows none, the MPI of mpicc in PATH. MPIs derived from MPICH
# have its types.
if(NOT DS_MPIS)
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
        set(DS_MPI_TARGET MPI::MPI_C)
    endif()
endif()

foreach(name ${DS_MPIS})
    add_library(deepspeed_${name} MODULE ${PROJECT_SOURCE_DIR}/src/comm/mpi_plugin.c)
    target_include_directories(deepspeed_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(deepspeed_${name} PRIVATE ds_options
        $<IF:$<BOOL:${DS_MPI_TARGET}>,${DS_MPI_TARGET},PkgConfig::MPI_${name}>)
endforeach()
