/* nn/summary.c: what is asked of all parameters of a model; a model as PyTorch
 * prints it (torch.nn.Module.__repr__).
 * SPDX-License-Identifier: MIT */
#include "module.h"

#include <stdlib.h>

/* Elements of all parameters; buffers and second names of tied ones do not
 * count. */
int64_t ds_module_numel(const ds_module *m)
{
    int64_t n = 0;
    for (int i = 0, count = ds_module_params(m); i < count; i++)
        n += ds_numel(ds_module_param_at(m, i, NULL));
    return n;
}

bool dsi_module_has_param(const ds_module *m, const ds_tensor *x)
{
    for (int i = 0; i < ds_module_params(m); i++)
        if (ds_module_param_at(m, i, NULL) == x) return true;
    return false;
}

typedef struct Notes {
    dsi_module_note *write; /* NULL: there are none */
    void *arg;
} Notes;

/* The note and the description of m's options by its type, to be freed; NULL: none. */
static char *module_describe(ds_module *m, Notes notes)
{
    char *text = NULL, *note = NULL;
    size_t n = 0, length = 0;
    const ds_module_type *type = ds_module_type_of(m);
    FILE *to = open_memstream(&text, &n), *aside = open_memstream(&note, &length);
    if (to && notes.write) notes.write(notes.arg, m, to);
    if (aside && type->describe) type->describe(ds_self(m), aside);
    if (aside) fclose(aside);
    if (to && length) fprintf(to, "%s%s", ftell(to) > 0 ? ", " : "", note);
    if (to) fclose(to);
    free(note);
    if (n) return text;
    free(text);
    return NULL;
}

/* depth: spaces before the children of m, less their own two. */
static void module_print(ds_module *m, int depth, Notes notes, FILE *to)
{
    char *said = module_describe(m, notes);
    int n = ds_module_children(m);
    fprintf(to, "%s(", ds_module_type_of(m)->name);
    if (said && n)
        fprintf(to, "\n%*s%s", depth + 2, "", said);
    else if (said)
        fputs(said, to);
    for (int i = 0; i < n; i++) {
        ds_module *child = ds_module_child(m, i);
        fprintf(to, "\n%*s(%s): ", depth + 2, "", ds_module_name(child));
        module_print(child, depth + 2, notes, to);
    }
    if (n) fprintf(to, "\n%*s", depth, "");
    fputc(')', to);
    free(said);
}

void dsi_module_print_notes(ds_module *m, dsi_module_note *note, void *arg, FILE *to)
{
    if (!m || !to) return;
    module_print(m, 0, (Notes){note, arg}, to);
    fputc('\n', to);
}

void ds_module_print(ds_module *m, FILE *to) { dsi_module_print_notes(m, NULL, NULL, to); }
