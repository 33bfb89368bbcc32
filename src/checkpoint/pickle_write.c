/* checkpoint/pickle_write.c: a nested value as a pickle, in the opcodes that torch.load(weights_only=True)
 * reads: those of protocol 2 that torch.save itself uses.
 *
 * What comes again is named by its number in the memo: classes and functions, texts. A list that is in two
 * places is written twice; tensors stay shared by their storage.
 * Source: Lib/pickletools.py of CPython; torch/serialization.py, torch/_utils.py.
 * SPDX-License-Identifier: MIT */
#include "base/map.h"
#include "pickle.h"

#include <stdio.h>
#include <string.h>

typedef struct Pickler {
    dsi_text *out;
    const char *what;
    const dsi_stored *stored;
    int next_tensor; /* of stored: they come in the order of the walk that planned them */
    dsi_map memo;    /* what was written already -> 1 + its number */
} Pickler;

static void op(Pickler *p, char code) { dsi_text_add_bytes(p->out, &code, 1); }

static void number(Pickler *p, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++) op(p, (char)(x >> 8 * i));
}

/* ---- memo ---------------------------------------------------------------------------------------------- */

/* Whether what is known by that name came already: then it is on the stack now. Else the caller writes it
 * and calls remember. */
static bool recall(Pickler *p, const char *name)
{
    uintptr_t known = (uintptr_t)dsi_map_get(&p->memo, name);
    if (!known) return false;
    bool small = known - 1 < 256;
    op(p, small ? 'h' : 'j'); /* BINGET, LONG_BINGET */
    number(p, known - 1, small ? 1 : 4);
    return true;
}

static void remember(Pickler *p, const char *name)
{
    uintptr_t n = (uintptr_t)p->memo.n;
    dsi_map_set(&p->memo, name, (void *)(n + 1));
    op(p, n < 256 ? 'q' : 'r'); /* BINPUT, LONG_BINPUT */
    number(p, n, n < 256 ? 1 : 4);
}

/* "torch._utils\n_rebuild_tensor_v2\n" */
static void global(Pickler *p, const char *lines)
{
    if (recall(p, lines)) return;
    op(p, 'c'); /* GLOBAL */
    dsi_text_add(p->out, "%s", lines);
    remember(p, lines);
}

/* ---- scalars --------------------------------------------------------------------------------------------- */

static void string(Pickler *p, const char *s, size_t n)
{
    op(p, 'X'); /* BINUNICODE */
    number(p, n, 4);
    dsi_text_add_bytes(p->out, s, n);
}

static void known_string(Pickler *p, const char *s)
{
    if (recall(p, s)) return;
    string(p, s, strlen(s));
    remember(p, s);
}

static void integer(Pickler *p, int64_t i)
{
    if (i >= 0 && i < 256) {
        op(p, 'K'); /* BININT1 */
        number(p, (uint64_t)i, 1);
    } else if (i >= 0 && i < 65536) {
        op(p, 'M'); /* BININT2 */
        number(p, (uint64_t)i, 2);
    } else if (i >= INT32_MIN && i <= INT32_MAX) {
        op(p, 'J'); /* BININT */
        number(p, (uint64_t)i, 4);
    } else {
        op(p, '\x8a'); /* LONG1 */
        op(p, 8);
        number(p, (uint64_t)i, 8);
    }
}

static void real(Pickler *p, double f)
{
    uint64_t bits;
    memcpy(&bits, &f, sizeof bits);
    op(p, 'G'); /* BINFLOAT: highest byte first */
    for (int i = 7; i >= 0; i--) op(p, (char)(bits >> 8 * i));
}

/* Decimal digits as LONG1: a two's complement, lowest byte first, of up to 255 bytes. */
static bool big_integer(Pickler *p, const ds_value *v)
{
    unsigned char bytes[256] = {0};
    bool minus = v->text.s[0] == '-';
    for (const char *digit = v->text.s + minus; *digit; digit++) {
        unsigned carry = (unsigned)(*digit - '0');
        for (int i = 0; i < 256; i++) {
            carry += bytes[i] * 10u;
            bytes[i] = (unsigned char)carry;
            carry >>= 8;
        }
        if (carry || bytes[255] || bytes[254] & 0x80) {
            dsi_fail(DS_EINVAL, "%s: an int of %zu digits: at most 255 bytes are written", p->what,
                     v->text.n);
            return false;
        }
    }
    for (int i = 0, borrow = minus; minus && i < 256; i++) { /* ~x + 1 */
        int byte = (unsigned char)~bytes[i] + borrow;
        bytes[i] = (unsigned char)byte;
        borrow = byte >> 8;
    }
    op(p, '\x8a');
    op(p, '\xff');
    dsi_text_add_bytes(p->out, bytes, 255);
    return true;
}

/* Protocol 2 has no bytes: Python writes them as text of the first 256 characters, to be encoded. */
static void byte_string(Pickler *p, const ds_value *v)
{
    dsi_text t = {0};
    for (size_t i = 0; i < v->text.n; i++) {
        unsigned char c = (unsigned char)v->text.s[i];
        char pair[2] = {(char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))};
        dsi_text_add_bytes(&t, c < 0x80 ? (char *)&c : pair, c < 0x80 ? 1 : 2);
    }
    global(p, "_codecs\nencode\n");
    string(p, t.s, t.n);
    known_string(p, "latin1");
    op(p, '\x86'); /* TUPLE2 */
    op(p, 'R');    /* REDUCE */
    dsi_text_free(&t);
}

/* "torch.float16"; "torch.strided", which torch.load takes from a function only */
static void name(Pickler *p, const ds_value *v)
{
    if (v->class_name && !strcmp(v->class_name, "layout")) {
        global(p, "torch.serialization\n_get_layout\n");
        known_string(p, v->text.s);
        op(p, '\x85'); /* TUPLE1 */
        op(p, 'R');
        return;
    }
    const char *dot = strrchr(v->text.s, '.');
    dsi_text lines = {0};
    dsi_text_add(&lines, "%.*s\n%s\n", dot ? (int)(dot - v->text.s) : 0, v->text.s,
                 dot ? dot + 1 : v->text.s);
    global(p, lines.s);
    dsi_text_free(&lines);
}

/* ---- tensors ----------------------------------------------------------------------------------------------- */

const char *dsi_torch_dtype(ds_dtype dtype)
{
    static const char *const names[DS_DTYPES] = {
        [DS_F32] = "torch.float32",   [DS_F64] = "torch.float64", [DS_F16] = "torch.float16",
        [DS_BF16] = "torch.bfloat16", [DS_I64] = "torch.int64",   [DS_I32] = "torch.int32",
        [DS_I16] = "torch.int16",     [DS_I8] = "torch.int8",     [DS_U8] = "torch.uint8",
        [DS_BOOL] = "torch.bool"};
    return names[dtype];
}

bool dsi_torch_dtype_named(const char *name, ds_dtype *out)
{
    for (int i = 0; i < DS_DTYPES; i++) {
        *out = (ds_dtype)i;
        if (!strcmp(name, dsi_torch_dtype(*out))) return true;
    }
    return false;
}

const char *dsi_torch_storage(ds_dtype dtype)
{
    static const char *const names[DS_DTYPES] = {
        [DS_F32] = "FloatStorage",     [DS_F64] = "DoubleStorage", [DS_F16] = "HalfStorage",
        [DS_BF16] = "BFloat16Storage", [DS_I64] = "LongStorage",   [DS_I32] = "IntStorage",
        [DS_I16] = "ShortStorage",     [DS_I8] = "CharStorage",    [DS_U8] = "ByteStorage",
        [DS_BOOL] = "BoolStorage"};
    return names[dtype];
}

static void integers(Pickler *p, const int64_t *at, int n)
{
    static const char code[] = {')', '\x85', '\x86', '\x87'}; /* EMPTY_TUPLE, TUPLE1, 2, 3 */
    if (n > 3) op(p, '(');                                    /* MARK */
    for (int i = 0; i < n; i++) integer(p, at[i]);
    op(p, n > 3 ? 't' : code[n]); /* TUPLE */
}

/* ("storage", FloatStorage, "0", "cpu", numel), which torch.load gives to its persistent_load. */
static void storage(Pickler *p, int i)
{
    const dsi_stored_storage *s = &p->stored->storages.at[i];
    char text[64];
    op(p, '(');
    known_string(p, "storage");
    snprintf(text, sizeof text, "torch\n%s\n", dsi_torch_storage(s->dtype));
    global(p, text);
    snprintf(text, sizeof text, "%d", i);
    string(p, text, strlen(text));
    known_string(p, "cpu");
    integer(p, s->numel);
    op(p, 't');
    op(p, 'Q'); /* BINPERSID */
}

static void no_hooks(Pickler *p)
{
    global(p, "collections\nOrderedDict\n");
    op(p, ')');
    op(p, 'R');
}

static void tensor(Pickler *p, const ds_value *v)
{
    const dsi_stored_tensor *x = &p->stored->tensors.at[p->next_tensor++];
    DSI_ASSERT(x->value == v);
    bool parameter = v->class_name && !strcmp(v->class_name, "Parameter");
    char flag = v->requires_grad ? '\x88' : '\x89'; /* NEWTRUE, NEWFALSE */
    if (parameter) {
        global(p, "torch._utils\n_rebuild_parameter\n");
        op(p, '(');
    }
    global(p, "torch._utils\n_rebuild_tensor_v2\n");
    op(p, '(');
    storage(p, x->storage);
    integer(p, x->offset);
    integers(p, x->shape.d, x->shape.n);
    integers(p, x->stride, x->shape.n);
    op(p, parameter ? '\x89' : flag);
    no_hooks(p);
    op(p, 't');
    op(p, 'R');
    if (!parameter) return;
    op(p, flag);
    no_hooks(p);
    op(p, 't');
    op(p, 'R');
}

/* ---- lists --------------------------------------------------------------------------------------------------- */

static bool value(Pickler *p, const ds_value *v);

static bool items(Pickler *p, const ds_value *v)
{
    for (int i = 0; i < v->items.n; i++)
        if (!value(p, v->items.at[i])) return false;
    return true;
}

static bool list(Pickler *p, const ds_value *v)
{
    op(p, ']'); /* EMPTY_LIST */
    if (!v->items.n) return true;
    op(p, '(');
    if (!items(p, v)) return false;
    op(p, 'e'); /* APPENDS */
    return true;
}

static bool tuple(Pickler *p, const ds_value *v)
{
    bool size = v->class_name && !strcmp(v->class_name, "Size");
    bool complex = v->class_name && !strncmp(v->class_name, "complex", 7) && v->items.n == 2;
    if (size) {
        global(p, "torch\nSize\n");
        op(p, '(');
    }
    if (complex) global(p, "__builtin__\ncomplex\n");
    if (v->items.n) op(p, '(');
    if (!items(p, v)) return false;
    op(p, v->items.n ? 't' : ')');
    if (size) op(p, 't');
    if (size || complex) op(p, 'R');
    return true;
}

static bool set(Pickler *p, const ds_value *v)
{
    global(p, "__builtin__\nset\n");
    op(p, '(');
    if (!list(p, v)) return false;
    op(p, 't');
    op(p, 'R');
    return true;
}

static bool dict(Pickler *p, const ds_value *v)
{
    if (v->class_name && !strcmp(v->class_name, "OrderedDict"))
        no_hooks(p); /* an empty OrderedDict */
    else
        op(p, '}'); /* EMPTY_DICT */
    if (!v->dict->n) return true;
    op(p, '(');
    for (int i = 0; i < v->dict->n; i++)
        if (!value(p, v->dict->at[i].key) || !value(p, v->dict->at[i].value)) return false;
    op(p, 'u'); /* SETITEMS */
    return true;
}

static bool text(Pickler *p, const ds_value *v)
{
    if (v->kind == DS_VALUE_BIG_INT) return big_integer(p, v);
    if (v->kind == DS_VALUE_BYTES)
        byte_string(p, v);
    else
        string(p, v->text.s, v->text.n);
    return true;
}

/* One that several lists hold is written once. */
static bool shared_text(Pickler *p, const ds_value *v)
{
    char address[32];
    snprintf(address, sizeof address, "%p", (const void *)v);
    if (recall(p, address)) return true;
    if (!text(p, v)) return false;
    remember(p, address);
    return true;
}

static bool value(Pickler *p, const ds_value *v)
{
    switch (v->kind) {
    case DS_VALUE_NONE:
        return op(p, 'N'), true;
    case DS_VALUE_BOOL:
        return op(p, v->b ? '\x88' : '\x89'), true;
    case DS_VALUE_INT:
        return integer(p, v->i), true;
    case DS_VALUE_FLOAT:
        return real(p, v->f), true;
    case DS_VALUE_STRING:
    case DS_VALUE_BYTES:
    case DS_VALUE_BIG_INT:
        return v->refs > 1 ? shared_text(p, v) : text(p, v);
    case DS_VALUE_NAME:
        return name(p, v), true;
    case DS_VALUE_TENSOR:
        return tensor(p, v), true;
    case DS_VALUE_LIST:
        return list(p, v);
    case DS_VALUE_TUPLE:
        return tuple(p, v);
    case DS_VALUE_SET:
        return set(p, v);
    default:
        return dict(p, v);
    }
}

bool dsi_pickle_write(dsi_text *out, const char *what, const ds_value *v, const dsi_stored *stored)
{
    Pickler p = {.out = out, .what = what, .stored = stored};
    dsi_text_add_bytes(out, "\x80\2", 2); /* PROTO 2 */
    bool ok = value(&p, v);
    op(&p, '.'); /* STOP */
    dsi_map_free(&p.memo);
    return ok;
}
