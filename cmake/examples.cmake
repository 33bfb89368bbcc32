# The programs of the tutorials: examples/cifar10/NAME.c becomes cifar10_NAME.
file(GLOB DS_PROGRAMS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/cifar10/*.c)
foreach(source ${DS_PROGRAMS})
    get_filename_component(name ${source} NAME_WE)
    add_executable(cifar10_${name} ${source})
    target_link_libraries(cifar10_${name} PRIVATE ds_options deepspeed_static m)
endforeach()
