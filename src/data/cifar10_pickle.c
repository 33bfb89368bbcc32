/* data/cifar10_pickle.c: the python layout of CIFAR-10, read without Python.
 *
 * A pickle is a program for a stack machine that may call any function of Python. A batch needs a
 * small part of it: a dict of strings, lists and one numpy array,
 *
 *     {"labels": [6, 9, ...], "data": uint8 [10000,3072], "filenames": [...], "batch_label": "..."}
 *
 * so this machine has the opcodes for these and knows three functions by name, those that numpy writes for
 * an array. It calls none of them: "data" becomes the place in the file where the array's bytes lie.
 * Whatever else turns up is refused with its name and place. Opcodes as in Python's pickletools.py,
 * protocols 2 (the official files, by Python 2) and 3.
 * SPDX-License-Identifier: MIT */
#include "cifar10.h"

#include "base/error.h"
#include "base/list.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_VALUES 65536 /* on the stack, in lists, in the memo: a batch has 30,000 */
#define MAX_LISTS  16
#define MAX_NAME   64

#define PROTO  0x80 /* the first opcode */
#define STOP   '.'  /* the last */
#define MARKED (-1) /* as many values as lie above the mark */

typedef enum kind {
    NOTHING, /* None, True, False, an empty place of the memo */
    MARK,
    INT,         /* a */
    STRING,      /* b bytes at a in the file */
    TUPLE,       /* b values from vm.items[a] on */
    LIST,        /* number a of vm.list */
    DICT,        /* the only one */
    RECONSTRUCT, /* numpy.core.multiarray._reconstruct */
    NDARRAY,     /* numpy.ndarray */
    DTYPE,       /* numpy.dtype */
    UINT8,       /* dtype('u1') */
    ARRAY        /* the only one: vm.array */
} kind;

typedef struct value {
    kind kind;
    int64_t a, b;
} value;

typedef struct list {
    DSI_LIST(value)
} list;

typedef struct machine {
    const dsi_cifar10_file *f;
    int64_t size, at;  /* of the file, of the next byte */
    int64_t window_at; /* what of the file is in window */
    ssize_t window_n;
    list stack, items, memo;
    struct {
        DSI_LIST(list)
    } lists;
    int64_t values; /* in all of them */
    bool has_dict, has_array;
    value data, labels;              /* of the dict */
    int64_t rows, columns, bytes_at; /* of the array */
    uint8_t window[16384];
} machine;

/* ---- reading ------------------------------------------------------------------------------------------ */

static ds_status refuse(const machine *m, const char *what)
{
    return dsi_fail(DS_EFORMAT,
                    "cifar10: %s: at byte %lld: %s; expected a pickled batch of CIFAR-10",
                    m->f->path, (long long)m->at, what);
}

static ds_status read_bytes(machine *m, void *to, int64_t n)
{
    for (uint8_t *out = to; n > 0;) {
        int64_t in = m->at - m->window_at, here = m->window_n - in;
        if (in < 0 || here <= 0) {
            m->window_at = m->at;
            m->window_n = pread(m->f->fd, m->window, sizeof m->window, (off_t)m->at);
            if (m->window_n < 0) {
                m->window_n = 0;
                return dsi_fail(DS_EIO, "cifar10: %s: %s", m->f->path, strerror(errno));
            }
            if (!m->window_n) return refuse(m, "the file ends too early");
            continue;
        }
        if (here > n) here = n;
        memcpy(out, m->window + in, (size_t)here);
        out += here, n -= here, m->at += here;
    }
    return DS_OK;
}

/* A little-endian number of n bytes, with sign if `sign`. */
static ds_status read_int(machine *m, int n, bool sign, int64_t *x)
{
    uint8_t b[8];
    uint64_t u = 0;
    ds_status status = read_bytes(m, b, n);
    if (status != DS_OK) return status;
    for (int k = 0; k < n; k++) u |= (uint64_t)b[k] << 8 * k;
    if (sign && n && n < 8 && b[n - 1] & 0x80) u |= UINT64_MAX << 8 * n;
    *x = (int64_t)u;
    return DS_OK;
}

/* A line of an opcode's argument; "" and a failure if it is longer than a name. */
static ds_status read_line(machine *m, char name[MAX_NAME])
{
    for (int n = 0; n < MAX_NAME; n++) {
        ds_status status = read_bytes(m, name + n, 1);
        if (status != DS_OK) return status;
        if (name[n] == '\n') {
            name[n] = 0;
            return DS_OK;
        }
    }
    name[0] = 0;
    return refuse(m, "a name is too long");
}

static bool string_is(const machine *m, value v, const char *want)
{
    char text[MAX_NAME];
    return v.kind == STRING && v.b == (int64_t)strlen(want) &&
           pread(m->f->fd, text, (size_t)v.b, (off_t)v.a) == v.b &&
           !memcmp(text, want, (size_t)v.b);
}

/* ---- the stack -------------------------------------------------------------------------------------- */

static ds_status add(machine *m, list *l, value v)
{
    if (++m->values > MAX_VALUES) return refuse(m, "too many values");
    dsi_list_add(l, v);
    return DS_OK;
}

static ds_status push(machine *m, kind k, int64_t a, int64_t b)
{
    return add(m, &m->stack, (value){k, a, b});
}

/* The n values on top, fewer -> NULL with the message. They stay where they are until the next push. */
static const value *pop(machine *m, int n)
{
    if (m->stack.n < n) {
        refuse(m, "the stack is empty");
        return NULL;
    }
    m->stack.n -= n, m->values -= n;
    return m->stack.at + m->stack.n;
}

/* The *n values on top; of MARKED those above the topmost mark, which goes too, and *n is their number. */
static const value *pop_several(machine *m, int *n)
{
    if (*n != MARKED) return pop(m, *n);
    for (int k = m->stack.n; k > 0; k--)
        if (m->stack.at[k - 1].kind == MARK) {
            *n = m->stack.n - k;
            pop(m, *n + 1);
            return m->stack.at + k;
        }
    refuse(m, "a mark is missing");
    return NULL;
}

/* ---- opcodes: n is that of their row in the table below --------------------------------------------------- */

static ds_status push_mark(machine *m, int n) { return push(m, MARK, n, 0); }
static ds_status push_nothing(machine *m, int n) { return push(m, NOTHING, n, 0); }

static ds_status push_string(machine *m, int length_bytes)
{
    int64_t n;
    ds_status status = read_int(m, length_bytes, false, &n);
    if (status != DS_OK) return status;
    if (n > m->size - m->at) return refuse(m, "a string goes on after the end of the file");
    m->at += n;
    return push(m, STRING, m->at - n, n);
}

static ds_status push_int(machine *m, int bytes)
{
    int64_t x;
    ds_status status = read_int(m, bytes, bytes > 2, &x); /* the short ones have no sign */
    return status == DS_OK ? push(m, INT, x, 0) : status;
}

/* Python 2's long: a byte for the length, then that many. */
static ds_status push_long(machine *m, int length_bytes)
{
    int64_t n, x;
    ds_status status = read_int(m, length_bytes, false, &n);
    if (status == DS_OK && n > 8) return refuse(m, "a number of more than 8 bytes");
    if (status == DS_OK) status = read_int(m, (int)n, true, &x);
    return status == DS_OK ? push(m, INT, x, 0) : status;
}

static ds_status push_tuple(machine *m, int n)
{
    const value *v = pop_several(m, &n);
    int at = m->items.n;
    ds_status status = v ? DS_OK : DS_EFORMAT;
    for (int k = 0; k < n && status == DS_OK; k++) status = add(m, &m->items, v[k]);
    return status == DS_OK ? push(m, TUPLE, at, n) : status;
}

static ds_status push_list(machine *m, int n)
{
    if (m->lists.n >= MAX_LISTS) return refuse(m, "too many lists");
    dsi_list_add(&m->lists, (list){0});
    return push(m, LIST, m->lists.n - 1, n);
}

static ds_status push_dict(machine *m, int n)
{
    if (m->has_dict) return refuse(m, "a second dict");
    m->has_dict = true;
    return push(m, DICT, n, 0);
}

static ds_status append(machine *m, int n)
{
    const value *v = pop_several(m, &n);
    ds_status status = v ? DS_OK : DS_EFORMAT;
    if (v && (!m->stack.n || m->stack.at[m->stack.n - 1].kind != LIST))
        return refuse(m, "values are added to what is no list");
    for (int k = 0; k < n && status == DS_OK; k++)
        status = add(m, &m->lists.at[m->stack.at[m->stack.n - 1].a], v[k]);
    return status;
}

static ds_status set_items(machine *m, int n)
{
    const value *v = pop_several(m, &n);
    if (!v) return DS_EFORMAT;
    if (n % 2 || !m->stack.n || m->stack.at[m->stack.n - 1].kind != DICT)
        return refuse(m, "values are set in what is no dict");
    for (int k = 0; k < n; k += 2) {
        if (string_is(m, v[k], "data")) m->data = v[k + 1];
        if (string_is(m, v[k], "labels")) m->labels = v[k + 1];
    }
    return DS_OK;
}

static ds_status memo_put(machine *m, int bytes)
{
    int64_t k;
    ds_status status = read_int(m, bytes, false, &k);
    if (status != DS_OK) return status;
    if (!m->stack.n || k >= MAX_VALUES) return refuse(m, "a memo that cannot be");
    while (m->memo.n <= k && status == DS_OK) status = add(m, &m->memo, (value){0});
    if (status == DS_OK) m->memo.at[k] = m->stack.at[m->stack.n - 1];
    return status;
}

static ds_status memo_get(machine *m, int bytes)
{
    int64_t k;
    ds_status status = read_int(m, bytes, false, &k);
    if (status != DS_OK) return status;
    if (k >= m->memo.n || m->memo.at[k].kind == NOTHING)
        return refuse(m, "a memo that was never put");
    value v = m->memo.at[k];
    return push(m, v.kind, v.a, v.b);
}

static ds_status push_global(machine *m, int n)
{
    static const struct {
        const char *module, *name;
        kind kind;
    } known[] = {{"numpy.core.multiarray", "_reconstruct", RECONSTRUCT},
                 {"numpy._core.multiarray", "_reconstruct", RECONSTRUCT},
                 {"numpy", "ndarray", NDARRAY},
                 {"numpy", "dtype", DTYPE}};
    char module[MAX_NAME], name[MAX_NAME];
    ds_status status = read_line(m, module);
    if (status == DS_OK) status = read_line(m, name);
    if (status != DS_OK) return status;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (!strcmp(module, known[k].module) && !strcmp(name, known[k].name))
            return push(m, known[k].kind, n, 0);
    return dsi_fail(DS_EFORMAT,
                    "cifar10: %s: at byte %lld: the pickle wants Python's %s.%s; a batch of "
                    "CIFAR-10 needs only "
                    "numpy's array, and nothing was run",
                    m->f->path, (long long)m->at, module, name);
}

/* _reconstruct(ndarray, (0,), "b") -> an array to be filled; dtype("u1", ..) -> uint8. */
static ds_status reduce(machine *m, int n)
{
    const value *v = pop(m, n);
    if (!v) return DS_EFORMAT;
    if (v[1].kind != TUPLE || v[1].b < 1) return refuse(m, "a call without arguments");
    const value *arg = m->items.at + v[1].a;
    if (v[0].kind == RECONSTRUCT && arg[0].kind == NDARRAY && !m->has_array) {
        m->has_array = true;
        return push(m, ARRAY, 0, 0);
    }
    if (v[0].kind != DTYPE) return refuse(m, "a call that makes no array");
    return string_is(m, arg[0], "u1") ? push(m, UINT8, 0, 0)
                                      : refuse(m, "an array that is not of uint8");
}

/* array: (version, (rows, columns), dtype, is_fortran, bytes); dtype: its state, nothing new for uint8. */
static ds_status build(machine *m, int n)
{
    const value *v = pop(m, n);
    if (!v) return DS_EFORMAT;
    const value object = v[0];
    bool ok = v[1].kind == TUPLE && (object.kind == UINT8 || object.kind == ARRAY);
    if (ok && object.kind == ARRAY) {
        const value *state = m->items.at + v[1].a;
        ok = v[1].b == 5 && state[1].kind == TUPLE && state[1].b == 2 && state[2].kind == UINT8 &&
             state[3].kind == NOTHING && !state[3].a && state[4].kind == STRING;
        const value *shape = ok ? m->items.at + state[1].a : NULL;
        ok = ok && shape[0].kind == INT && shape[1].kind == INT;
        if (ok) m->rows = shape[0].a, m->columns = shape[1].a, m->bytes_at = state[4].a;
        ok = ok && m->columns == DSI_CIFAR10_PIXELS && m->rows > 0 &&
             m->rows <= DSI_CIFAR10_BATCH && state[4].b == m->rows * m->columns;
    }
    return ok ? push(m, object.kind, 0, 0)
              : refuse(m, "an array that is not uint8 [n,3072], row by row");
}

/* ---- the machine ------------------------------------------------------------------------------------------ */

static ds_status check_protocol(machine *m, int bytes)
{
    int64_t version;
    ds_status status = read_int(m, bytes, false, &version);
    if (status != DS_OK || version == 2 || version == 3) return status;
    return refuse(m, "a pickle protocol other than 2 and 3");
}

/* With their names in pickletools.py. */
static const struct opcode {
    int code;
    int n; /* bytes of a number, or values of the stack */
    ds_status (*run)(machine *m, int n);
} opcodes[] = {
    {PROTO, 1, check_protocol},
    {'(', 0, push_mark},       /* MARK */
    {'N', 0, push_nothing},    /* NONE */
    {0x88, 1, push_nothing},   /* NEWTRUE */
    {0x89, 0, push_nothing},   /* NEWFALSE */
    {'K', 1, push_int},        /* BININT1 */
    {'M', 2, push_int},        /* BININT2 */
    {'J', 4, push_int},        /* BININT */
    {0x8a, 1, push_long},      /* LONG1 */
    {'U', 1, push_string},     /* SHORT_BINSTRING, of Python 2 */
    {'T', 4, push_string},     /* BINSTRING, of Python 2 */
    {'C', 1, push_string},     /* SHORT_BINBYTES */
    {'B', 4, push_string},     /* BINBYTES */
    {'X', 4, push_string},     /* BINUNICODE */
    {']', 0, push_list},       /* EMPTY_LIST */
    {'a', 1, append},          /* APPEND */
    {'e', MARKED, append},     /* APPENDS */
    {'}', 0, push_dict},       /* EMPTY_DICT */
    {'s', 2, set_items},       /* SETITEM */
    {'u', MARKED, set_items},  /* SETITEMS */
    {')', 0, push_tuple},      /* EMPTY_TUPLE */
    {0x85, 1, push_tuple},     /* TUPLE1 */
    {0x86, 2, push_tuple},     /* TUPLE2 */
    {0x87, 3, push_tuple},     /* TUPLE3 */
    {'t', MARKED, push_tuple}, /* TUPLE */
    {'q', 1, memo_put},        /* BINPUT */
    {'r', 4, memo_put},        /* LONG_BINPUT */
    {'h', 1, memo_get},        /* BINGET */
    {'j', 4, memo_get},        /* LONG_BINGET */
    {'c', 0, push_global},     /* GLOBAL */
    {'R', 2, reduce},          /* REDUCE */
    {'b', 2, build},           /* BUILD */
};

static ds_status step(machine *m, uint8_t code)
{
    char what[64];
    for (size_t k = 0; k < sizeof opcodes / sizeof *opcodes; k++)
        if (opcodes[k].code == code) return opcodes[k].run(m, opcodes[k].n);
    snprintf(what, sizeof what, "the pickle opcode 0x%02x", code);
    return refuse(m, what);
}

static ds_status run(machine *m)
{
    uint8_t op;
    ds_status status = read_bytes(m, &op, 1);
    if (status == DS_OK && op != PROTO) return refuse(m, "this is no pickle of protocol 2 or 3");
    while (status == DS_OK && op != STOP) {
        status = step(m, op);
        if (status == DS_OK) status = read_bytes(m, &op, 1);
    }
    if (status == DS_OK && (m->stack.n != 1 || m->stack.at[0].kind != DICT))
        status = refuse(m, "the pickle is no dict");
    if (status == DS_OK && m->at != m->size)
        status = refuse(m, "the file goes on after the pickle's end");
    return status;
}

/* What the dict holds -> f. */
static ds_status take(const machine *m, dsi_cifar10_file *f)
{
    if (m->data.kind != ARRAY || m->rows != f->n)
        return dsi_fail(DS_EFORMAT,
                        "cifar10: %s: \"data\" has %lld rows, expected uint8 [%lld,3072]", f->path,
                        (long long)m->rows, (long long)f->n);
    const list *l = m->labels.kind == LIST ? &m->lists.at[m->labels.a] : NULL;
    if (!l || l->n != f->n)
        return dsi_fail(DS_EFORMAT,
                        "cifar10: %s: \"labels\" has %d values, expected a list of %lld", f->path,
                        l ? l->n : 0, (long long)f->n);
    for (int64_t i = 0; i < f->n; i++) {
        if (l->at[i].kind != INT || l->at[i].a < 0 || l->at[i].a > 9)
            return dsi_fail(DS_EFORMAT, "cifar10: %s: record %lld has label %lld, expected 0 to 9",
                            f->path, (long long)i, (long long)l->at[i].a);
        f->labels[i] = (uint8_t)l->at[i].a;
    }
    f->pixels_at = m->bytes_at;
    f->stride = DSI_CIFAR10_PIXELS;
    return DS_OK;
}

ds_status dsi_cifar10_parse(dsi_cifar10_file *f)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return dsi_fail(DS_EIO, "cifar10: %s: %s", f->path, strerror(errno));

    machine *m = dsi_alloc(sizeof *m);
    m->f = f;
    m->size = st.st_size;
    dsi_list_add(&m->stack, (value){0}); /* so that their addresses are never NULL */
    dsi_list_add(&m->items, (value){0});
    m->stack.n = 0;
    ds_status status = run(m);
    if (status == DS_OK) status = take(m, f);
    for (int k = 0; k < m->lists.n; k++) dsi_list_free(&m->lists.at[k]);
    dsi_list_free(&m->lists);
    dsi_list_free(&m->stack);
    dsi_list_free(&m->items);
    dsi_list_free(&m->memo);
    dsi_free(m);
    return status;
}
