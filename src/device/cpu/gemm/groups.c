/* device/cpu/gemm/groups.c: rows sorted by group, and products of the rows of
 * each group: one product a group, with its bits.
 *
 * Invariants: `begin` is in host memory and was made by group_rows, so that it
 * does not decrease and ends at the number of rows.
 * SPDX-License-Identifier: MIT */
#include "device/cpu/simd/strided.h"
#include "device/cpu/simd/upcast.h"
#include "device/cpu/table.h"

ds_status KERNEL(group_rows)(dsi_stream *s, dsi_view id, dsi_view begin, dsi_view row)
{
    const int64_t *group = id.p;
    int64_t n = id.d[0] * id.d[1], groups = begin.d[0] - 1, sum = 0, *next = begin.p, *r = row.p;
    for (int64_t g = 0; g <= groups; g++) next[g] = 0;
    for (int64_t i = 0; i < n; i++) {
        if (group[i] >= 0 && group[i] < groups)
            next[group[i]]++;
        else
            fault_set(s, DSI_FAULT_GROUP, group[i], i, -1, groups);
    }
    for (int64_t g = 0; g <= groups; g++) {
        int64_t count = next[g];
        next[g] = sum, sum += count;
    }
    for (int64_t i = 0; i < n; i++)
        r[i] = group[i] >= 0 && group[i] < groups ? next[group[i]]++ : -1;
    for (int64_t g = groups; g > 0; g--)
        next[g] = next[g - 1]; /* each had become the first of g + 1 */
    if (groups) next[0] = 0;
    return DS_OK;
}

/* Rows of group g of x [R,D] as [1,n,D]. */
static dsi_view group_rows_of(dsi_view x, dsi_view begin, int64_t g)
{
    const int64_t *b = begin.p;
    size_t at = (size_t)(b[g] * x.s[0]) * ds_dtype_size(x.dtype);
    return (dsi_view){
        (char *)x.p + at, x.dtype, 3, {1, b[g + 1] - b[g], x.d[1]}, {0, x.s[0], x.s[1]}};
}

static dsi_view group_matrix(dsi_view w)
{
    return (dsi_view){w.p, w.dtype, 3, {1, w.d[0], w.d[1]}, {0, w.s[0], w.s[1]}};
}

ds_status KERNEL(group_matmul)(dsi_stream *s, dsi_view x, dsi_view begin, const dsi_view *w,
                               dsi_view y)
{
    ds_status status = DS_OK;
    for (int64_t g = 0; g < begin.d[0] - 1 && status == DS_OK; g++) {
        dsi_view a = group_rows_of(x, begin, g);
        if (a.d[1])
            status = KERNEL(matmul)(s, a, group_matrix(w[g]), (dsi_view){.p = NULL},
                                    group_rows_of(y, begin, g));
    }
    return status;
}

ds_status KERNEL(group_matmul_dw)(dsi_stream *s, dsi_view a, dsi_view b, dsi_view begin,
                                  const dsi_view *w)
{
    ds_status status = DS_OK;
    for (int64_t g = 0; g < begin.d[0] - 1 && status == DS_OK; g++) {
        dsi_view l = group_rows_of(a, begin, g), r = group_rows_of(b, begin, g);
        l.d[1] = a.d[1], l.d[2] = r.d[1], l.s[1] = a.s[1], l.s[2] = a.s[0];
        if (w[g].p) status = KERNEL(matmul)(s, l, r, (dsi_view){.p = NULL}, group_matrix(w[g]));
    }
    return status;
}
