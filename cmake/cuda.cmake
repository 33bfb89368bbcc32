# src/device/cuda needs no file of NVIDIA's: its kernels are embedded as PTX
# (scripts/make_ptx) and machine code (scripts/make_cubins), and the driver is
# opened when a program first asks for a GPU.
option(DS_CUDA "NVIDIA GPUs" ON)
file(GLOB DS_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cuda/*.c)
file(GLOB DS_CUDA_KERNELS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cuda/kernels/*.cu)
file(GLOB DS_CUDA_PTX CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cuda/ptx/*.ptx)
file(GLOB DS_CUDA_CUBINS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cuda/cubin/sm_*)
list(REMOVE_ITEM DS_SOURCES ${DS_CUDA_SOURCES})
if(DS_CUDA)
    list(APPEND DS_SOURCES ${DS_CUDA_SOURCES})
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/device/device.c PROPERTIES COMPILE_DEFINITIONS DSI_HAVE_CUDA)
    set(DS_CUDA_CODE ${PROJECT_SOURCE_DIR}/src/device/cuda)
    set_source_files_properties(${DS_CUDA_CODE}/ptx.c ${DS_CUDA_CODE}/cubin.c PROPERTIES
        COMPILE_DEFINITIONS "DSI_CUDA_CODE=\"${DS_CUDA_CODE}\"" OBJECT_DEPENDS "${DS_CUDA_PTX};${DS_CUDA_CUBINS}")
endif()
