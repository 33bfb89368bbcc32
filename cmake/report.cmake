# What was found, said aloud.
message(STATUS "deepspeed.c ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, kernels for: ${DS_ISAS}")
message(STATUS "  jansson ${JANSSON_VERSION}, curl ${CURL_VERSION}, archive ${ARCHIVE_VERSION}, crypto ${CRYPTO_VERSION}, png ${PNG_VERSION}")
