/* checkpoint/pickle_write.c: a nested value as a pickle, in the opcodes that
 * torch.load(weights_only=True) reads: those of protocol 2 that torch.save
 * itself uses.
 *
 * Classes, functions and strings that occur again are written as their number
 * in the memo. A list that is in two places is written twice. Tensors stay
 * shared, as they are views of storages.
 *
 * Invariants: next_tensor counts the tensors that were written; the plan lists
 * them in the order in which this file visits the value. memo maps a name, or
 * the address of a shared string, to 1 + its number.
 * Source: Lib/pickletools.py of CPython; torch/serialization.py, torch/_utils.py.
 * SPDX-License-Identifier: MIT */
#include "pickle.h"

#include <stdio.h>
#include <string.h>

typedef struct Pickler {
    dsi_text *out;
    const char *what;
    const dsi_save_plan *stored;
    int next_tensor; /* of stored: they come in the order of the walk that planned them */
    dsi_map memo;    /* what was written already -> 1 + its number */
} Pickler;

static void write_opcode(Pickler *p, char code) { dsi_text_add_bytes(p->out, &code, 1); }

/* The lowest `bytes` bytes of x, little-endian. */
static void write_number(Pickler *p, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++) write_opcode(p, (char)(x >> 8 * i));
}

/* ---- memo ---------------------------------------------------------------------------------------------- */

/* If what is known by that name was written before, writes the opcode that
 * pushes it again and returns true. Otherwise the caller writes it and calls
 * memo_remember. */
static bool memo_recall(Pickler *p, const char *name)
{
    uintptr_t known = (uintptr_t)dsi_map_get(&p->memo, name);
    if (!known) return false;
    bool small = known - 1 < 256;
    write_opcode(p, small ? 'h' : 'j'); /* BINGET, LONG_BINGET */
    write_number(p, known - 1, small ? 1 : 4);
    return true;
}

/* Gives the value that was written last the next number of the memo. */
static void memo_remember(Pickler *p, const char *name)
{
    uintptr_t n = (uintptr_t)p->memo.n;
    dsi_map_set(&p->memo, name, (void *)(n + 1));
    write_opcode(p, n < 256 ? 'q' : 'r'); /* BINPUT, LONG_BINPUT */
    write_number(p, n, n < 256 ? 1 : 4);
}

/* "torch._utils\n_rebuild_tensor_v2\n" */
static void write_global(Pickler *p, const char *lines)
{
    if (memo_recall(p, lines)) return;
    write_opcode(p, 'c'); /* GLOBAL */
    dsi_text_add(p->out, "%s", lines);
    memo_remember(p, lines);
}

/* ---- scalars --------------------------------------------------------------------------------------------- */

/* BINUNICODE: four bytes of length, and UTF-8. */
static void write_string(Pickler *p, const char *s, size_t n)
{
    write_opcode(p, 'X'); /* BINUNICODE */
    write_number(p, n, 4);
    dsi_text_add_bytes(p->out, s, n);
}

/* A string that occurs often: later ones are the number of the first. */
static void write_known_string(Pickler *p, const char *s)
{
    if (memo_recall(p, s)) return;
    write_string(p, s, strlen(s));
    memo_remember(p, s);
}

/* The shortest opcode that holds i. */
static void write_int(Pickler *p, int64_t i)
{
    if (i >= 0 && i < 256) {
        write_opcode(p, 'K'); /* BININT1 */
        write_number(p, (uint64_t)i, 1);
    } else if (i >= 0 && i < 65536) {
        write_opcode(p, 'M'); /* BININT2 */
        write_number(p, (uint64_t)i, 2);
    } else if (i >= INT32_MIN && i <= INT32_MAX) {
        write_opcode(p, 'J'); /* BININT */
        write_number(p, (uint64_t)i, 4);
    } else {
        write_opcode(p, '\x8a'); /* LONG1 */
        write_opcode(p, 8);
        write_number(p, (uint64_t)i, 8);
    }
}

static void write_float(Pickler *p, double f)
{
    uint64_t bits;
    memcpy(&bits, &f, sizeof bits);
    write_opcode(p, 'G'); /* BINFLOAT: highest byte first */
    for (int i = 7; i >= 0; i--) write_opcode(p, (char)(bits >> 8 * i));
}

/* Writes decimal digits as LONG1: a two's complement of 255 bytes, lowest byte
 * first. False with the message if they need more. */
static bool write_big_int(Pickler *p, const ds_value *v)
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
        if (carry || bytes[255] || bytes[254] & 0x80)
            return dsi_invalid("%s: an int of %zu digits: at most 255 bytes are written", p->what,
                               v->text.n);
    }
    for (int i = 0, borrow = minus; minus && i < 256; i++) { /* ~x + 1 */
        int byte = (unsigned char)~bytes[i] + borrow;
        bytes[i] = (unsigned char)byte;
        borrow = byte >> 8;
    }
    write_opcode(p, '\x8a');
    write_opcode(p, '\xff');
    dsi_text_add_bytes(p->out, bytes, 255);
    return true;
}

/* Protocol 2 has no opcode for bytes. Python writes a call,
 * _codecs.encode(text, "latin1"), whose text has the character U+00XX for each
 * byte XX. */
static void write_bytes(Pickler *p, const ds_value *v)
{
    dsi_text t = {0};
    for (size_t i = 0; i < v->text.n; i++) {
        unsigned char c = (unsigned char)v->text.s[i];
        char pair[2] = {(char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))};
        dsi_text_add_bytes(&t, c < 0x80 ? (char *)&c : pair, c < 0x80 ? 1 : 2);
    }
    write_global(p, "_codecs\nencode\n");
    write_string(p, t.s, t.n);
    write_known_string(p, "latin1");
    write_opcode(p, '\x86'); /* TUPLE2 */
    write_opcode(p, 'R');    /* REDUCE */
    dsi_text_free(&t);
}

/* A name, "torch.float16", as a global. A layout, "torch.strided", is a call:
 * torch.load allows no global of that name. */
static void write_class_name(Pickler *p, const ds_value *v)
{
    if (v->class_name && !strcmp(v->class_name, "layout")) {
        write_global(p, "torch.serialization\n_get_layout\n");
        write_known_string(p, v->text.s);
        write_opcode(p, '\x85'); /* TUPLE1 */
        write_opcode(p, 'R');
        return;
    }
    const char *dot = strrchr(v->text.s, '.');
    dsi_text lines = dsi_text_of("%.*s\n%s\n", dot ? (int)(dot - v->text.s) : 0, v->text.s,
                                 dot ? dot + 1 : v->text.s);
    write_global(p, lines.s);
    dsi_text_free(&lines);
}

/* ---- tensors ----------------------------------------------------------------------------------------------- */

/* Indexed by ds_dtype. */
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

/* Classes of torch whose names a persistent id contains. */
const char *dsi_torch_storage(ds_dtype dtype)
{
    static const char *const names[DS_DTYPES] = {
        [DS_F32] = "FloatStorage",     [DS_F64] = "DoubleStorage", [DS_F16] = "HalfStorage",
        [DS_BF16] = "BFloat16Storage", [DS_I64] = "LongStorage",   [DS_I32] = "IntStorage",
        [DS_I16] = "ShortStorage",     [DS_I8] = "CharStorage",    [DS_U8] = "ByteStorage",
        [DS_BOOL] = "BoolStorage"};
    return names[dtype];
}

/* Sizes or strides as a tuple; up to 3 items have opcodes without a mark. */
static void write_int_tuple(Pickler *p, const int64_t *at, int n)
{
    static const char code[] = {')', '\x85', '\x86', '\x87'}; /* EMPTY_TUPLE, TUPLE1, 2, 3 */
    if (n > 3) write_opcode(p, '(');                          /* MARK */
    for (int i = 0; i < n; i++) write_int(p, at[i]);
    write_opcode(p, n > 3 ? 't' : code[n]); /* TUPLE */
}

/* Writes storage i as the persistent id ("storage", FloatStorage, "0", "cpu",
 * numel), from which torch.load finds the entry data/0 of the archive. */
static void write_storage(Pickler *p, int i)
{
    const dsi_planned_storage *s = &p->stored->storages.at[i];
    char text[64];
    write_opcode(p, '(');
    write_known_string(p, "storage");
    snprintf(text, sizeof text, "torch\n%s\n", dsi_torch_storage(s->dtype));
    write_global(p, text);
    snprintf(text, sizeof text, "%d", i);
    write_string(p, text, strlen(text));
    write_known_string(p, "cpu");
    write_int(p, s->numel);
    write_opcode(p, 't');
    write_opcode(p, 'Q'); /* BINPERSID */
}

/* An empty OrderedDict: the argument backward_hooks of PyTorch's functions. */
static void write_no_hooks(Pickler *p)
{
    write_global(p, "collections\nOrderedDict\n");
    write_opcode(p, ')');
    write_opcode(p, 'R');
}

/* _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks); a
 * parameter is _rebuild_parameter(tensor, requires_grad, hooks) of that. */
static void write_tensor(Pickler *p, const ds_value *v)
{
    const dsi_planned_tensor *x = &p->stored->tensors.at[p->next_tensor++];
    DSI_ASSERT(x->value == v);
    bool parameter = v->class_name && !strcmp(v->class_name, "Parameter");
    char flag = v->requires_grad ? '\x88' : '\x89'; /* NEWTRUE, NEWFALSE */
    if (parameter) {
        write_global(p, "torch._utils\n_rebuild_parameter\n");
        write_opcode(p, '(');
    }
    write_global(p, "torch._utils\n_rebuild_tensor_v2\n");
    write_opcode(p, '(');
    write_storage(p, x->storage);
    write_int(p, x->offset);
    write_int_tuple(p, x->shape.d, x->shape.n);
    write_int_tuple(p, x->stride, x->shape.n);
    write_opcode(p, parameter ? '\x89' : flag);
    write_no_hooks(p);
    write_opcode(p, 't');
    write_opcode(p, 'R');
    if (!parameter) return;
    write_opcode(p, flag);
    write_no_hooks(p);
    write_opcode(p, 't');
    write_opcode(p, 'R');
}

/* ---- lists --------------------------------------------------------------------------------------------------- */

static bool write_value(Pickler *p, const ds_value *v);

/* Writes the items one after the other; false with the message. */
static bool write_items(Pickler *p, const ds_value *v)
{
    for (int i = 0; i < v->items.n; i++)
        if (!write_value(p, v->items.at[i])) return false;
    return true;
}

/* [ and, unless it is empty, a mark, the items, and APPENDS for all of them. */
static bool write_list(Pickler *p, const ds_value *v)
{
    write_opcode(p, ']'); /* EMPTY_LIST */
    if (!v->items.n) return true;
    write_opcode(p, '(');
    if (!write_items(p, v)) return false;
    write_opcode(p, 'e'); /* APPENDS */
    return true;
}

/* Size and complex numbers are calls of their classes with the items. */
static bool write_tuple(Pickler *p, const ds_value *v)
{
    bool size = v->class_name && !strcmp(v->class_name, "Size");
    bool complex = v->class_name && !strncmp(v->class_name, "complex", 7) && v->items.n == 2;
    if (size) {
        write_global(p, "torch\nSize\n");
        write_opcode(p, '(');
    }
    if (complex) write_global(p, "__builtin__\ncomplex\n");
    if (v->items.n) write_opcode(p, '(');
    if (!write_items(p, v)) return false;
    write_opcode(p, v->items.n ? 't' : ')');
    if (size) write_opcode(p, 't');
    if (size || complex) write_opcode(p, 'R');
    return true;
}

/* Protocol 2 has no opcode for sets: set([items]). */
static bool write_set(Pickler *p, const ds_value *v)
{
    write_global(p, "__builtin__\nset\n");
    write_opcode(p, '(');
    if (!write_list(p, v)) return false;
    write_opcode(p, 't');
    write_opcode(p, 'R');
    return true;
}

/* A dict or OrderedDict; other classes of dicts become plain dicts. */
static bool write_dict(Pickler *p, const ds_value *v)
{
    if (v->class_name && !strcmp(v->class_name, "OrderedDict"))
        write_no_hooks(p); /* an empty OrderedDict */
    else
        write_opcode(p, '}'); /* EMPTY_DICT */
    if (!v->dict->n) return true;
    write_opcode(p, '(');
    for (int i = 0; i < v->dict->n; i++)
        if (!write_value(p, v->dict->at[i].key) || !write_value(p, v->dict->at[i].value))
            return false;
    write_opcode(p, 'u'); /* SETITEMS */
    return true;
}

/* A string, bytes or a big int; false if the int is too long. */
static bool write_text(Pickler *p, const ds_value *v)
{
    if (v->kind == DS_VALUE_BIG_INT) return write_big_int(p, v);
    if (v->kind == DS_VALUE_BYTES)
        write_bytes(p, v);
    else
        write_string(p, v->text.s, v->text.n);
    return true;
}

/* Writes a text that several containers share once, and then by number. */
static bool write_shared_text(Pickler *p, const ds_value *v)
{
    char address[32];
    snprintf(address, sizeof address, "%p", (const void *)v);
    if (memo_recall(p, address)) return true;
    if (!write_text(p, v)) return false;
    memo_remember(p, address);
    return true;
}

/* Writes a value of any kind; false with the message. */
static bool write_value(Pickler *p, const ds_value *v)
{
    switch (v->kind) {
    case DS_VALUE_NONE:
        return write_opcode(p, 'N'), true;
    case DS_VALUE_BOOL:
        return write_opcode(p, v->b ? '\x88' : '\x89'), true;
    case DS_VALUE_INT:
        return write_int(p, v->i), true;
    case DS_VALUE_FLOAT:
        return write_float(p, v->f), true;
    case DS_VALUE_STRING:
    case DS_VALUE_BYTES:
    case DS_VALUE_BIG_INT:
        return v->refs > 1 ? write_shared_text(p, v) : write_text(p, v);
    case DS_VALUE_NAME:
        return write_class_name(p, v), true;
    case DS_VALUE_TENSOR:
        return write_tensor(p, v), true;
    case DS_VALUE_LIST:
        return write_list(p, v);
    case DS_VALUE_TUPLE:
        return write_tuple(p, v);
    case DS_VALUE_SET:
        return write_set(p, v);
    default:
        return write_dict(p, v);
    }
}

/* A pickle is PROTO 2, the opcodes of one value, and STOP. */
bool dsi_pickle_write(dsi_text *out, const char *what, const ds_value *v,
                      const dsi_save_plan *stored)
{
    Pickler p = {.out = out, .what = what, .stored = stored};
    dsi_text_add_bytes(out, "\x80\2", 2); /* PROTO 2 */
    bool ok = write_value(&p, v);
    write_opcode(&p, '.'); /* STOP */
    dsi_map_free(&p.memo);
    return ok;
}
