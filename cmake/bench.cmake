# bench/NAME.c becomes bench_NAME. Benchmarks may include internal headers
# (src/).
file(GLOB DS_BENCHES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*.c)
foreach(source ${DS_BENCHES})
    get_filename_component(name ${source} NAME_WE)
    add_executable(bench_${name} ${source})
    target_include_directories(bench_${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
    target_link_libraries(bench_${name} PRIVATE ds_options examples_common deepspeed_static m)
endforeach()
