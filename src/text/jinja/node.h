/* text/jinja/node.h: values and syntax trees of templates, and the memory that
 * both are in.
 *
 * Values and trees are in an arena, which is freed as a whole: a template's
 * with the template, a render's at its end. Values do not change, except lists
 * and dicts while their maker fills them, and namespaces.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "jinja.h"

/* ---- memory ---- */

typedef struct dsi_jarena_block dsi_jarena_block;
typedef struct dsi_jarena {
    dsi_jarena_block *last;
    size_t used; /* bytes, of all blocks */
} dsi_jarena;

void *dsi_jarena_get(dsi_jarena *a, size_t bytes); /* zeroed */
void dsi_jarena_free(dsi_jarena *a);

/* ---- values ---- */

typedef enum dsi_jkind {
    DSI_JUNDEFINED, /* s: the message of the error that most uses give */
    DSI_JNONE,
    DSI_JBOOL,
    DSI_JINT,
    DSI_JFLOAT,
    DSI_JSTRING,
    DSI_JLIST,
    DSI_JTUPLE,
    DSI_JITERATOR, /* list: what is left of it; it is always true, and read once */
    DSI_JDICT,
    DSI_JNAMESPACE,
    DSI_JMACRO,
    DSI_JMETHOD,
    DSI_JFUNCTION,
    DSI_JLOOP
} dsi_jkind;

typedef struct dsi_jlist dsi_jlist;
typedef struct dsi_jdict dsi_jdict;
typedef struct dsi_jmacro dsi_jmacro;
typedef struct dsi_jmethod dsi_jmethod;
typedef struct dsi_jloop dsi_jloop;

typedef struct dsi_jvalue {
    dsi_jkind kind;
    bool markup; /* of a string: `safe`; + escapes what is added to it */
    size_t n;    /* bytes of s */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s; /* UTF-8, not ended */
        dsi_jlist *list;
        dsi_jdict *dict; /* also a namespace's */
        dsi_jmacro *macro;
        dsi_jmethod *method; /* also a function, of nothing */
        dsi_jloop *loop;
    };
} dsi_jvalue;

struct dsi_jlist {
    dsi_jvalue *at; /* [n] */
    int64_t n, room;
};

typedef struct dsi_jpair {
    dsi_jvalue key, value;
} dsi_jpair;

struct dsi_jdict {
    dsi_jpair *at; /* [n], in the order in which the keys came */
    int64_t n, room;
};

/* ---- trees ---- */

/* The children a, b, c, and what is in `value` and `op`. Lists are linked by
 * `next`. */
typedef enum dsi_jnode_kind {
    DSI_JN_CONST,      /* value */
    DSI_JN_NAME,       /* value: the name */
    DSI_JN_LIST,       /* a: items */
    DSI_JN_TUPLE,      /* a: items */
    DSI_JN_DICT,       /* a: pairs */
    DSI_JN_PAIR,       /* a: key, b: value */
    DSI_JN_ATTR,       /* a . value */
    DSI_JN_ITEM,       /* a [ b ] */
    DSI_JN_SLICE,      /* a : b : c, each may be NULL */
    DSI_JN_CALL,       /* a ( b: arguments ) */
    DSI_JN_ARG,        /* a; value: its name or nothing; op: 0, '*' or 'p' (**) */
    DSI_JN_FILTER,     /* a | value ( b: arguments ); a NULL: the text of a block */
    DSI_JN_TEST,       /* a is value ( b: arguments ) */
    DSI_JN_NOT,        /* a */
    DSI_JN_NEG,        /* a */
    DSI_JN_POS,        /* a */
    DSI_JN_MATH,       /* a op b */
    DSI_JN_CONCAT,     /* a: operands of ~ */
    DSI_JN_COMPARE,    /* a, b: operands, each with its op and a */
    DSI_JN_OPERAND,    /* op a */
    DSI_JN_AND,        /* a, b */
    DSI_JN_OR,         /* a, b */
    DSI_JN_COND,       /* b if a else c; c may be NULL */
    DSI_JN_DATA,       /* value: text */
    DSI_JN_PRINT,      /* a */
    DSI_JN_IF,         /* a: condition, b: body, c: else, or an elif, whose op is 'e' */
    DSI_JN_FOR,        /* for a in b if e: c, else d */
    DSI_JN_SET,        /* a = b */
    DSI_JN_TEXT_OF,    /* set a | b: body c */
    DSI_JN_MACRO,      /* value ( b: parameters ): c; op: DSI_JUSES_... */
    DSI_JN_PARAM,      /* value = a, which may be NULL */
    DSI_JN_CALLER,     /* call ( b: parameters ) a: c; op as of a macro */
    DSI_JN_FILTERED,   /* filter b: body c */
    DSI_JN_WITH,       /* b: list of DSI_JN_SET; c */
    DSI_JN_GENERATION, /* c */
    DSI_JN_BREAK,
    DSI_JN_CONTINUE
} dsi_jnode_kind;

/* Names in a macro's body. */
enum { DSI_JUSES_VARARGS = 1, DSI_JUSES_KWARGS = 2, DSI_JUSES_CALLER = 4 };

/* Operators of two characters. */
enum {
    DSI_JOP_POW = 'p',
    DSI_JOP_DIV = 'd',
    DSI_JOP_EQ = 'e',
    DSI_JOP_NE = 'n',
    DSI_JOP_LE = 'l',
    DSI_JOP_GE = 'g',
    DSI_JOP_IN = 'i',
    DSI_JOP_NOT_IN = 'o'
};

typedef struct dsi_jnode dsi_jnode;
struct dsi_jnode {
    dsi_jnode_kind kind;
    int line, op;
    dsi_jvalue value;
    dsi_jnode *a, *b, *c, *d, *e, *next;
};

struct dsi_jinja {
    dsi_jarena arena;
    char *name;
    dsi_jnode *body;
    bool has_generation;
};

/* ---- tokens ---- */

typedef enum dsi_jtoken_kind {
    DSI_JT_END,
    DSI_JT_DATA,
    DSI_JT_BLOCK_BEGIN,
    DSI_JT_BLOCK_END,
    DSI_JT_PRINT_BEGIN,
    DSI_JT_PRINT_END,
    DSI_JT_NAME,
    DSI_JT_STRING,
    DSI_JT_NUMBER,
    DSI_JT_OP /* op: a character, or a DSI_JOP_... */
} dsi_jtoken_kind;

typedef struct dsi_jtoken {
    dsi_jtoken_kind kind;
    int line, op;
    dsi_jvalue value; /* of data, names, strings, numbers */
} dsi_jtoken;

typedef struct dsi_jtokens {
    DSI_LIST(dsi_jtoken)
} dsi_jtokens;

/* Appends the tokens of a template, which end with DSI_JT_END; texts are in the
 * template's arena. */
ds_status dsi_jinja_tokens(dsi_jinja *t, const char *source, size_t bytes, dsi_jtokens *out);
/* "NAME: line N: ", then the message. */
#define dsi_jinja_wrong(t, line, ...) dsi_jinja_wrong_with(t, line, DS_EFORMAT, __VA_ARGS__)
ds_status dsi_jinja_wrong_with(const dsi_jinja *t, int line, ds_status status, const char *format,
                               ...) DS_PRINTF(4, 5);
/* The nodes of statements and expressions nest less deep than this. */
#define DSI_JINJA_DEPTH 250
