/* tools/selftest/graph.h: steps as graphs.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

/* Whether steps of training on that GPU as a CUDA graph have the same bits as
 * without; else why not. */
bool selftest_graph(ds_device gpu, char *why, size_t room);
bool selftest_engine_graph(ds_device gpu, char *why, size_t room); /* micro steps of an engine */
