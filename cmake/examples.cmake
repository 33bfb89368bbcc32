# The tutorials' programs: examples/cifar10/NAME.c becomes cifar10_NAME. They
# and some tests share
# examples/common.
file(GLOB DS_COMMON CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/common/*.c)
add_library(examples_common STATIC ${DS_COMMON})
target_include_directories(examples_common PUBLIC ${PROJECT_SOURCE_DIR}/examples/common)
target_link_libraries(examples_common PRIVATE ds_options) # and whoever uses it, the library
if(DS_EXAMPLES)
    file(GLOB DS_PROGRAMS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/cifar10/*.c)
    foreach(source ${DS_PROGRAMS})
        get_filename_component(name ${source} NAME_WE)
        add_executable(cifar10_${name} ${source})
        ds_command(cifar10_${name} examples_common)
    endforeach()
endif()
