/* device/cpu/simd/upcast.c: float32 copies of 16-bit operands, for one call of
 * a kernel.
 * Small copies are in scratch memory, which the last call left in the caches.
 * Large ones are allocated from the device's cache of storage, so that they
 * count in its peak of memory.
 *
 * Invariants: copies live until in_f32_end, which every in_f32_begin that
 * returned true must reach. An output is written back only if the kernel
 * succeeded. A view that is both output and operand gets two copies.
 * SPDX-License-Identifier: MIT */
#include "upcast.h"

#include "device/cpu/table.h"

#define ALIGN 64

/* The same elements as floats, without gaps, dimensions in v's order of memory;
 * what v repeats is there once. Without memory: its bytes -> *bytes. */
static dsi_view float_view(const dsi_view *v, size_t *bytes)
{
    dsi_view f = *v;
    int order[DS_MAX_DIMS];
    int64_t step = 1;

    f.dtype = DS_F32;
    for (int i = f.n - 1, n = 0; i >= 0; i--, n++) { /* by strides, smallest first */
        int at = n;
        for (; at > 0 && v->s[order[at - 1]] > v->s[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    for (int k = 0; k < f.n; k++) {
        int i = order[k];
        if (v->s[i] == 0) continue;
        f.s[i] = step;
        step *= f.d[i];
    }
    *bytes = ((size_t)step * sizeof(float) + ALIGN - 1) / ALIGN * ALIGN;
    return f;
}

/* v with size 1 in dimensions of stride 0, so that a copy reads a repeated
 * element
 * once. */
static dsi_view once(dsi_view v)
{
    for (int i = 0; i < v.n; i++)
        if (v.s[i] == 0 && v.d[i] > 1) v.d[i] = 1;
    return v;
}

bool in_f32_begin(in_f32 *c, dsi_stream *s, int n_out, int n, dsi_view *const *views)
{
    dsi_view wide[MAX_OPERANDS];
    size_t bytes[MAX_OPERANDS], room = 0;
    *c = (in_f32){.s = s};
    for (int i = 0; i < n; i++) {
        if (!views[i]->p || !is_half(views[i]->dtype)) continue;
        wide[i] = float_view(views[i], &bytes[i]);
        room += bytes[i];
    }
    c->bytes = room;
    c->block = room <= IN_F32_SMALL ? dsi_scratch(s, room) : dsi_cache_alloc(s->device, room);
    if (!c->block) return false;

    char *next = c->block;
    for (int i = 0; i < n; i++) {
        dsi_view half = *views[i];
        if (!half.p || !is_half(half.dtype)) continue;
        *views[i] = wide[i];
        views[i]->p = next;
        next += bytes[i];
        if (i < n_out) {
            c->out[c->n_out] = views[i];
            c->half[c->n_out++] = half;
        } else {
            KERNEL(copy)(s, once(half), once(*views[i]));
        }
    }
    return true;
}

ds_status in_f32_end(in_f32 *c, ds_status status)
{
    for (int i = 0; status == DS_OK && i < c->n_out; i++)
        status = KERNEL(copy)(c->s, *c->out[i], c->half[i]);
    if (c->bytes <= IN_F32_SMALL)
        dsi_scratch_release(c->s, c->block);
    else
        dsi_cache_free(c->s->device, c->block, c->bytes);
    return status;
}
