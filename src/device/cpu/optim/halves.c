/* device/cpu/optim/halves.c: float32 in two halves (base/half.h), joined and
 * split.
 * SPDX-License-Identifier: MIT */
#include "device/cpu/simd/half.h"
#include "device/cpu/table.h"

#define GRAIN (1 << 16) /* elements of a thread, at least */

typedef struct Halves {
    float *x;
    uint16_t *p;
    int16_t *rest;
} Halves;

static ds_status halves_of(dsi_view x, dsi_view p, dsi_view rest, Halves *h)
{
    if (x.dtype != DS_F32) return no_dtype("halves", x.dtype);
    if (p.p && p.dtype != DS_BF16) return no_dtype("halves", p.dtype);
    if (p.p && rest.dtype != DS_I16) return no_dtype("halves", rest.dtype);
    *h = (Halves){x.p, p.p, rest.p};
    return DS_OK;
}

static void join_range(void *arg, int64_t begin, int64_t end)
{
    const Halves *h = arg;
    halves_join(h->p + begin, h->rest + begin, h->x + begin, end - begin);
}

static void untie_range(void *arg, int64_t begin, int64_t end)
{
    const Halves *h = arg;
    floats_untie(h->x + begin, end - begin);
    if (h->p) halves_split(h->x + begin, h->p + begin, h->rest + begin, end - begin);
}

ds_status KERNEL(halves_join)(dsi_stream *s, dsi_view p, dsi_view rest, dsi_view x)
{
    Halves h;
    (void)s;
    if (halves_of(x, p, rest, &h) != DS_OK) return ds_error_status();
    dsi_parallel(view_numel(&x), GRAIN, join_range, &h);
    return DS_OK;
}

ds_status KERNEL(halves_split)(dsi_stream *s, dsi_view x, dsi_view p, dsi_view rest)
{
    Halves h;
    (void)s;
    if (halves_of(x, p, rest, &h) != DS_OK) return ds_error_status();
    dsi_parallel(view_numel(&x), GRAIN, untie_range, &h);
    return DS_OK;
}
