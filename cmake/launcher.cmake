# launcher/*.c is the program deepspeed.
file(GLOB DS_LAUNCHER CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/launcher/*.c)
add_executable(launcher ${DS_LAUNCHER})
target_link_libraries(launcher PRIVATE ds_options deepspeed_static)
set_target_properties(launcher PROPERTIES OUTPUT_NAME deepspeed)
