/* checkpoint/pickle_read.c: the stack machine of Note [Pickles]: the opcodes of
 * protocols 2 to 5.
 *
 * Invariants: u->at <= u->bytes, and nothing behind u->bytes is read. The stack
 * and the memo each hold a count of their values. u->marks are heights of the
 * stack that do not fall; opcodes reach only values above the last mark.
 * u->holders holds a count of each list, set, dict and object that was made,
 * also after the stack has dropped it, so that one that holds itself can be
 * emptied and freed. Nothing recurses: a list in a list is on the stack.
 * Source: Lib/pickletools.py of CPython.
 * SPDX-License-Identifier: MIT */
#include "pickle.h"

#include <stdio.h>
#include <string.h>

#define MAX_INT_BYTES 1024      /* of an int of any length: its digits cost the square of it */
#define SMALL_BYTES   (1 << 20) /* that calls may make of any pickle */
#define MAX_LINE      1000      /* bytes of a name of a module or a class */
#define SHORT_TEXT    16        /* bytes; longer texts may stay in the pickle (in_place) */

enum { EITHER = -1 }; /* a kind: a string or bytes */

bool dsi_unpickle_wrong(const dsi_unpickler *u, const char *format, ...)
{
    char text[700];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return dsi_wrong("%s: pickle, byte %zu: %s", u->what, u->at, text);
}

bool dsi_unpickle_reserve(dsi_unpickler *u, size_t bytes)
{
    u->made += bytes;
    size_t most = u->bytes * 16;
    bool fits = u->max_bytes ? u->made <= u->max_bytes
                             : bytes <= most && u->made <= most + SMALL_BYTES;
    if (fits) return true;
    u->bomb = true;
    if (u->max_bytes)
        return dsi_unpickle_wrong(u, "it holds too many values: they take more than %zu bytes",
                                  u->max_bytes);
    return dsi_unpickle_wrong(u, "it makes more than 16 times its own size of %zu bytes", u->bytes);
}

/* Counts n entries of the stack, marks or the memo towards max_bytes. They are
 * proportional to the pickle's size, so without max_bytes they are free. */
static bool reserve_slots(dsi_unpickler *u, size_t n)
{
    return !u->max_bytes || dsi_unpickle_reserve(u, 2 * n * sizeof(ds_value *));
}

/* Counts a new value towards max_bytes, with the first memory of its text,
 * items or dict. */
static bool reserve_value(dsi_unpickler *u, const ds_value *v)
{
    bool more = v->kind > DS_VALUE_FLOAT && !v->in_place;
    bool fresh = u->max_bytes && v->refs == 1;
    return !fresh || dsi_unpickle_reserve(u, sizeof *v + (more ? 3 * sizeof *v : 0));
}

/* ---- bytes ----------------------------------------------------------------------------------------------- */

/* Returns the next n bytes and moves behind them; NULL with the message if
 * fewer are left. */
static const uint8_t *unpickle_bytes(dsi_unpickler *u, uint64_t n)
{
    if (n > u->bytes - u->at)
        return dsi_unpickle_refuse(
            u, "wants %llu bytes more, %zu are there: it was cut off or damaged",
            (unsigned long long)n, u->bytes - u->at);
    u->at += n;
    return u->p + u->at - n;
}

static bool unpickle_number(dsi_unpickler *u, int bytes, uint64_t *out)
{
    const uint8_t *p = unpickle_bytes(u, (uint64_t)bytes);
    *out = 0;
    for (int i = bytes; p && i-- > 0;) *out = *out << 8 | p[i];
    return p != NULL;
}

/* Returns the text up to the next newline, for dsi_free, and moves behind the
 * newline; NULL with the message. GLOBAL's operands are two such lines. */
static char *unpickle_line(dsi_unpickler *u)
{
    size_t left = u->bytes - u->at;
    const uint8_t *line = u->p + u->at,
                  *end = memchr(line, '\n', left < MAX_LINE ? left : MAX_LINE);
    if (!end || memchr(line, 0, (size_t)(end - line)))
        return dsi_unpickle_refuse(u, "a name has no end");
    size_t n = (size_t)(end - line);
    u->at += n + 1;
    return dsi_text_of("%.*s", (int)n, (const char *)line).s;
}

/* ---- stack ------------------------------------------------------------------------------------------------- */

/* Pushes v and takes the caller's count of it; false if v is NULL, whose
 * message is set already, or if a limit is exceeded. New containers are added
 * to
 * u->holders. */
static bool stack_push(dsi_unpickler *u, ds_value *v)
{
    if (!v) return false;
    if (!reserve_value(u, v) || !reserve_slots(u, 1)) {
        ds_value_free(v);
        return false;
    }
    bool holder = v->kind == DS_VALUE_LIST || v->kind == DS_VALUE_SET || dsi_value_has_keys(v);
    if (holder && v->refs == 1) dsi_list_add(&u->holders, dsi_value_ref(v));
    dsi_list_add(&u->stack, v);
    return true;
}

static int stack_bottom(const dsi_unpickler *u)
{
    return u->marks.n ? u->marks.at[u->marks.n - 1] : 0;
}

/* Tells whether n values are above the last mark; false with the message. */
static bool stack_has(const dsi_unpickler *u, int n)
{
    return u->stack.n - stack_bottom(u) >= n || dsi_unpickle_wrong(u, "the stack is empty");
}

static ds_value *stack_top(const dsi_unpickler *u, int depth)
{
    return u->stack.at[u->stack.n - 1 - depth];
}

static void stack_drop(dsi_unpickler *u, int n)
{
    while (n-- > 0) ds_value_free(u->stack.at[--u->stack.n]);
}

/* Removes the last mark. Returns how many values are above it, or -1. */
static int stack_unmark(dsi_unpickler *u)
{
    if (!u->marks.n) {
        dsi_unpickle_wrong(u, "a mark is missing");
        return -1;
    }
    return u->stack.n - u->marks.at[--u->marks.n];
}

/* Replaces the uppermost n values by a container of that kind with them. */
static bool stack_gather(dsi_unpickler *u, int kind, int n)
{
    if (n < 0 || !stack_has(u, n)) return false;
    ds_value *v = dsi_value_new(kind);
    for (int i = n; i-- > 0;) dsi_list_add(&v->items, stack_top(u, i));
    u->stack.n -= n;
    return stack_push(u, v);
}

/* ---- values ------------------------------------------------------------------------------------------------ */

/* Returns bytes that point into the pickle, if the caller has asked for that
 * and they are long; else NULL. */
static ds_value *bytes_in_place(const dsi_unpickler *u, const uint8_t *p, uint64_t n)
{
    if (!u->in_place || n <= SHORT_TEXT) return NULL;
    ds_value *v = dsi_value_new(DS_VALUE_BYTES);
    v->in_place = true;
    v->text.s = (char *)(uintptr_t)p;
    v->text.n = n;
    return v;
}

/* kind EITHER: UTF-8 counts as text. */
static bool push_text(dsi_unpickler *u, int kind, int length_bytes)
{
    uint64_t n;
    const uint8_t *p = unpickle_number(u, length_bytes, &n) ? unpickle_bytes(u, n) : NULL;
    if (!p) return false;
    ds_value *v = bytes_in_place(u, p, n);
    if (v) return stack_push(u, v);
    bool text = kind != DS_VALUE_BYTES && dsi_is_utf8(p, n);
    if (kind == DS_VALUE_STRING && !text)
        return dsi_unpickle_wrong(u, "a string of %llu bytes is not UTF-8", (unsigned long long)n);
    return stack_push(u, dsi_value_text(text ? DS_VALUE_STRING : DS_VALUE_BYTES, p, n));
}

/* Returns a two's complement of n bytes, lowest byte first, as decimal digits:
 * divides the absolute value by 10 again and again. */
static ds_value *big_int_of(const uint8_t *p, size_t n)
{
    uint8_t x[MAX_INT_BYTES];
    bool minus = p[n - 1] & 0x80;
    for (size_t i = 0, carry = 1; i < n; i++) { /* the absolute value */
        size_t byte = minus ? (uint8_t)~p[i] + carry : p[i];
        x[i] = (uint8_t)byte;
        carry = minus ? byte >> 8 : 0;
    }
    char text[3 * MAX_INT_BYTES], *at = text + sizeof text;
    while (n) {
        unsigned rest = 0;
        for (size_t i = n; i-- > 0;) {
            rest = rest << 8 | x[i];
            x[i] = (uint8_t)(rest / 10);
            rest %= 10;
        }
        *--at = (char)('0' + rest);
        while (n && !x[n - 1]) n--;
    }
    if (minus) *--at = '-';
    return dsi_value_text(DS_VALUE_BIG_INT, at, (size_t)(text + sizeof text - at));
}

static bool push_long(dsi_unpickler *u, int length_bytes)
{
    uint64_t n, low = 0;
    const uint8_t *p = unpickle_number(u, length_bytes, &n) ? unpickle_bytes(u, n) : NULL;
    if (!p) return false;
    if (n > MAX_INT_BYTES)
        return dsi_unpickle_wrong(u, "an int of %llu bytes: at most %d are read",
                                  (unsigned long long)n, MAX_INT_BYTES);
    if (n > 8) return reserve_slots(u, n) && stack_push(u, big_int_of(p, n));
    for (size_t i = 0; i < 8; i++) /* with the sign to the left */
        low |= (uint64_t)(i < n ? p[i] : n && p[n - 1] & 0x80 ? 0xff : 0) << 8 * i;
    return stack_push(u, ds_value_int((int64_t)low));
}

static bool push_float(dsi_unpickler *u)
{
    const uint8_t *p = unpickle_bytes(u, 8);
    uint64_t bits = 0;
    double f;
    for (int i = 0; p && i < 8; i++) bits = bits << 8 | p[i];
    memcpy(&f, &bits, sizeof f);
    return p && stack_push(u, ds_value_float(f));
}

/* BININT1, 2, BININT. As in Python, equal numbers of one byte, labels for
 * example, share one value. */
static bool push_int(dsi_unpickler *u, int bytes)
{
    uint64_t x;
    if (!unpickle_number(u, bytes, &x)) return false;
    if (bytes == 1) {
        if (!u->small[x]) u->small[x] = ds_value_int((int64_t)x);
        return stack_push(u, dsi_value_ref(u->small[x]));
    }
    return stack_push(u, ds_value_int(bytes == 4 ? (int32_t)x : (int64_t)x));
}

/* ---- memo -------------------------------------------------------------------------------------------------- */

/* Stores the top of the stack under number i. Picklers count from 0, and each
 * number costs a byte of the pickle at least, so larger ones are refused. */
static bool memo_put(dsi_unpickler *u, uint64_t i)
{
    if (!stack_has(u, 1)) return false;
    if (i > u->bytes) return dsi_unpickle_wrong(u, "memo number %llu", (unsigned long long)i);
    uint64_t used = (uint64_t)u->memo.n;
    if (i >= used && !reserve_slots(u, (size_t)(i + 1 - used))) return false;
    while ((uint64_t)u->memo.n <= i) dsi_list_add(&u->memo, NULL);
    ds_value_free(u->memo.at[i]);
    u->memo.at[i] = dsi_value_ref(stack_top(u, 0));
    return true;
}

static bool memo_get(dsi_unpickler *u, uint64_t i)
{
    if (i >= (uint64_t)u->memo.n || !u->memo.at[i])
        return dsi_unpickle_wrong(u, "memo number %llu was never given", (unsigned long long)i);
    return stack_push(u, dsi_value_ref(u->memo.at[i]));
}

/* ---- lists, dicts, sets -------------------------------------------------------------------------------------- */

static bool append_items(dsi_unpickler *u, int n, int kind)
{
    if (n < 0 || !stack_has(u, n + 1)) return false;
    ds_value *into = stack_top(u, n);
    bool object = into->kind == DS_VALUE_OBJECT;
    for (int i = n; object && i-- > 0;)
        if (!dsi_object_append(u, into, stack_top(u, i))) return false;
    if (object) {
        stack_drop(u, n);
        return true;
    }
    if (into->kind != kind)
        return dsi_unpickle_wrong(u, "an item for a value of class %s", ds_value_class(into));
    for (int i = n; i-- > 0;) dsi_list_add(&into->items, stack_top(u, i));
    u->stack.n -= n;
    return true;
}

static bool wrap_key(dsi_unpickler *u, int i)
{
    ds_value *key = u->stack.at[i];
    if (!u->objects)
        return dsi_unpickle_wrong(u, "a key of class %s, which is not read", ds_value_class(key));
    u->stack.at[i] = dsi_value_object(ds_value_string(ds_value_class(key)));
    bool ok = dsi_object_append(u, u->stack.at[i], key);
    ds_value_free(key);
    return ok;
}

static bool set_dict_items(dsi_unpickler *u, int n)
{
    if (n < 0 || !stack_has(u, n + 1)) return false;
    ds_value *into = stack_top(u, n);
    if (n % 2 || !dsi_value_has_keys(into))
        return dsi_unpickle_wrong(u, "%d keys and items for a value of class %s", n,
                                  ds_value_class(into));
    if (!reserve_slots(u, 4 * (size_t)n)) return false;
    for (int i = u->stack.n - n; i < u->stack.n; i += 2) {
        if (!dsi_value_is_key(u->stack.at[i]) && !wrap_key(u, i)) return false;
        ds_value *key = dsi_value_ref(u->stack.at[i]), *item = dsi_value_ref(u->stack.at[i + 1]);
        if (dsi_value_put(into, key, item) != DS_OK)
            return dsi_unpickle_wrong(u, "a key of class %s", ds_value_class(u->stack.at[i]));
    }
    stack_drop(u, n);
    return true;
}

/* ---- names and calls ------------------------------------------------------------------------------------------ */

static bool push_global(dsi_unpickler *u)
{
    char *module = unpickle_line(u), *name = module ? unpickle_line(u) : NULL;
    bool ok = name && stack_push(u, dsi_pickle_global_of(u, module, name));
    dsi_free(module);
    dsi_free(name);
    return ok;
}

static bool push_named_global(dsi_unpickler *u)
{
    if (!stack_has(u, 2)) return false;
    const ds_value *module = stack_top(u, 1), *name = stack_top(u, 0);
    if (module->kind != DS_VALUE_STRING || name->kind != DS_VALUE_STRING)
        return dsi_unpickle_wrong(u, "a global's name is no string");
    ds_value *v = dsi_pickle_global_of(u, module->text.s, name->text.s);
    stack_drop(u, v ? 2 : 0);
    return stack_push(u, v);
}

/* REDUCE and NEWOBJ: replaces the callable and the tuple of its arguments by
 * the result of the call. */
static bool push_call(dsi_unpickler *u)
{
    if (!stack_has(u, 2)) return false;
    const ds_value *f = stack_top(u, 1), *args = stack_top(u, 0);
    if (args->kind != DS_VALUE_TUPLE)
        return dsi_unpickle_wrong(u, "arguments of class %s", ds_value_class(args));
    ds_value *v = dsi_pickle_call(u, f, args);
    stack_drop(u, v ? 2 : 0);
    return stack_push(u, v);
}

/* NEWOBJ_EX: a call with named arguments. Only objects of unknown classes take
 * them, as attributes. */
static bool push_call_named(dsi_unpickler *u)
{
    if (!stack_has(u, 3)) return false;
    ds_value *named = dsi_value_ref(stack_top(u, 0));
    stack_drop(u, 1);
    bool ok = push_call(u) && (!ds_value_len(named) || dsi_pickle_build(u, stack_top(u, 0), named));
    ds_value_free(named);
    return ok;
}

static bool build_top(dsi_unpickler *u)
{
    if (!stack_has(u, 2) || !dsi_pickle_build(u, stack_top(u, 1), stack_top(u, 0))) return false;
    stack_drop(u, 1);
    return true;
}

static bool push_persistent(dsi_unpickler *u)
{
    if (!stack_has(u, 1)) return false;
    ds_value *v = dsi_pickle_persistent(u, stack_top(u, 0));
    stack_drop(u, v ? 1 : 0);
    return stack_push(u, v);
}

/* ---- opcodes --------------------------------------------------------------------------------------------------- */

static bool read_protocol(dsi_unpickler *u)
{
    uint64_t x;
    if (!unpickle_number(u, 1, &x)) return false;
    u->protocol = (int)x;
    return x <= 5 || dsi_unpickle_wrong(u, "protocol %d: 2 to 5 are read", (int)x);
}

static bool memo_numbered(dsi_unpickler *u, int bytes, bool (*f)(dsi_unpickler *u, uint64_t i))
{
    uint64_t i;
    return unpickle_number(u, bytes, &i) && f(u, i);
}

static bool stack_mark(dsi_unpickler *u)
{
    if (!reserve_slots(u, 1)) return false;
    dsi_list_add(&u->marks, u->stack.n);
    return true;
}

static bool stack_pop_mark(dsi_unpickler *u)
{
    int n = stack_unmark(u);
    stack_drop(u, n);
    return n >= 0;
}

static bool stack_pop(dsi_unpickler *u)
{
    if (u->marks.n && stack_bottom(u) == u->stack.n) return stack_pop_mark(u);
    if (!stack_has(u, 1)) return false;
    stack_drop(u, 1);
    return true;
}

/* Names the class of the value that was just pushed, where its kind does not
 * identify it. */
static bool name_top(dsi_unpickler *u, const char *class_name)
{
    stack_top(u, 0)->class_name = class_name;
    return true;
}

/* Opcodes that push a value without taking others. Their names are those of
 * pickletools.py. */
static bool run_push_opcode(dsi_unpickler *u, uint8_t code)
{
    switch (code) {
    case 'N': /* NONE */
        return stack_push(u, ds_value_none());
    case 0x88: /* NEWTRUE, NEWFALSE */
    case 0x89:
        return stack_push(u, ds_value_bool(code == 0x88));
    case 'K': /* BININT1 */
        return push_int(u, 1);
    case 'M': /* BININT2 */
        return push_int(u, 2);
    case 'J': /* BININT */
        return push_int(u, 4);
    case 0x8a: /* LONG1, LONG4 */
    case 0x8b:
        return push_long(u, code == 0x8a ? 1 : 4);
    case 'G': /* BINFLOAT: highest byte first */
        return push_float(u);
    case 'X': /* BINUNICODE, SHORT_BINUNICODE, BINUNICODE8 */
        return push_text(u, DS_VALUE_STRING, 4);
    case 0x8c:
        return push_text(u, DS_VALUE_STRING, 1);
    case 0x8d:
        return push_text(u, DS_VALUE_STRING, 8);
    case 'B': /* BINBYTES, SHORT_BINBYTES, BINBYTES8, BYTEARRAY8 */
        return push_text(u, DS_VALUE_BYTES, 4);
    case 'C':
        return push_text(u, DS_VALUE_BYTES, 1);
    case 0x8e:
        return push_text(u, DS_VALUE_BYTES, 8);
    case 0x96:
        return push_text(u, DS_VALUE_BYTES, 8) && name_top(u, "bytearray");
    case 'T': /* BINSTRING, SHORT_BINSTRING: a str of Python 2, which is text or bytes */
    case 'U':
        return push_text(u, EITHER, code == 'T' ? 4 : 1);
    case ')': /* EMPTY_TUPLE */
        return stack_gather(u, DS_VALUE_TUPLE, 0);
    case ']': /* EMPTY_LIST */
        return stack_gather(u, DS_VALUE_LIST, 0);
    case '}': /* EMPTY_DICT */
        return stack_push(u, ds_value_dict());
    case 0x8f: /* EMPTY_SET */
        return stack_gather(u, DS_VALUE_SET, 0);
    default:
        return dsi_unpickle_wrong(u, "opcode 0x%02x is not one that torch.save writes", code);
    }
}

static bool run_opcode(dsi_unpickler *u, uint8_t code)
{
    switch (code) {
    case 0x80: /* PROTO */
        return read_protocol(u);
    case 0x95: /* FRAME: a length, for readers of streams; ignored */
        return unpickle_bytes(u, 8) != NULL;
    case '(': /* MARK */
        return stack_mark(u);
    case '0': /* POP */
        return stack_pop(u);
    case '1': /* POP_MARK */
        return stack_pop_mark(u);
    case '2': /* DUP */
        return stack_has(u, 1) && stack_push(u, dsi_value_ref(stack_top(u, 0)));
    case 'q': /* BINPUT */
        return memo_numbered(u, 1, memo_put);
    case 'r': /* LONG_BINPUT */
        return memo_numbered(u, 4, memo_put);
    case 0x94: /* MEMOIZE */
        return memo_put(u, (uint64_t)u->memo.n);
    case 'h': /* BINGET */
        return memo_numbered(u, 1, memo_get);
    case 'j': /* LONG_BINGET */
        return memo_numbered(u, 4, memo_get);
    case 't': /* TUPLE */
        return stack_gather(u, DS_VALUE_TUPLE, stack_unmark(u));
    case 0x85: /* TUPLE1, TUPLE2, TUPLE3 */
    case 0x86:
    case 0x87:
        return stack_gather(u, DS_VALUE_TUPLE, code - 0x84);
    case 0x91: /* FROZENSET */
        return stack_gather(u, DS_VALUE_SET, stack_unmark(u)) && name_top(u, "frozenset");
    case 'a': /* APPEND */
        return append_items(u, 1, DS_VALUE_LIST);
    case 'e': /* APPENDS */
        return append_items(u, stack_unmark(u), DS_VALUE_LIST);
    case 0x90: /* ADDITEMS */
        return append_items(u, stack_unmark(u), DS_VALUE_SET);
    case 's': /* SETITEM */
        return set_dict_items(u, 2);
    case 'u': /* SETITEMS */
        return set_dict_items(u, stack_unmark(u));
    case 'c': /* GLOBAL */
        return push_global(u);
    case 0x93: /* STACK_GLOBAL */
        return push_named_global(u);
    case 'R':
    case 0x81: /* REDUCE, NEWOBJ */
        return push_call(u);
    case 0x92: /* NEWOBJ_EX */
        return push_call_named(u);
    case 'b': /* BUILD */
        return build_top(u);
    case 'Q': /* BINPERSID */
        return push_persistent(u);
    default:
        return run_push_opcode(u, code);
    }
}

ds_value *dsi_unpickle(dsi_unpickler *u)
{
    const uint8_t *code;
    bool ok = true;
    while (ok && (code = unpickle_bytes(u, 1)) && *code != '.') ok = run_opcode(u, *code);
    ds_value *v = NULL;
    if (ok && code && (u->stack.n != 1 || u->marks.n))
        dsi_unpickle_wrong(u, "it ends with %d values on the stack", u->stack.n);
    else if (ok && code)
        v = dsi_value_ref(stack_top(u, 0));
    u->failed = !v;
    stack_drop(u, u->stack.n);
    for (int i = 0; i < u->memo.n; i++) ds_value_free(u->memo.at[i]);
    u->memo.n = u->marks.n = 0;
    return v;
}

void dsi_unpickler_free(dsi_unpickler *u)
{
    for (int i = 0; i < u->holders.n; i++) {
        bool reached = u->holders.at[i]->seen != 0; /* it is part of what the caller gets */
        if (u->failed || !reached) dsi_value_clear(u->holders.at[i]);
        ds_value_free(u->holders.at[i]);
    }
    dsi_list_free(&u->holders);
    for (int i = 0; i < 256; i++) ds_value_free(u->small[i]);
    for (int i = 0; i < u->storages.n; i++) {
        dsi_pickle_storage *s = u->storages.at[i];
        ds_value_free(s->value);
        dsi_unref(s->flat);
        dsi_free(s->key);
        dsi_free(s);
    }
    dsi_list_free(&u->storages);
    dsi_list_free(&u->stack);
    dsi_list_free(&u->marks);
    dsi_list_free(&u->memo);
    dsi_map_free(&u->by_key);
    dsi_pickle_free_unknown(u);
}
