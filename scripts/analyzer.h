/* scripts/analyzer.h: tells clang-tidy, which reads one file at a time, that
 * functions that report a failure return it. scripts/check_tidy.py includes it
 * before each file.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"

#define dsi_fail(status, ...) ((dsi_fail)(status, __VA_ARGS__), (status))
#define dsi_refuse(...)       ((dsi_refuse)(__VA_ARGS__), (void *)0)
#define dsi_null_operand(what)      ((dsi_null_operand)(what), (void *)0)
#define dsi_null_argument(what)     ((dsi_null_argument)(what), DS_EINVAL)
