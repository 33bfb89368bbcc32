# libdeepspeed_openmpi.so, libdeepspeed_mpich.so: src/comm/mpi_plugin.c compiled against each MPI that is here.
# A program opens the one whose launcher started it, and none when it runs alone.
set(DS_MPIS "")
macro(ds_mpi name module)
    pkg_check_modules(MPI_${name} QUIET IMPORTED_TARGET ${module})
    if(MPI_${name}_FOUND)
        list(APPEND DS_MPIS ${name})
        set(DS_MPI_VERSION_${name} ${MPI_${name}_VERSION})
    endif()
endmacro()
ds_mpi(openmpi ompi-c)
ds_mpi(mpich mpich)

foreach(name ${DS_MPIS})
    add_library(deepspeed_${name} MODULE ${PROJECT_SOURCE_DIR}/src/comm/mpi_plugin.c)
    target_link_libraries(deepspeed_${name} PRIVATE ds_options PkgConfig::MPI_${name})
    install(TARGETS deepspeed_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/deepspeed)
endforeach()
