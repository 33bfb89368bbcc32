/* data/tokens.c: files of tokens, mapped, and the data set of their windows.
 *
 *     bytes 0 .. 63    dsi_tokens_header
 *     n ids            uint16 or uint32, as `width` says
 *     n bytes          1: the id counts in the loss as a label (only if `masked`)
 *
 * Integers are little-endian, as memory is on the machines that this is for.
 * Windows are the ids k W .. k W + W - 1; a rest below W is left out. Sample i is
 * window i; in a masked file the i-th one with a label that counts, as the loss
 * of a batch without one would be NaN.
 * SPDX-License-Identifier: MIT */
#include "tokens.h"

#include "base/error.h"
#include "base/mapping.h"
#include "base/mem.h"

#include <inttypes.h>
#include <string.h>

/* The file stays mapped as long as the data set lives; ids and counted point
 * into it. */
typedef struct Tokens {
    char *path;
    dsi_mapping *file;
    dsi_tokens_header head;
    const uint8_t *ids, *counted; /* counted: NULL: all */
    int64_t window, n;            /* ids of a sample, samples */
    int64_t *kept;                /* masked: the window of each sample; else NULL */
} Tokens;

static int64_t tokens_len(void *self) { return ((Tokens *)self)->n; }

/* By memcpy: the ids are in a file, and need not be aligned. */
static int64_t token_at(const Tokens *t, int64_t i)
{
    if (t->head.width == 2) {
        uint16_t id;
        memcpy(&id, t->ids + 2 * i, sizeof id);
        return id;
    }
    uint32_t id;
    memcpy(&id, t->ids + 4 * i, sizeof id);
    return id;
}

/* field[0] int64 [window]: the ids; field[1]: the same as labels, with -100,
 * which the loss ignores (ignore_index), where an id does not count. Labels are
 * not shifted: the model does that. An id outside of the vocabulary is found
 * here, not by a kernel. */
static ds_status tokens_get(void *self, int64_t i, void **field)
{
    const Tokens *t = self;
    int64_t *ids = field[0], *labels = field[1], from = (t->kept ? t->kept[i] : i) * t->window;
    for (int64_t k = 0; k < t->window; k++) {
        int64_t id = token_at(t, from + k);
        if (id >= (int64_t)t->head.vocab)
            return dsi_fail(DS_EFORMAT,
                            "tokens: %s: token %" PRId64 " is %" PRId64
                            ": the file says that there are %" PRIu64,
                            t->path, from + k, id, t->head.vocab);
        ids[k] = id;
        labels[k] = !t->counted || t->counted[from + k] ? id : -100;
    }
    return DS_OK;
}

static void tokens_free(void *self)
{
    Tokens *t = self;
    dsi_free(t->path);
    dsi_free(t->kept);
    dsi_mapping_unref(t->file);
}

/* The first id of a window is predicted from nothing: its label does not count. */
static bool window_counts(const Tokens *t, int64_t window)
{
    const uint8_t *counted = t->counted + window * t->window;
    for (int64_t k = 1; k < t->window; k++)
        if (counted[k]) return true;
    return false;
}

static void tokens_keep_counted(Tokens *t)
{
    int64_t all = t->n;
    t->kept = dsi_alloc((size_t)all * sizeof *t->kept);
    t->n = 0;
    for (int64_t i = 0; i < all; i++)
        if (window_counts(t, i)) t->kept[t->n++] = i;
}

bool dsi_tokens_is_file(const void *bytes, size_t n)
{
    return n >= sizeof(dsi_tokens_header) && !memcmp(bytes, DSI_TOKENS_MAGIC, 8);
}

/* Checks sizes of the header against the file's. */
static bool header_fits(const char *path, const dsi_tokens_header *h, size_t bytes)
{
    if (h->width != 2 && h->width != 4)
        return dsi_invalid("tokens: %s: ids of %u bytes: expected 2 or 4", path, h->width);
    size_t room = bytes - sizeof *h, each = h->width + (h->masked ? 1 : 0);
    if (h->n > room / each || (size_t)h->n * each != room)
        return dsi_invalid("tokens: %s: %" PRIu64 " ids of %u bytes do not fit its %zu bytes", path,
                           h->n, h->width, bytes);
    return true;
}

ds_dataset *ds_token_dataset(const char *path, int64_t window)
{
    static const ds_dataset_type type = {"tokens", sizeof(Tokens), tokens_len, tokens_get,
                                         tokens_free};
    if (window < 2 || window > INT32_MAX)
        return dsi_refuse("tokens: a window of %lld: expected 2 or more", (long long)window);
    dsi_mapping *file = dsi_mapping_open("tokens", path, NULL);
    if (!file) return NULL;
    dsi_tokens_header head;
    bool known = dsi_tokens_is_file(file->p, file->bytes);
    if (known) memcpy(&head, file->p, sizeof head);
    if (!known || !header_fits(path, &head, file->bytes)) {
        if (!known) dsi_fail(DS_EFORMAT, "tokens: %s is no file of tokens (ds_tokens_pack)", path);
        dsi_mapping_unref(file);
        return NULL;
    }
    if ((int64_t)head.n < window) {
        dsi_mapping_unref(file);
        return dsi_refuse("tokens: %s has %" PRIu64 " tokens: expected a window of %lld or more",
                          path, head.n, (long long)window);
    }
    const ds_field fields[] = {{DS_I64, ds_shape(window), "ids"},
                               {DS_I64, ds_shape(window), "labels"}};
    ds_dataset *d = ds_dataset_new(&type, 2, fields);
    Tokens *t = ds_dataset_self(d);
    *t = (Tokens){.path = dsi_strdup(path),
                  .file = file,
                  .head = head,
                  .ids = file->p + sizeof head,
                  .window = window,
                  .n = (int64_t)head.n / window};
    if (!head.masked) return d;
    t->counted = t->ids + head.n * head.width;
    tokens_keep_counted(t);
    if (t->n) return d;
    ds_dataset_free(d);
    return dsi_refuse("tokens: in %s no window of %lld has a token that counts in the loss", path,
                      (long long)window);
}
