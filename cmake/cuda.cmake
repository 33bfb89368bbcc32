# src/device/cuda needs no file of NVIDIA's: its kernels are embedded as PTX
# (scripts/make_ptx), and the driver is opened when a program first asks for a
# GPU.
option(DS_CUDA "NVIDIA GPUs" ON)
file(GLOB DS_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cuda/*.c)
file(GLOB DS_CUDA_KERNELS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cuda/kernels/*.cu)
file(GLOB DS_CUDA_PTX CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/device/cuda/ptx/*.ptx)
list(REMOVE_ITEM DS_SOURCES ${DS_CUDA_SOURCES})
if(DS_CUDA)
    list(APPEND DS_SOURCES ${DS_CUDA_SOURCES})
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/device/device.c PROPERTIES COMPILE_DEFINITIONS DSI_HAVE_CUDA)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/device/cuda/ptx.c PROPERTIES
        COMPILE_DEFINITIONS "DSI_CUDA_PTX=\"${PROJECT_SOURCE_DIR}/src/device/cuda/ptx\""
        OBJECT_DEPENDS "${DS_CUDA_PTX}")
endif()
