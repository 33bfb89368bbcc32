/* nn/rnn.c: LSTM, GRU, RNN and their cells, of PyTorch's parameters and
 * formulas, made of ops.
 *
 * A layer is one cell, or two with .bidirectional; the second one, whose names
 * end in _reverse, reads from the end. A cell has weight_ih [G H,in], weight_hh
 * [G H,P], bias_ih and bias_hh [G H], of G gates, H hidden_size, P H or
 * proj_size; LSTM with proj_size also weight_hr [P,H]. The products with x of
 * all steps are one; those with h are one a step.
 *   LSTM  i, f, o = sigmoid, g = tanh of the gates i f g o; c = f c + i g; h = o tanh(c)
 *         Hochreiter and Schmidhuber, Neural Computation 9 (1997)
 *   GRU   r, z = sigmoid of gates 1, 2; n = tanh(gate 3 of x + r gate 3 of h); h = n + z (h - n)
 *         Cho et al., arXiv:1406.1078, with the reset after the product
 *   RNN   h = tanh(gate), or relu; Elman, Cognitive Science 14 (1990)
 *
 * Invariant: `state` and `lengths` are set only while ds_call_rnn's call of the
 * module runs.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/mem.h"
#include "tensor/tensor.h"

#include <deepspeed/nn.h>

#include <math.h>

typedef struct Cell {
    ds_tensor *w_ih, *w_hh, *b_ih, *b_hh, *w_hr; /* biases, w_hr: or NULL */
} Cell;

typedef struct Rnn {
    int gates;               /* 4 LSTM, 3 GRU, 1 RNN */
    int64_t in, hidden, out; /* out: proj_size, or hidden */
    int layers, directions;
    ds_nn_rnn_opts o;
    Cell *cell;          /* [layers directions] */
    bool one_step;       /* LSTMCell, ...: one cell, whose names have no layer */
    ds_rnn_state *state; /* of ds_call_rnn; NULL */
    ds_tensor *lengths;  /* [N,1] on x's device, of ds_call_rnn_padded; NULL */
} Rnn;

/* ---- one step ------------------------------------------------------------------------------------------ */

/* Gate i, counted in torch's order of rows, of x [N,G H]: a view [N,H]. */
static ds_tensor *gate(const Rnn *r, ds_tensor *x, int i)
{
    return ds_slice(x, -1, i * r->hidden, (i + 1) * r->hidden);
}

/* gx [N,G H]: the step's product with x; s: h [N,P], c [N,H] before -> after.
 * GRU keeps both products apart, because reset multiplies only that of h, with
 * its bias. h is NULL after a failure. */
static ds_rnn_state rnn_step(const Rnn *r, const Cell *cell, ds_tensor *gx, ds_rnn_state s)
{
    ds_tensor *gh = ds_linear(s.h, cell->w_hh, cell->b_hh);
    if (r->gates == 1) {
        ds_tensor *g = ds_add(gx, gh);
        return (ds_rnn_state){.h = r->o.relu ? ds_relu(g) : ds_tanh(g)};
    }
    if (r->gates == 3) {
        ds_tensor *reset = ds_sigmoid(ds_add(gate(r, gx, 0), gate(r, gh, 0)));
        ds_tensor *z = ds_sigmoid(ds_add(gate(r, gx, 1), gate(r, gh, 1)));
        ds_tensor *n = ds_tanh(ds_add(gate(r, gx, 2), ds_mul(reset, gate(r, gh, 2))));
        return (ds_rnn_state){.h = ds_add(n, ds_mul(z, ds_sub(s.h, n)))};
    }
    ds_tensor *g = ds_add(gx, gh);
    ds_tensor *in = ds_mul(ds_sigmoid(gate(r, g, 0)), ds_tanh(gate(r, g, 2)));
    s.c = ds_add(ds_mul(ds_sigmoid(gate(r, g, 1)), s.c), in);
    s.h = ds_mul(ds_sigmoid(gate(r, g, 3)), ds_tanh(s.c));
    if (cell->w_hr) s.h = ds_linear(s.h, cell->w_hr, NULL);
    return s;
}

/* s where the samples have a step t, else as it was before; *y: h there, else
 * 0. */
static ds_rnn_state rnn_hold(const Rnn *r, int64_t t, ds_rnn_state before, ds_rnn_state s,
                             ds_tensor **y)
{
    ds_tensor *now = ds_scalar(DS_I64, (double)t);
    now = ds_gt(r->lengths, ds_to(now, ds_device_of(r->lengths), DS_I64));
    *y = ds_where(now, s.h, ds_like(s.h, 0));
    s.h = ds_where(now, s.h, before.h);
    if (s.c) s.c = ds_where(now, s.c, before.c);
    return s;
}

/* x [T,N,in] -> y[0..T-1], [N,P] each; s: the state before -> after. y[t] is
 * the output at time t in both directions; y is the caller's array of T
 * handles. False if a step failed. */
static bool rnn_run_cell(const Rnn *r, const Cell *cell, ds_tensor *x, bool reverse,
                         ds_rnn_state *s, ds_tensor **y)
{
    int64_t steps = ds_size(x, 0);
    ds_tensor *gx = ds_linear(x, cell->w_ih, cell->b_ih);
    for (int64_t i = 0; i < steps; i++) {
        int64_t t = reverse ? steps - 1 - i : i;
        ds_rnn_state before = *s;
        *s = rnn_step(r, cell, ds_select(gx, 0, t), before);
        y[t] = s->h;
        if (s->h && r->lengths) *s = rnn_hold(r, t, before, *s, &y[t]);
        if (!s->h || !y[t]) return false;
    }
    return true;
}

/* ---- layers -------------------------------------------------------------------------------------------- */

/* x [T,N,in] -> [T,N,P] or [T,N,2P]; first, last: h and c of its cells. Cell k
 * is that of layer k / directions, forward before reverse: torch's order of
 * h_0 and h_n. */
static ds_tensor *rnn_run_layer(const Rnn *r, int layer, ds_tensor *x, const ds_rnn_state *first,
                                ds_rnn_state *last)
{
    int64_t steps = ds_size(x, 0);
    ds_tensor **y = dsi_alloc((size_t)steps * sizeof *y), *side[2] = {NULL, NULL};
    for (int d = 0; d < r->directions; d++) {
        int k = layer * r->directions + d;
        last[k] = first[k];
        bool ran = rnn_run_cell(r, &r->cell[k], x, d == 1, &last[k], y);
        side[d] = ran ? ds_stack(y, (int)steps, 0) : NULL;
    }
    dsi_free(y);
    if (r->directions == 1) return side[0];
    return side[0] && side[1] ? ds_cat(side, 2, -1) : NULL;
}

/* [cells,N,size] of the cells' h (c), each [N,size]; kept for the caller of
 * ds_call_rnn. */
static ds_tensor *rnn_join(const Rnn *r, const ds_rnn_state *last, bool c)
{
    int n = r->layers * r->directions;
    ds_tensor **x = dsi_alloc((size_t)n * sizeof *x);
    for (int i = 0; i < n; i++) x[i] = c ? last[i].c : last[i].h;
    ds_tensor *y = ds_stack(x, n, 0);
    dsi_free(x);
    return ds_keep(y);
}

/* given [cells,N,size] (without a batch [cells,size]), or zeros, for each cell
 * -> out; false with the message. c: the cell's state, of size hidden; else h,
 * of size `out`. */
static bool rnn_first(const Rnn *r, const ds_tensor *x, ds_tensor *given, bool batch, bool c,
                      ds_rnn_state *out)
{
    int cells = r->layers * r->directions;
    int64_t n = ds_size(x, 1), size = c ? r->hidden : r->out;
    ds_dims want = batch ? ds_shape(cells, n, size) : ds_shape(cells, size);
    if (given && !dsi_same_shape(ds_shape_of(given), want))
        return dsi_refuse("%s_0 is %s: expected %s", c ? "c" : "h",
                          dsi_shape_text(ds_shape_of(given)), dsi_shape_text(want));
    ds_tensor *all = given ? ds_reshape(given, ds_shape(cells, n, size))
                           : ds_to(ds_zeros(ds_dtype_of(x), ds_shape(cells, n, size)),
                                   ds_device_of(x), ds_dtype_of(x));
    for (int i = 0; i < cells; i++) {
        ds_tensor *one = all ? ds_select(all, 0, i) : NULL;
        if (!one) return false;
        *(c ? &out[i].c : &out[i].h) = one;
    }
    return true;
}

/* Whether the constructor took the options; else false, with the message. */
static bool rnn_has_cells(Rnn *r)
{
    if (r->cell) return true;
    return dsi_invalid("%s: its options were refused, and it has no cells",
                       ds_module_type_of(ds_module_of(r))->name);
}

/* x [T,N,in]. first, last: [cells], the caller's. Dropout is between layers,
 * as in torch, and not after the last one. *r->state becomes h_n and c_n,
 * kept, only if every layer ran. */
static ds_tensor *rnn_run(Rnn *r, ds_tensor *x, bool batch, ds_rnn_state *first, ds_rnn_state *last)
{
    ds_rnn_state given = r->state ? *r->state : (ds_rnn_state){0};
    bool lstm = r->gates == 4;
    if (!rnn_first(r, x, given.h, batch, false, first)) return NULL;
    if (lstm && !rnn_first(r, x, given.c, batch, true, first)) return NULL;
    bool training = ds_module_training(ds_module_of(r));
    for (int i = 0; i < r->layers && x; i++) {
        if (i) x = ds_dropout(x, r->o.dropout, training);
        x = rnn_run_layer(r, i, x, first, last);
    }
    if (!x || !r->state) return x;
    *r->state = (ds_rnn_state){rnn_join(r, last, false), lstm ? rnn_join(r, last, true) : NULL};
    return r->state->h && (r->state->c || !lstm) ? x : NULL;
}

/* The steps are the first dimension inside, for any batch_first; a transposed
 * view costs no copy. A sample without a batch is a batch of one. */
static ds_tensor *rnn_forward(void *self, ds_tensor *x)
{
    Rnn *r = self;
    if (!rnn_has_cells(r)) return NULL;
    int dims = ds_ndim(x), time = dims == 3 && r->o.batch_first ? 1 : 0;
    if ((dims != 3 && dims != 2) || ds_size(x, -1) != r->in || ds_size(x, time) < 1)
        return dsi_refuse(
            "%s: x is %s: expected %s, %lld] or [time, %lld], of at least one step",
            ds_module_type_of(ds_module_of(self))->name, dsi_shape_text(ds_shape_of(x)),
            r->o.batch_first ? "[batch, time" : "[time, batch", (long long)r->in, (long long)r->in);
    size_t cells = (size_t)(r->layers * r->directions);
    ds_rnn_state *first = dsi_alloc(2 * cells * sizeof *first);
    if (dims == 2) x = ds_unsqueeze(x, 1);
    ds_tensor *y = rnn_run(r, time ? ds_transpose(x, 0, 1) : x, dims == 3, first, first + cells);
    dsi_free(first);
    return dims == 2 ? ds_squeeze(y, 1) : time ? ds_transpose(y, 0, 1) : y;
}

/* ---- one step, by itself -------------------------------------------------------------------------------- */

/* *s, given or zeros, has that shape. */
static bool cell_first(const char *name, const ds_tensor *x, ds_dims want, ds_tensor **s)
{
    if (*s && !dsi_same_shape(ds_shape_of(*s), want))
        return dsi_invalid("%s is %s: expected %s", name, dsi_shape_text(ds_shape_of(*s)),
                           dsi_shape_text(want));
    if (!*s) *s = ds_to(ds_zeros(ds_dtype_of(x), want), ds_device_of(x), ds_dtype_of(x));
    return *s;
}

/* x [N,in] or [in]. h is the result, and c is kept for ds_call_rnn. */
static ds_tensor *cell_forward(void *self, ds_tensor *x)
{
    Rnn *r = self;
    if (!rnn_has_cells(r)) return NULL;
    int dims = ds_ndim(x);
    if (dims < 1 || dims > 2 || ds_size(x, -1) != r->in)
        return dsi_refuse("%s: x is %s: expected [batch, %lld] or [%lld]",
                          ds_module_type_of(ds_module_of(self))->name,
                          dsi_shape_text(ds_shape_of(x)), (long long)r->in, (long long)r->in);
    ds_dims want = ds_shape_of(x);
    want.d[dims - 1] = r->hidden;
    ds_rnn_state s = r->state ? *r->state : (ds_rnn_state){0};
    if (!cell_first("h", x, want, &s.h) || (r->gates == 4 && !cell_first("c", x, want, &s.c)))
        return NULL;
    s = rnn_step(r, r->cell, ds_linear(x, r->cell->w_ih, r->cell->b_ih), s);
    if (s.h && r->state && r->gates == 4) r->state->c = ds_keep(s.c);
    return s.h;
}

/* *state is h_0, c_0 (NULL: zeros) before and h_n, c_n after, in the caller's
 * scope; it is unchanged after a failure. */
static ds_tensor *rnn_call(ds_module *m, ds_tensor *x, ds_tensor *lengths, ds_rnn_state *state)
{
    ds_rnn_state s = state ? *state : (ds_rnn_state){0}, given = s;
    Rnn *r = ds_self(m);
    r->state = state ? &s : NULL, r->lengths = lengths;
    ds_tensor *y = ds_call(m, x);
    r->state = NULL, r->lengths = NULL;
    if (!state || (s.h == given.h && !r->one_step))
        return y;                           /* h_n is new, if the forward came so far */
    if (s.h != given.h) dsi_scope_add(s.h); /* which kept both, beyond its scope */
    if (s.c != given.c) dsi_scope_add(s.c);
    if (!y) return NULL;
    if (r->one_step) s.h = y;
    bool one = !r->one_step && ds_ndim(x) == 2;
    *state = (ds_rnn_state){one ? ds_squeeze(s.h, 1) : s.h, one && s.c ? ds_squeeze(s.c, 1) : s.c};
    return y;
}

ds_tensor *ds_call_rnn(ds_module *m, ds_tensor *x, ds_rnn_state *state)
{
    if (!dsi_live_all("call_rnn", m, x)) return dsi_null_operand("call_rnn");
    ds_tensor *(*forward)(void *, ds_tensor *) = ds_module_type_of(m)->forward;
    if (forward != rnn_forward && forward != cell_forward)
        return dsi_refuse("call_rnn: %s is a %s: expected an LSTM, GRU or RNN, or a cell",
                          ds_module_name(m), ds_module_type_of(m)->name);
    return rnn_call(m, x, NULL, state);
}

/* x [.,.,in] of the module's batch_first; int64 [batch], from 1 to the steps. */
static bool rnn_check_lengths(ds_module *m, const ds_tensor *x, ds_tensor *lengths)
{
    const char *type = ds_module_type_of(m)->name;
    bool batch_first = ((Rnn *)ds_self(m))->o.batch_first;
    int64_t n = ds_size(x, !batch_first), steps = ds_size(x, batch_first);
    if (ds_dtype_of(lengths) != DS_I64 || !dsi_same_shape(ds_shape_of(lengths), ds_shape(n)))
        return dsi_refuse("%s: lengths are %s %s: expected int64 [%lld]", type,
                          ds_dtype_name(ds_dtype_of(lengths)), dsi_shape_text(ds_shape_of(lengths)),
                          (long long)n);
    lengths = ds_contiguous(lengths);
    const int64_t *p = lengths ? ds_data(lengths) : NULL;
    for (int64_t i = 0; p && i < n; i++)
        if (p[i] < 1 || p[i] > steps)
            return dsi_refuse("%s: lengths[%lld] is %lld: expected 1 to %lld", type, (long long)i,
                              (long long)p[i], (long long)steps);
    return p;
}

ds_tensor *ds_call_rnn_padded(ds_module *m, ds_tensor *x, ds_tensor *lengths, ds_rnn_state *state)
{
    const char *op = "call_rnn_padded";
    if (!dsi_live_all(op, m, x, lengths)) return dsi_null_operand(op);
    if (ds_module_type_of(m)->forward != rnn_forward || ds_ndim(x) != 3)
        return dsi_refuse("%s: %s is a %s, x %s: expected an LSTM, GRU or RNN, and a batch", op,
                          ds_module_name(m), ds_module_type_of(m)->name,
                          dsi_shape_text(ds_shape_of(x)));
    if (!rnn_check_lengths(m, x, lengths)) return NULL;
    lengths = ds_to(ds_reshape(lengths, ds_shape(-1, 1)), ds_device_of(x), DS_I64);
    return lengths ? rnn_call(m, x, lengths, state) : NULL;
}

/* ---- modules ------------------------------------------------------------------------------------------- */

static void rnn_free(void *self) { dsi_free(((Rnn *)self)->cell); }

/* As torch's extra_repr: sizes, then what does not have its default. */
static void rnn_describe(void *self, FILE *to)
{
    const Rnn *r = self;
    fprintf(to, "%lld, %lld", (long long)r->in, (long long)r->hidden);
    if (r->o.proj_size) fprintf(to, ", proj_size=%lld", (long long)r->o.proj_size);
    if (r->layers > 1) fprintf(to, ", num_layers=%d", r->layers);
    if (r->o.no_bias) fputs(", bias=False", to);
    if (r->o.batch_first) fputs(", batch_first=True", to);
    if (r->o.dropout > 0) fprintf(to, ", dropout=%g", r->o.dropout);
    if (r->o.bidirectional) fputs(", bidirectional=True", to);
    if (r->o.relu && r->one_step) fputs(", nonlinearity=relu", to);
}

/* One parameter of cell k, from U(-1/sqrt(H), 1/sqrt(H)):
 * "weight_ih_l0_reverse". */
static ds_tensor *rnn_param(ds_module *m, const Rnn *r, const char *what, int k, ds_dims shape)
{
    char name[48];
    snprintf(name, sizeof name, r->one_step ? "%s" : "%s_l%d%s", what, k / r->directions,
             k % r->directions ? "_reverse" : "");
    double bound = 1 / sqrt((double)r->hidden);
    return ds_init_uniform(ds_module_param(m, name, ds_empty(DS_F32, shape)), -bound, bound);
}

static bool rnn_check(ds_module *m, const Rnn *r)
{
    bool projects = r->o.proj_size != 0;
    if (r->in > 0 && r->in <= INT32_MAX && r->hidden > 0 && r->hidden <= INT32_MAX &&
        r->o.num_layers >= 0 && r->o.dropout >= 0 && r->o.dropout <= 1 &&
        (!projects || (r->gates == 4 && r->out > 0 && r->out < r->hidden)) &&
        (!r->o.relu || r->gates == 1) &&
        (!r->one_step || (r->o.num_layers < 2 && !r->o.bidirectional && !projects &&
                          !r->o.batch_first && r->o.dropout == 0)))
        return true;
    ds_fail(
        DS_EINVAL,
        "%s %s: input_size = %lld, hidden_size = %lld, num_layers = %d, dropout = %g, "
        "proj_size = %lld%s: expected sizes of 1 to 2^31 - 1, dropout from 0 to 1, proj_size below "
        "hidden_size and for an LSTM, relu for an RNN, of a cell one layer and direction",
        ds_module_type_of(m)->name, ds_module_name(m), (long long)r->in, (long long)r->hidden,
        r->o.num_layers, r->o.dropout, (long long)r->o.proj_size, r->o.relu ? ", relu" : "");
    return false;
}

/* Parameters are made, and so drawn, cell by cell in torch's order of its
 * state dict. A refused option leaves a module without cells and the message.
 * Inputs of later layers are all directions' outputs. */
static ds_module *rnn_new(ds_module *parent, const char *name, const char *class_name, Rnn with)
{
    ds_module_type type = {class_name, sizeof(Rnn),
                           .forward = with.one_step ? cell_forward : rnn_forward, .free = rnn_free,
                           .describe = rnn_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    Rnn *r = ds_self(m);
    *r = with;
    r->out = r->o.proj_size ? r->o.proj_size : r->hidden;
    if (!rnn_check(m, r)) return m;
    r->layers = r->o.num_layers ? r->o.num_layers : 1;
    r->directions = r->o.bidirectional ? 2 : 1;
    r->cell = dsi_alloc((size_t)(r->layers * r->directions) * sizeof *r->cell);
    int64_t rows = r->gates * r->hidden;
    for (int k = 0; k < r->layers * r->directions; k++) {
        Cell *c = &r->cell[k];
        int64_t in = k < r->directions ? r->in : r->out * r->directions;
        c->w_ih = rnn_param(m, r, "weight_ih", k, ds_shape(rows, in));
        c->w_hh = rnn_param(m, r, "weight_hh", k, ds_shape(rows, r->out));
        if (!r->o.no_bias) {
            c->b_ih = rnn_param(m, r, "bias_ih", k, ds_shape(rows));
            c->b_hh = rnn_param(m, r, "bias_hh", k, ds_shape(rows));
        }
        if (r->o.proj_size) c->w_hr = rnn_param(m, r, "weight_hr", k, ds_shape(r->out, r->hidden));
    }
    return m;
}

ds_module *ds_nn_lstm_with(ds_module *parent, const char *name, int64_t input_size,
                           ds_nn_rnn_opts o)
{
    return rnn_new(parent, name, "LSTM",
                   (Rnn){.gates = 4, .in = input_size, .hidden = o.hidden_size, .o = o});
}

ds_module *ds_nn_gru_with(ds_module *parent, const char *name, int64_t input_size, ds_nn_rnn_opts o)
{
    return rnn_new(parent, name, "GRU",
                   (Rnn){.gates = 3, .in = input_size, .hidden = o.hidden_size, .o = o});
}

ds_module *ds_nn_rnn_with(ds_module *parent, const char *name, int64_t input_size, ds_nn_rnn_opts o)
{
    return rnn_new(parent, name, "RNN",
                   (Rnn){.gates = 1, .in = input_size, .hidden = o.hidden_size, .o = o});
}

ds_module *ds_nn_lstm_cell_with(ds_module *parent, const char *name, int64_t input_size,
                                ds_nn_rnn_opts o)
{
    Rnn with = {.gates = 4, .in = input_size, .hidden = o.hidden_size, .o = o, .one_step = true};
    return rnn_new(parent, name, "LSTMCell", with);
}

ds_module *ds_nn_gru_cell_with(ds_module *parent, const char *name, int64_t input_size,
                               ds_nn_rnn_opts o)
{
    Rnn with = {.gates = 3, .in = input_size, .hidden = o.hidden_size, .o = o, .one_step = true};
    return rnn_new(parent, name, "GRUCell", with);
}

ds_module *ds_nn_rnn_cell_with(ds_module *parent, const char *name, int64_t input_size,
                               ds_nn_rnn_opts o)
{
    Rnn with = {.gates = 1, .in = input_size, .hidden = o.hidden_size, .o = o, .one_step = true};
    return rnn_new(parent, name, "RNNCell", with);
}
