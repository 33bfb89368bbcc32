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
#include "base/mem.h"
#include "pickle.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MAX_INT_BYTES 1024      /* of an int of any length: its digits cost the square of it */
#define SMALL_BYTES   (1 << 20) /* that calls may make of any pickle */
#define MAX_LINE      1000      /* bytes of a name of a module or a class */
#define SHORT_TEXT    16        /* bytes; longer texts may stay in the pickle (in_place) */

bool dsi_unpickle_wrong(const dsi_unpickler *u, const char *format, ...)
{
    char text[700];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dsi_fail(DS_EFORMAT, "%s: pickle, byte %zu: %s", u->what, u->at, text);
    return false;
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

/* What the machine itself takes is in proportion to the pickle, and is charged
 * only where that is too much. */
static bool reserve_slots(dsi_unpickler *u, size_t n)
{
    return !u->max_bytes || dsi_unpickle_reserve(u, 2 * n * sizeof(ds_value *));
}

/* A value, and what it holds of its own at first: a text, items or a dict. */
static bool reserve_value(dsi_unpickler *u, const ds_value *v)
{
    bool more = v->kind > DS_VALUE_FLOAT && !v->in_place;
    bool fresh = u->max_bytes && v->refs == 1;
    return !fresh || dsi_unpickle_reserve(u, sizeof *v + (more ? 3 * sizeof *v : 0));
}

/* ---- bytes ----------------------------------------------------------------------------------------------- */

/* The next n bytes; NULL, with the message, if there are not so many. */
static const uint8_t *unpickle_bytes(dsi_unpickler *u, uint64_t n)
{
    if (n > u->bytes - u->at) {
        return dsi_unpickle_refuse(
            u, "wants %llu bytes more, %zu are there: it was cut off or damaged",
            (unsigned long long)n, u->bytes - u->at);
    }
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

/* The text up to the end of the line, which takes the 0's place; NULL with the
 * message. */
static char *unpickle_line(dsi_unpickler *u)
{
    size_t left = u->bytes - u->at;
    const uint8_t *line = u->p + u->at,
                  *end = memchr(line, '\n', left < MAX_LINE ? left : MAX_LINE);
    if (!end || memchr(line, 0, (size_t)(end - line))) {
        return dsi_unpickle_refuse(u, "a name has no end");
    }
    size_t n = (size_t)(end - line);
    char *text = dsi_alloc(n + 1);
    memcpy(text, line, n);
    u->at += n + 1;
    return text;
}

/* ---- stack ------------------------------------------------------------------------------------------------- */

/* Takes v; false if it is NULL, which has its message. New values that may come
 * to hold themselves are noted. */
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

/* Whether n values lie above the last mark. */
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

/* How many values lie above the last mark, which goes; -1 with the message. */
static int stack_unmark(dsi_unpickler *u)
{
    if (!u->marks.n) {
        dsi_unpickle_wrong(u, "a mark is missing");
        return -1;
    }
    return u->stack.n - u->marks.at[--u->marks.n];
}

/* The uppermost n values become one of that kind. */
static bool stack_gather(dsi_unpickler *u, int kind, int n)
{
    if (n < 0 || !stack_has(u, n)) return false;
    ds_value *v = dsi_value_new(kind);
    for (int i = n; i-- > 0;) dsi_list_add(&v->items, stack_top(u, i));
    u->stack.n -= n;
    return stack_push(u, v);
}

/* ---- values ------------------------------------------------------------------------------------------------ */

/* Bytes that are not copied, if the caller has asked for that and they are
 * worth it; else NULL. */
static ds_value *bytes_in_place(const dsi_unpickler *u, const uint8_t *p, uint64_t n)
{
    if (!u->in_place || n <= SHORT_TEXT) return NULL;
    ds_value *v = dsi_value_new(DS_VALUE_BYTES);
    v->in_place = true;
    v->text.s = (char *)(uintptr_t)p;
    v->text.n = n;
    return v;
}

static bool push_text(dsi_unpickler *u, int kind, int length_bytes)
{
    uint64_t n;
    const uint8_t *p = unpickle_number(u, length_bytes, &n) ? unpickle_bytes(u, n) : NULL;
    if (!p) return false;
    ds_value *v = bytes_in_place(u, p, n);
    if (v) return stack_push(u, v);
    if (kind == DS_VALUE_STRING && !dsi_is_utf8(p, n))
        return dsi_unpickle_wrong(u, "a string of %llu bytes is not UTF-8", (unsigned long long)n);
    return stack_push(u, dsi_value_text(kind, p, n));
}

/* A str of Python 2, where text and bytes were one. */
static bool push_old_string(dsi_unpickler *u, int length_bytes)
{
    uint64_t n;
    const uint8_t *p = unpickle_number(u, length_bytes, &n) ? unpickle_bytes(u, n) : NULL;
    if (!p) return false;
    ds_value *v = bytes_in_place(u, p, n);
    if (!v) v = dsi_value_text(dsi_is_utf8(p, n) ? DS_VALUE_STRING : DS_VALUE_BYTES, p, n);
    return stack_push(u, v);
}

/* A two's complement of n bytes, lowest first, as decimal digits. */
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

/* As in Python, numbers of one byte are one value each, however often they
 * occur: labels, say. */
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

/* Numbers are given one after the other, and each costs a byte at least. */
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

/* The uppermost n values go into the list or set below them. */
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

/* A key that is none here, a frozenset, becomes an object that holds it. */
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

/* The uppermost n values, keys and items, go into the dict below them. */
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

/* REDUCE and NEWOBJ: the callable and the tuple of its arguments become what
 * the call gives. */
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

/* NEWOBJ_EX: with named arguments, which only an object that is not known
 * takes: as attributes. */
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

/* What was just pushed is of a class that shares a kind with another one. */
static bool name_top(dsi_unpickler *u, const char *class_name)
{
    stack_top(u, 0)->class_name = class_name;
    return true;
}

/* Opcodes that push a value of their own. */
static bool run_push_opcode(dsi_unpickler *u, uint8_t code)
{
    switch (code) {
    case 'N':
        return stack_push(u, ds_value_none());
    case 0x88:
    case 0x89:
        return stack_push(u, ds_value_bool(code == 0x88));
    case 'K':
        return push_int(u, 1);
    case 'M':
        return push_int(u, 2);
    case 'J':
        return push_int(u, 4);
    case 0x8a: /* LONG1, LONG4 */
    case 0x8b:
        return push_long(u, code == 0x8a ? 1 : 4);
    case 'G':
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
    case 'T': /* BINSTRING, SHORT_BINSTRING */
    case 'U':
        return push_old_string(u, code == 'T' ? 4 : 1);
    case ')':
        return stack_gather(u, DS_VALUE_TUPLE, 0);
    case ']':
        return stack_gather(u, DS_VALUE_LIST, 0);
    case '}':
        return stack_push(u, ds_value_dict());
    case 0x8f:
        return stack_gather(u, DS_VALUE_SET, 0);
    default:
        return dsi_unpickle_wrong(u, "opcode 0x%02x is not one that torch.save writes", code);
    }
}

static bool run_opcode(dsi_unpickler *u, uint8_t code)
{
    switch (code) {
    case 0x80:
        return read_protocol(u);
    case 0x95: /* FRAME: of so many bytes; nothing depends on it */
        return unpickle_bytes(u, 8) != NULL;
    case '(':
        return stack_mark(u);
    case '0':
        return stack_pop(u);
    case '1':
        return stack_pop_mark(u);
    case '2':
        return stack_has(u, 1) && stack_push(u, dsi_value_ref(stack_top(u, 0)));
    case 'q':
        return memo_numbered(u, 1, memo_put);
    case 'r':
        return memo_numbered(u, 4, memo_put);
    case 0x94: /* MEMOIZE */
        return memo_put(u, (uint64_t)u->memo.n);
    case 'h':
        return memo_numbered(u, 1, memo_get);
    case 'j':
        return memo_numbered(u, 4, memo_get);
    case 't':
        return stack_gather(u, DS_VALUE_TUPLE, stack_unmark(u));
    case 0x85:
    case 0x86:
    case 0x87:
        return stack_gather(u, DS_VALUE_TUPLE, code - 0x84);
    case 0x91: /* FROZENSET */
        return stack_gather(u, DS_VALUE_SET, stack_unmark(u)) && name_top(u, "frozenset");
    case 'a':
        return append_items(u, 1, DS_VALUE_LIST);
    case 'e':
        return append_items(u, stack_unmark(u), DS_VALUE_LIST);
    case 0x90: /* ADDITEMS */
        return append_items(u, stack_unmark(u), DS_VALUE_SET);
    case 's':
        return set_dict_items(u, 2);
    case 'u':
        return set_dict_items(u, stack_unmark(u));
    case 'c':
        return push_global(u);
    case 0x93:
        return push_named_global(u);
    case 'R':
    case 0x81: /* REDUCE, NEWOBJ */
        return push_call(u);
    case 0x92: /* NEWOBJ_EX */
        return push_call_named(u);
    case 'b':
        return build_top(u);
    case 'Q':
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
