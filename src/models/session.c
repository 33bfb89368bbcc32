/* models/session.c: the cache of keys and values, the graph of a token and the
 * 8-bit matrices, which a model keeps from one call of ds_generate to the next.
 *
 * Invariants:
 * - lm->session is a session that no call is using. A call takes it and gives
 *   it back at its end, so a call from within on_token makes its own. After a
 *   failure the session is freed.
 * - A kept graph reads the parameters at the addresses that it was recorded
 *   with. Each call compares the address and dtype of every parameter, and frees
 *   the graph if one differs. New values at the same address are read. Adapters
 *   are numbers in the graph too: making, loading or merging them drops the
 *   session (lora.c). DoRA's factors belong to one call, and its graph is freed
 *   with them.
 * - A kept cache serves a call only if attention divides it as it would divide
 *   a new one (dsi_step_division), so that tokens have the same bits.
 * - Columns of the cache are used again for `prompt` alone: they depend on the
 *   values of the parameters, which nothing compares. The forward of a training
 *   step ends their use. So does the replay of any graph except that of a token,
 *   because it is not known which parameters a graph writes.
 * - The session belongs to the thread whose handle on the device the parameters
 *   have; calls of other threads keep nothing.
 * - A session is freed first when memory is short: if an allocation of the
 *   thread finds no memory on the device (dsi_spare), and at the forward of the
 *   next training step.
 * SPDX-License-Identifier: MIT */
#include "session.h"

#include "base/error.h"
#include "base/int.h"
#include "base/mem.h"
#include "device/graph.h"
#include "lora.h"
#include "nn/tree.h"
#include "tensor/tensor.h"

#include <string.h>

/* ---- where the parameters are ---- */

static bool is_plain(const dsi_lm_session *s, const ds_tensor *x)
{
    return x->storage && x->device == s->device;
}

static bool param_note(void *arg, const char *path, const dsi_module_entry *e)
{
    dsi_lm_session *s = arg;
    bool plain = is_plain(s, e->x);
    (void)path;
    dsi_list_add(&s->params, plain ? dsi_v(e->x) : (dsi_view){.p = NULL});
    return plain;
}

/* false: one has no memory of its own, or is elsewhere. */
static bool params_note(dsi_lm_session *s, const dsi_lm *lm)
{
    s->params.n = 0;
    dsi_module_walk(ds_module_of((void *)lm), param_note, s);
    const dsi_view *last = s->params.n ? &s->params.at[s->params.n - 1] : NULL;
    return last && last->p;
}

typedef struct Compared {
    const dsi_lm_session *s;
    int n;
    bool same;
} Compared;

static bool param_compare(void *arg, const char *path, const dsi_module_entry *e)
{
    Compared *c = arg;
    const ds_tensor *x = e->x;
    (void)path;
    c->same = c->n < c->s->params.n && is_plain(c->s, x);
    if (!c->same) return false;
    const dsi_view now = dsi_v(x), *was = &c->s->params.at[c->n++];
    return c->same = now.p == was->p && now.dtype == was->dtype;
}

static bool params_stayed(const dsi_lm_session *s, const dsi_lm *lm)
{
    Compared c = {.s = s, .same = true};
    dsi_module_walk(ds_module_of((void *)lm), param_compare, &c);
    return c.same && c.n == s->params.n;
}

/* ---- the cache ---- */

static void cache_free(dsi_lm_session *s, int64_t layers)
{
    dsi_lm_decoder_free(s->decoder);
    s->decoder = NULL;
    for (int64_t i = 0; s->cache.k && i < layers; i++)
        ds_drop(s->cache.k[i]), ds_drop(s->cache.v[i]);
    dsi_free(s->cache.k), dsi_free(s->cache.v), dsi_free(s->ids), dsi_free(s->pads);
    s->cache = (dsi_lm_cache){0};
    s->ids = s->pads = NULL;
    s->filled = s->rows = 0;
}

static void cache_make(dsi_lm_session *s, int64_t layers, int64_t rows, int64_t room)
{
    s->rows = rows;
    s->cache = (dsi_lm_cache){.room = room,
                              .k = dsi_alloc((size_t)layers * sizeof(ds_tensor *)),
                              .v = dsi_alloc((size_t)layers * sizeof(ds_tensor *))};
    s->ids = dsi_alloc((size_t)(rows * room) * sizeof *s->ids);
    s->pads = dsi_alloc((size_t)rows * sizeof *s->pads);
}

/* Space for at least `need` columns, at most a quarter more, so that calls of
 * about the same length have the same; and not beyond the model's context,
 * behind which some scalings turn otherwise. */
static int64_t cache_room(const dsi_lm *lm, int64_t need)
{
    int64_t step = 32, most = lm->position ? lm->config.positions : dsi_lm_rope_together(lm, 0);
    while (step < 256 && step * 8 <= need) step *= 2;
    return need >= most ? need : dsi_min(dsi_div_up(need, step) * step, most);
}

static int division(const dsi_lm *lm, int64_t rows, int64_t room)
{
    return dsi_step_division(room, rows * lm->config.heads);
}

static bool cache_fits(const dsi_lm_session *s, const dsi_lm *lm, int64_t rows, int64_t room)
{
    return s->rows == rows && s->cache.room >= room &&
           division(lm, rows, s->cache.room) == division(lm, rows, room);
}

/* *x [B,G,T,D] becomes a tensor of `room` columns, with the filled ones of it. */
static bool column_move(ds_tensor **x, int64_t filled, int64_t room)
{
    ds_tensor *was = *x,
              *now = was ? ds_keep(dsi_new(was, ds_shape(ds_size(was, 0), ds_size(was, 1), room,
                                                         ds_size(was, 3))))
                         : NULL;
    if (!now) return false;
    bool moved = ds_copy(ds_slice(now, 2, 0, filled), ds_slice(was, 2, 0, filled)) == DS_OK;
    *x = now;
    ds_drop(was);
    return moved;
}

/* A cache of that many columns with the filled ones, if there is memory. */
static void cache_move(dsi_lm_session *s, const dsi_lm *lm, int64_t room)
{
    int64_t layers = lm->config.layers, filled = dsi_min(s->filled, room), was = s->cache.room;
    bool moved = true;
    int64_t *ids = dsi_alloc((size_t)(s->rows * room) * sizeof *ids);
    for (int64_t i = 0; i < s->rows; i++)
        memcpy(ids + i * room, s->ids + i * was, (size_t)filled * sizeof *ids);
    dsi_free(s->ids);
    s->ids = ids, s->cache.room = room, s->filled = filled;
    dsi_lm_decoder_free(s->decoder);
    s->decoder = NULL;
    ds_scope *scope = ds_scope_open();
    for (int64_t i = 0; i < layers && moved; i++)
        moved = column_move(&s->cache.k[i], filled, room) &&
                column_move(&s->cache.v[i], filled, room);
    ds_scope_close(scope);
    int64_t rows = s->rows;
    if (moved) return;
    ds_error_clear();
    cache_free(s, layers);
    cache_make(s, layers, rows, room);
}

/* ---- rows of several sequences of a prompt ---- */

static bool column_expand(dsi_lm_session *s, ds_tensor **to, ds_tensor *from, int64_t times)
{
    int64_t n = ds_size(from, 2);
    if (!*to)
        *to = ds_keep(
            dsi_new(from, ds_shape(s->rows, ds_size(from, 1), s->cache.room, ds_size(from, 3))));
    return *to && ds_copy(ds_slice(*to, 2, 0, n), ds_repeat_interleave(from, times, 0)) == DS_OK;
}

ds_status dsi_lm_session_expand(dsi_lm_session *s, const dsi_lm_cache *from, int64_t layers,
                                int64_t times)
{
    bool ok = true;
    for (int64_t i = 0; i < layers && ok; i++) {
        ds_scope *scope = ds_scope_open();
        ok = column_expand(s, &s->cache.k[i], from->k[i], times) &&
             column_expand(s, &s->cache.v[i], from->v[i], times);
        ds_scope_close(scope);
    }
    s->cache.length = from->room;
    return ok ? DS_OK : ds_error_status();
}

/* Rows that are copied one by one on another device than the CPU; more of them
 * are gathered in one launch. */
#define COPIES_SINGLE 2

/* int64 [rows], on the session's device: the row that each one takes. */
static ds_tensor *rows_order(const dsi_lm_session *s, const dsi_row_copy *copies, int64_t n)
{
    ds_tensor *order = dsi_new_host(DS_I64, ds_shape(s->rows));
    int64_t *p = order ? ds_data_mut(order) : NULL;
    for (int64_t i = 0; p && i < s->rows; i++) p[i] = i;
    for (int64_t i = 0; p && i < n; i++) p[copies[i].to] = copies[i].source;
    return ds_to(order, ds_device_of(s->cache.k[0]), DS_I64);
}

static ds_tensor *row_part(ds_tensor *x, int64_t row, int64_t from, int64_t end)
{
    return ds_slice(ds_slice(x, 0, row, row + 1), 2, from, end);
}

/* order: NULL, or all rows at once, from the first column that differs on. */
static bool rows_copy(ds_tensor *x, const dsi_row_copy *copies, int64_t n, ds_tensor *order,
                      int64_t end)
{
    int64_t from = end;
    for (int64_t i = 0; i < n; i++) from = dsi_min(from, copies[i].from);
    ds_tensor *part = order ? ds_slice(x, 2, from, end) : NULL;
    bool ok = !order || ds_copy(part, ds_index_select(part, 0, order)) == DS_OK;
    for (int64_t i = 0; i < n && ok && !order; i++)
        ok = ds_copy(row_part(x, copies[i].to, copies[i].from, end),
                     row_part(x, copies[i].source, copies[i].from, end)) == DS_OK;
    return ok;
}

ds_status dsi_lm_session_copy(dsi_lm_session *s, int64_t layers, const dsi_row_copy *copies,
                              int64_t n)
{
    ds_scope *scope = ds_scope_open();
    bool gather = n > COPIES_SINGLE && ds_device_of(s->cache.k[0]).kind != DS_CPU;
    ds_tensor *order = gather ? rows_order(s, copies, n) : NULL;
    bool ok = order || !gather;
    for (int64_t i = 0; i < layers && ok && n; i++) {
        ds_scope *inner = ds_scope_open();
        ok = rows_copy(s->cache.k[i], copies, n, order, s->cache.length) &&
             rows_copy(s->cache.v[i], copies, n, order, s->cache.length);
        ds_scope_close(inner);
    }
    ds_scope_close(scope);
    return ok ? DS_OK : ds_error_status();
}

/* ---- life ---- */

static void session_free(dsi_lm_session *s, int64_t layers)
{
    if (!s) return;
    cache_free(s, layers);
    dsi_assistant_free(s->assistant);
    dsi_list_free(&s->params);
    dsi_free(s);
}

void dsi_lm_session_drop(dsi_lm *lm)
{
    dsi_lm_session *s = lm->session;
    lm->session = NULL;
    if (s) dsi_spare_remove(s->device, &s->spare);
    session_free(s, lm->config.layers);
}

/* Frees of a capture would be captured too. */
void dsi_lm_session_train(dsi_lm *lm)
{
    if (!lm->session || dsi_graph_capturing(((dsi_lm_session *)lm->session)->device)) return;
    dsi_lm_session_drop(lm);
}

static void session_spare(void *lm) { dsi_lm_session_drop(lm); }

/* Whether the parameters have this thread's handle on their device. */
static bool is_of_thread(dsi_device *d) { return dsi_device_get(dsi_device_id(d)) == d; }

dsi_lm_session *dsi_lm_session_take(dsi_lm *lm, int64_t rows, int64_t need, bool prompt)
{
    dsi_device *d = dsi_lm_embedding_weight(lm->embed)->device;
    dsi_lm_session *s = NULL;
    int64_t room = cache_room(lm, need);
    if (lm->session && is_of_thread(d)) {
        if (!params_stayed(lm->session, lm)) dsi_lm_session_drop(lm);
        s = lm->session;
        lm->session = NULL;
        if (s) dsi_spare_remove(d, &s->spare);
    }
    if (!s) {
        s = dsi_alloc(sizeof *s);
        s->device = d;
    }
    if (!prompt || s->replays != d->replays) s->filled = 0;
    if (cache_fits(s, lm, rows, room)) return s;
    if (s->rows == rows && s->filled) {
        cache_move(s, lm, room);
        return s;
    }
    cache_free(s, lm->config.layers);
    cache_make(s, lm->config.layers, rows, room);
    return s;
}

void dsi_lm_session_keep(dsi_lm *lm, dsi_lm_session *s, bool good, bool prompt)
{
    const dsi_lora *lora = lm->lora;
    int64_t layers = lm->config.layers;
    if (!good || !is_of_thread(s->device) || !params_note(s, lm)) {
        session_free(s, layers);
        return;
    }
    dsi_lm_session_drop(lm);
    if (lora && lora->dora) dsi_lm_decoder_free(s->decoder), s->decoder = NULL;
    if (!prompt) s->filled = 0;
    if (!prompt && !s->decoder) cache_free(s, layers);
    s->replays = s->device->replays;
    s->spare = (dsi_spare){.release = session_spare, .arg = lm};
    dsi_spare_add(s->device, &s->spare);
    lm->session = s;
}
