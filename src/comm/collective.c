/* comm/collective.c: collectives on views and on tensors: which sizes fit
 * together.
 *
 * The functions on views start a request; those on tensors start one and wait
 * for it. A tensor that is not contiguous is copied to a row-major buffer, and
 * back if it is written.
 *
 * Invariants: a ds_message holds references to its tensor and to the row-major
 * copy until ds_message_wait, which copies what was received and frees it. All
 * other operands live in the scope of the call. r.counts belong to the request
 * once it was started; a request that could not be started has freed them.
 * SPDX-License-Identifier: MIT */
#include "comm.h"

#include "base/handle.h"
#include "base/mem.h"
#include "tensor/tensor.h"

#include <stdio.h>

static int64_t view_numel(dsi_view x)
{
    int64_t n = 1;
    for (int i = 0; i < x.n; i++) n *= x.d[i];
    return n;
}

/* Row-major without gaps; a dimension of one element may have any stride. */
static bool view_is_contiguous(dsi_view x)
{
    int64_t s = 1;
    for (int i = x.n - 1; i >= 0; i--) {
        if (x.d[i] != 1 && x.s[i] != s) return view_numel(x) == 0;
        s *= x.d[i];
    }
    return true;
}

/* Pieces: in is `in_pieces` of them where out is `out_pieces`. False, with the
 * message, if not so. */
static bool operands_fit(dsi_collective what, ds_dtype in_dtype, int64_t in, int in_pieces,
                         ds_dtype out_dtype, int64_t out, int out_pieces)
{
    const char *name = dsi_collective_name(what);
    if (in_dtype != out_dtype)
        return dsi_refuse("%s: in is %s, but out is %s", name, ds_dtype_name(in_dtype),
                          ds_dtype_name(out_dtype));
    if (in * out_pieces == out * in_pieces) return true;
    if (in % in_pieces)
        return dsi_refuse("%s: in has %lld elements, which are not %d equal pieces", name,
                          (long long)in, in_pieces);
    return dsi_refuse("%s: in has %lld elements, so out must have %lld, but has %lld", name,
                      (long long)in, (long long)(in / in_pieces * out_pieces), (long long)out);
}

static bool views_fit(dsi_collective what, dsi_view in, int in_pieces, dsi_view out, int out_pieces)
{
    if (!view_is_contiguous(in) || !view_is_contiguous(out))
        return dsi_refuse("%s: what is sent without waiting must be contiguous",
                          dsi_collective_name(what));
    return operands_fit(what, in.dtype, view_numel(in), in_pieces, out.dtype, view_numel(out),
                        out_pieces);
}

/* ---- on views --------------------------------------------------------------------------------------- */

static dsi_request *request_start(dsi_request r) { return dsi_request_start(&r); }

/* Members of a request: x is operand and result, and n its elements; or in and
 * out are two, and n (`count`) is the elements of the smaller one, a piece. */
#define IN_PLACE(collective, x) \
    .comm = c, .device = device, .what = (collective), .dtype = (x).dtype, .in = (x).p, \
    .out = (x).p, .n = view_numel(x)
#define IN_OUT(collective, count) \
    .comm = c, .device = device, .what = (collective), .dtype = in.dtype, .in = in.p, \
    .out = out.p, .n = (count)

dsi_request *dsi_all_reduce_start(ds_comm *c, dsi_device *device, dsi_view x, ds_redop op,
                                  double *squares)
{
    if (!views_fit(DSI_ALL_REDUCE, x, 1, x, 1)) return NULL;
    return request_start((dsi_request){IN_PLACE(DSI_ALL_REDUCE, x), .op = op, .squares = squares});
}

dsi_request *dsi_reduce_scatter_start(ds_comm *c, dsi_device *device, dsi_view in, dsi_view out,
                                      ds_redop op, double *squares)
{
    if (!views_fit(DSI_REDUCE_SCATTER, in, c->size, out, 1)) return NULL;
    return request_start(
        (dsi_request){IN_OUT(DSI_REDUCE_SCATTER, view_numel(out)), .op = op, .squares = squares});
}

dsi_request *dsi_all_gather_start(ds_comm *c, dsi_device *device, dsi_view in, dsi_view out,
                                  const char *purpose)
{
    if (!views_fit(DSI_ALL_GATHER, in, 1, out, c->size)) return NULL;
    return request_start((dsi_request){IN_OUT(DSI_ALL_GATHER, view_numel(in)), .purpose = purpose});
}

static bool equal_pieces(const ds_comm *c, int64_t n)
{
    if (n % c->size == 0) return true;
    return dsi_refuse("all_to_all: %lld elements are not %d equal pieces; see ds_all_to_all_rows",
                      (long long)n, c->size);
}

dsi_request *dsi_all_to_all_start(ds_comm *c, dsi_device *device, dsi_view in, dsi_view out)
{
    if (!views_fit(DSI_ALL_TO_ALL, in, 1, out, 1) || !equal_pieces(c, view_numel(in))) return NULL;
    return request_start((dsi_request){IN_OUT(DSI_ALL_TO_ALL, view_numel(in) / c->size)});
}

dsi_request *dsi_broadcast_start(ds_comm *c, dsi_device *device, dsi_view x, int root)
{
    if (!views_fit(DSI_BROADCAST, x, 1, x, 1)) return NULL;
    return request_start((dsi_request){IN_PLACE(DSI_BROADCAST, x), .root = root});
}

/* ---- on tensors ------------------------------------------------------------------------------------- */

/* A tensor operand: itself, or a row-major stand-in that is copied back. */
typedef struct operand {
    ds_tensor *x, *flat;
    void *p; /* flat's elements */
} operand;

/* read: the values are sent; written: they are received. The tensor is made
 * present and, if needed, contiguous; all that is made belongs to the caller's
 * scope. */
static bool operand_open(operand *o, dsi_collective what, ds_tensor *x, bool read, bool written)
{
    const char *name = dsi_collective_name(what);
    if (!x) return dsi_null_operand(name);
    *o = (operand){.x = x, .flat = x};
    if (!(written ? dsi_acquire_to_write(x) : dsi_acquire(x))) return false;
    if (!dsi_is_contiguous(x)) {
        o->flat = dsi_new(x, x->shape);
        if (!o->flat || (read && dsi_copy(o->flat, x) != DS_OK)) return false;
    }
    if (written && !dsi_acquire_to_write(o->flat)) return false;
    o->flat->storage->written |= written;
    o->p = dsi_v(o->flat).p;
    return true;
}

/* Begins, waits, and copies back what was received for `written`. */
static ds_status request_run(const dsi_request *like, const operand *written)
{
    ds_status status = dsi_request_run(like);
    bool brings = like->what != DSI_SEND && written->flat != written->x;
    if (status == DS_OK && brings) status = ds_copy(written->x, written->flat);
    return status;
}

static ds_comm *comm_or_world(ds_comm *c) { return c ? c : ds_world(); }

/* r has what differs: the collective, its operation, its root. */
static ds_status collective_in_place(ds_comm *c, ds_tensor *x, dsi_request r)
{
    c = comm_or_world(c);
    if (!dsi_live(c, dsi_collective_name(r.what))) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    operand o;
    ds_status status;
    if (operand_open(&o, r.what, x, true, true)) {
        r.comm = c;
        r.device = x->device;
        r.dtype = x->dtype;
        r.in = r.out = o.p;
        r.n = ds_numel(x);
        r.blocking = true;
        status = request_run(&r, &o);
    } else {
        status = ds_error_status();
    }
    ds_scope_close(scope);
    return status;
}

/* in or out is NULL where this rank has none; r holds the rest. */
static ds_status collective_in_out(ds_comm *c, ds_tensor *in, ds_tensor *out, dsi_request r)
{
    ds_scope *scope = ds_scope_open();
    operand i = {0}, o = {0};
    ds_status status;
    if (dsi_live(c, dsi_collective_name(r.what)) &&
        dsi_same_device(dsi_collective_name(r.what), in, out) &&
        (!in || operand_open(&i, r.what, in, true, false)) &&
        (!out || operand_open(&o, r.what, out, false, true))) {
        r.comm = c;
        r.device = (i.x ? i.x : o.x)->device;
        r.dtype = i.x ? i.x->dtype : o.x ? o.x->dtype : DS_F32;
        r.in = i.p;
        r.out = o.p;
        r.blocking = true;
        status = request_run(&r, &o);
    } else {
        dsi_free(r.counts);
        status = ds_error_status();
    }
    ds_scope_close(scope);
    return status;
}

ds_status ds_all_reduce(ds_comm *c, ds_tensor *x, ds_redop op)
{
    return collective_in_place(c, x, (dsi_request){.what = DSI_ALL_REDUCE, .op = op});
}

ds_status ds_reduce_to(ds_comm *c, ds_tensor *x, ds_redop op, int root)
{
    return collective_in_place(c, x, (dsi_request){.what = DSI_REDUCE, .op = op, .root = root});
}

ds_status ds_broadcast(ds_comm *c, ds_tensor *x, int root)
{
    return collective_in_place(c, x, (dsi_request){.what = DSI_BROADCAST, .root = root});
}

static bool tensors_fit(dsi_collective what, const ds_tensor *in, int in_pieces,
                        const ds_tensor *out, int out_pieces)
{
    if (!in || !out) return dsi_null_operand(dsi_collective_name(what));
    return operands_fit(what, in->dtype, ds_numel(in), in_pieces, out->dtype, ds_numel(out),
                        out_pieces);
}

ds_status ds_reduce_scatter(ds_comm *c, ds_tensor *out, ds_tensor *in, ds_redop op)
{
    c = comm_or_world(c);
    if (!tensors_fit(DSI_REDUCE_SCATTER, in, c->size, out, 1)) return ds_error_status();
    return collective_in_out(
        c, in, out, (dsi_request){.what = DSI_REDUCE_SCATTER, .n = ds_numel(out), .op = op});
}

ds_status ds_all_gather(ds_comm *c, ds_tensor *out, ds_tensor *in)
{
    c = comm_or_world(c);
    if (!tensors_fit(DSI_ALL_GATHER, in, 1, out, c->size)) return ds_error_status();
    return collective_in_out(c, in, out, (dsi_request){.what = DSI_ALL_GATHER, .n = ds_numel(in)});
}

/* out [size * rows of in] only on root; NULL is passed on by the others. */
ds_status ds_gather_to(ds_comm *c, ds_tensor *out, ds_tensor *in, int root)
{
    c = comm_or_world(c);
    if (!in) return dsi_null_argument("gather_to");
    if (c->rank != root)
        out = NULL;
    else if (!tensors_fit(DSI_GATHER, in, 1, out, c->size))
        return ds_error_status();
    return collective_in_out(c, in, out,
                             (dsi_request){.what = DSI_GATHER, .n = ds_numel(in), .root = root});
}

/* in only on root; rank q receives piece q of it. */
ds_status ds_scatter_from(ds_comm *c, ds_tensor *out, ds_tensor *in, int root)
{
    c = comm_or_world(c);
    if (!out) return dsi_null_argument("scatter_from");
    if (c->rank != root)
        in = NULL;
    else if (!tensors_fit(DSI_SCATTER, in, c->size, out, 1))
        return ds_error_status();
    return collective_in_out(c, in, out,
                             (dsi_request){.what = DSI_SCATTER, .n = ds_numel(out), .root = root});
}

ds_status ds_all_to_all(ds_comm *c, ds_tensor *out, ds_tensor *in)
{
    c = comm_or_world(c);
    if (!tensors_fit(DSI_ALL_TO_ALL, in, 1, out, 1) || !equal_pieces(c, ds_numel(in)))
        return ds_error_status();
    return collective_in_out(c, in, out,
                             (dsi_request){.what = DSI_ALL_TO_ALL, .n = ds_numel(in) / c->size});
}

/* Elements of each of `size` pieces of x, whose rows must be as many as the
 * pieces have. */
static bool count_rows(const char *which, const ds_tensor *x, const int64_t *rows, int size,
                       int64_t *counts)
{
    int64_t sum = 0, have = x->shape.n ? x->shape.d[0] : 1, row = have ? ds_numel(x) / have : 0;
    for (int r = 0; r < size; r++) {
        if (rows[r] < 0)
            return dsi_refuse("all_to_all_rows: %s_rows[%d] is %lld", which, r, (long long)rows[r]);
        sum += rows[r];
        counts[r] = rows[r] * row;
    }
    if (sum != have)
        return dsi_refuse("all_to_all_rows: %s is %s, but %s_rows are %lld in all", which,
                          dsi_shape_text(x->shape), which, (long long)sum);
    return true;
}

/* Whether this rank sends to itself as many elements as it expects from itself:
 * every backend copies them. */
static bool own_counts_match(const ds_comm *c, const int64_t *counts)
{
    int64_t sent = counts[c->rank], expected = counts[c->size + c->rank];
    if (sent == expected) return true;
    return dsi_refuse("all_to_all_rows: rank %d sends %lld elements to itself, but expects %lld",
                      c->rank, (long long)sent, (long long)expected);
}

/* The counts of a pair must be equal on both ranks; backends that see both
 * compare them, others notice by the size of the message. */
ds_status ds_all_to_all_rows(ds_comm *c, ds_tensor *out, const int64_t *out_rows, ds_tensor *in,
                             const int64_t *in_rows)
{
    c = comm_or_world(c);
    if (!in || !out || !in_rows || !out_rows) return dsi_null_argument("all_to_all_rows");
    if (in->dtype != out->dtype)
        return dsi_fail(DS_EINVAL, "all_to_all_rows: in is %s, but out is %s",
                        ds_dtype_name(in->dtype), ds_dtype_name(out->dtype));
    int64_t *counts = dsi_alloc(2 * (size_t)c->size * sizeof *counts);
    if (!count_rows("in", in, in_rows, c->size, counts) ||
        !count_rows("out", out, out_rows, c->size, counts + c->size) ||
        !own_counts_match(c, counts)) {
        dsi_free(counts);
        return ds_error_status();
    }
    return collective_in_out(c, in, out,
                             (dsi_request){.what = DSI_ALL_TO_ALL_ROWS, .counts = counts});
}

ds_status ds_barrier(ds_comm *c)
{
    dsi_request r = {.comm = comm_or_world(c), .what = DSI_BARRIER, .blocking = true};
    if (!dsi_live(r.comm, "barrier")) return ds_error_status();
    return request_run(&r, &(operand){0});
}

/* ---- messages of two ranks ---------------------------------------------------------------------------- */

ds_status ds_send(ds_comm *c, ds_tensor *x, int to)
{
    return collective_in_place(c, x, (dsi_request){.what = DSI_SEND, .root = to});
}

ds_status ds_recv(ds_comm *c, ds_tensor *x, int from)
{
    return collective_in_place(c, x, (dsi_request){.what = DSI_RECV, .root = from});
}

struct ds_message {
    operand o; /* both tensors counted */
    dsi_request *r;
};

/* The tensors are counted until ds_message_wait, which may be in another
 * scope. */
static ds_message *message_begin(ds_comm *c, ds_tensor *x, dsi_collective what, int peer)
{
    ds_scope *scope = ds_scope_open();
    ds_message *m = NULL;
    operand o;
    if (operand_open(&o, what, x, what == DSI_SEND, what == DSI_RECV)) {
        dsi_request *r = dsi_request_start(&(dsi_request){.comm = c,
                                                          .what = what,
                                                          .device = x->device,
                                                          .dtype = x->dtype,
                                                          .in = o.p,
                                                          .out = o.p,
                                                          .n = ds_numel(x),
                                                          .root = peer});
        if (r) {
            m = dsi_alloc(sizeof *m);
            *m = (ds_message){o, r};
            r->message = m;
            dsi_ref(o.x);
            dsi_ref(o.flat);
        }
    }
    ds_scope_close(scope);
    return m;
}

ds_message *ds_isend(ds_comm *c, ds_tensor *x, int to)
{
    return message_begin(comm_or_world(c), x, DSI_SEND, to);
}

ds_message *ds_irecv(ds_comm *c, ds_tensor *x, int from)
{
    return message_begin(comm_or_world(c), x, DSI_RECV, from);
}

/* Blocks; frees m. A message that was received into a copy is moved to its
 * tensor here. */
ds_status ds_message_wait(ds_message *m)
{
    if (!m) return dsi_null_argument("message_wait");
    bool received = m->r->what == DSI_RECV;
    ds_status status = dsi_request_wait(m->r);
    if (status == DS_OK && received && m->o.flat != m->o.x) status = ds_copy(m->o.x, m->o.flat);
    dsi_unref(m->o.flat);
    dsi_unref(m->o.x);
    dsi_free(m);
    return status;
}
