/* scripts/analyzer.h: what clang-tidy, which reads one file at a time, cannot know: after a failure was
 * reported, the caller is told. Included in front of each file by scripts/check_tidy.py.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"

#define dsi_fail(status, ...) ((dsi_fail)(status, __VA_ARGS__), (status))
#define dsi_refuse(...)       ((dsi_refuse)(__VA_ARGS__), (void *)0)
#define dsi_null_operand(what)      ((dsi_null_operand)(what), (void *)0)
