/* tools/show/show.h: what the two forms of ds_show share: JSON (ds_show.c) and
 * the short list (short.c).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/text.h"

#include <deepspeed/checkpoint.h>

#include <stdbool.h>

typedef struct Show {
    const char *path, *tag;
    bool json, no_sums, objects;
    dsi_text out;
    bool first; /* the list has no item yet */
} Show;

/* Whether v has items that are listed one by one; whether it is shown as one
 * value although it has items (torch.Size, a complex number, a set). */
bool show_is_parent(const ds_value *v);
bool show_is_whole(const ds_value *v);
/* Appends "/KEY" of item i; a value without items as JSON; any value as
 * Python's repr. */
void show_add_key(dsi_text *path, const ds_value *v, int64_t i);
void show_add_value(Show *s, const ds_value *v);
void show_add_repr(dsi_text *t, const ds_value *v, int depth);
void show_add_shape(dsi_text *t, ds_dims shape);
/* The content of a file, to be freed; NULL with the message. *state: what it
 * borrows from, or NULL; to be freed after it. */
ds_value *show_load(const Show *s, const char *path, ds_state **state);

/* Calls fn for each file of the folder s->path, or of its checkpoint s->tag, in
 * the order of names; hidden ones are left out: they are of saves that did not
 * end. name: below the folder. */
typedef ds_status show_file_fn(void *arg, const char *path, const char *name, int64_t bytes);
ds_status show_each_file(const Show *s, show_file_fn *fn, void *arg);
ds_status show_no_file(const Show *s); /* fails: the folder has none */

/* ---- the short list: short.c ---- */

/* A file: a line of totals, and a line for each tensor and value. */
ds_status short_file(Show *s, const char *path);
/* A folder: a line for each file, with totals. */
ds_status short_folder(Show *s);
