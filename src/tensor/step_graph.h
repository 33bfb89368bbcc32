/* tensor/step_graph.h: steps of several kinds in one step graph.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/tensor.h>

/* The most kinds of steps that one step graph records, each for itself. */
enum { DSI_STEP_KINDS = 4 };

/* Before each run kind(arg) says of which kind it is, 0 .. DSI_STEP_KINDS - 1;
 * below 0: this one is run by the function. Before the first run; arg is
 * borrowed. */
void dsi_step_graph_set_kinds(ds_step_graph *g, int (*kind)(void *arg), void *arg);
