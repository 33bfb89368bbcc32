/* device/cpu/cpu.h: the instruction sets that kernels are compiled for, and
 * which of them run here.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"
#include "device/device.h"

/* float32 y[k][i] = x[0][i] + .. + x[ranks-1][i], added in that order, for k <
 * outs (1 or more) and i < n; average: divided by ranks. y[k] may be an x.
 * *squares, if not NULL, grows by the squares of the results, added up in
 * double. */
typedef void dsi_cpu_sum_ranks(bool average, int ranks, const void *const *x, int64_t n, int outs,
                               void *const *y, double *squares);

/* The functions that are compiled once for each instruction set: the two tables
 * of the contract, and the sum over ranks in host memory for src/comm. */
typedef struct dsi_cpu_table {
    dsi_kernels kernels;
    dsi_fusions fusions;
    dsi_cpu_sum_ranks *sum_ranks;
} dsi_cpu_table;

/* For "generic", "avx2", "avx512", "avx512_bf16" or "amx" (which both have the
 * kernels of avx512).
 * NULL, without a message, if this processor or this build does not have it. */
DSI_SHARED const dsi_cpu_table *dsi_cpu_table_of(const char *isa);

/* The one that `cpu`, a handle on the CPU, uses. */
static inline const dsi_cpu_table *dsi_cpu_table_in(const dsi_device *cpu) { return cpu->own; }

/* The name of the set that $DS_CPU or else the processor chooses; NULL, with
 * the message, if $DS_CPU names one that cannot run here. */
DSI_SHARED const char *dsi_cpu_isa(void);

/* Whether that is "avx512_bf16" or "amx": kernels of avx512, and products of
 * bfloat16 by the processor's instructions for them (gemm/tiles.h); and whether
 * it is "amx", where they are those of the matrix unit. As it was when first
 * asked. */
bool dsi_cpu_bf16(void);
bool dsi_cpu_amx(void);

/* Whether the processor has the matrix unit, and the system lets this process
 * use it, which this asks for. */
bool dsi_cpu_find_amx(void);

/* Bytes of the second cache, of one core. */
int64_t dsi_cpu_l2_bytes(void);

/* Whether loops should fetch what comes next: processors of AMD do so by
 * themselves also beyond the page, and then the instructions cost a tenth of a
 * simple loop. */
bool dsi_cpu_should_fetch(void);
