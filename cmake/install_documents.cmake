# Part of cmake --install: README and docs, in DS_DOC_DIR below the prefix. A
# link to a file of the source tree that is not installed becomes its text.
cmake_policy(SET CMP0009 NEW)
set(to ${CMAKE_INSTALL_PREFIX}/${DS_DOC_DIR})
file(GLOB_RECURSE documents RELATIVE ${DS_ROOT} ${DS_ROOT}/README*.md ${DS_ROOT}/docs/*.md)
list(FILTER documents INCLUDE REGEX "^(README[^/]*|docs/.*)$")
foreach(document ${documents})
    file(READ ${DS_ROOT}/${document} text)
    string(REGEX REPLACE "\\]\\(LICENSE\\)" "](copyright)" text "${text}")
    string(REGEX REPLACE "\\[([^]\n]*)\\]\\((\\.\\./)*(ARCHITECTURE\\.md|CONTRIBUTING\\.md|src/)[^)]*\\)" "\\1" text "${text}")
    message(STATUS "Installing: $ENV{DESTDIR}${to}/${document}")
    file(WRITE "$ENV{DESTDIR}${to}/${document}" "${text}")
    list(APPEND CMAKE_INSTALL_MANIFEST_FILES ${to}/${document})
endforeach()
