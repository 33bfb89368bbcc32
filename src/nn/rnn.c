/* nn/rnn.c: LSTM, GRU, RNN, of PyTorch's parameters and formulas, made of ops.
 *
 * A layer is one cell, or two with .bidirectional; the second one, whose names
 * end in _reverse, reads from the end. A cell has weight_ih [G H,in],
 * weight_hh [G H,P], bias_ih and bias_hh [G H], of G gates, H hidden_size, P H or
 * proj_size; LSTM with proj_size also weight_hr [P,H]. The products with x of
 * all steps are one; those with h are one a step.
 *   LSTM  i, f, o = sigmoid, g = tanh of the gates i f g o; c = f c + i g; h = o tanh(c)
 *         Hochreiter and Schmidhuber, Neural Computation 9 (1997)
 *   GRU   r, z = sigmoid of gates 1, 2; n = tanh(gate 3 of x + r gate 3 of h); h = n + z (h - n)
 *         Cho et al., arXiv:1406.1078, with the reset after the product
 *   RNN   h = tanh(gate), or relu; Elman, Cognitive Science 14 (1990)
 *
 * Invariant: `state` is set only while ds_call_rnn's call of the module runs.
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
    ds_rnn_state *state; /* of ds_call_rnn; NULL */
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
        *s = rnn_step(r, cell, ds_select(gx, 0, t), *s);
        if (!s->h) return false;
        y[t] = s->h;
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

/* *state is h_0, c_0 (NULL: zeros) before and h_n, c_n after, in the caller's
 * scope; it is unchanged after a failure. */
ds_tensor *ds_call_rnn(ds_module *m, ds_tensor *x, ds_rnn_state *state)
{
    if (!dsi_live_all("call_rnn", m, x)) return dsi_null_operand("call_rnn");
    if (ds_module_type_of(m)->forward != rnn_forward)
        return dsi_refuse("call_rnn: %s is a %s: expected an LSTM, GRU or RNN", ds_module_name(m),
                          ds_module_type_of(m)->name);
    ds_rnn_state s = state ? *state : (ds_rnn_state){0}, given = s;
    Rnn *r = ds_self(m);
    r->state = state ? &s : NULL;
    ds_tensor *y = ds_call(m, x);
    r->state = NULL;
    if (!state || s.h == given.h) return y; /* h_n is new, if the forward came so far */
    dsi_scope_add(s.h), dsi_scope_add(s.c); /* which kept both, beyond its scope */
    if (!y) return NULL;
    bool one = ds_ndim(x) == 2;
    *state = (ds_rnn_state){one ? ds_squeeze(s.h, 1) : s.h, one ? ds_squeeze(s.c, 1) : s.c};
    return y;
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
}

/* One parameter of cell k, from U(-1/sqrt(H), 1/sqrt(H)): "weight_ih_l0_reverse". */
static ds_tensor *rnn_param(ds_module *m, const Rnn *r, const char *what, int k, ds_dims shape)
{
    char name[48];
    snprintf(name, sizeof name, "%s_l%d%s", what, k / r->directions,
             k % r->directions ? "_reverse" : "");
    double bound = 1 / sqrt((double)r->hidden);
    return ds_init_uniform(ds_module_param(m, name, ds_empty(DS_F32, shape)), -bound, bound);
}

static bool rnn_check(ds_module *m, const Rnn *r)
{
    bool projects = r->o.proj_size != 0;
    if (r->in > 0 && r->hidden > 0 && r->o.num_layers >= 0 && r->o.dropout >= 0 &&
        r->o.dropout <= 1 && (!projects || (r->gates == 4 && r->out > 0 && r->out < r->hidden)) &&
        (!r->o.relu || r->gates == 1))
        return true;
    ds_fail(
        DS_EINVAL,
        "%s %s: input_size = %lld, hidden_size = %lld, num_layers = %d, dropout = %g, "
        "proj_size = %lld%s: expected sizes of at least 1, dropout from 0 to 1, proj_size below "
        "hidden_size and for an LSTM, relu for an RNN",
        ds_module_type_of(m)->name, ds_module_name(m), (long long)r->in, (long long)r->hidden,
        r->o.num_layers, r->o.dropout, (long long)r->o.proj_size, r->o.relu ? ", relu" : "");
    return false;
}

/* Parameters are made, and so drawn, cell by cell in torch's order of its
 * state dict. A refused option leaves a module without cells and the message.
 * Inputs of later layers are all directions' outputs. */
static ds_module *rnn_new(ds_module *parent, const char *name, const char *class_name, Rnn with)
{
    ds_module_type type = {class_name, sizeof(Rnn), .forward = rnn_forward, .free = rnn_free,
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
