/* parallel/offload.c: masters and moments of a rank on disk: Note [Offload].
 * Source: Rajbhandari et al., ZeRO-Infinity, arXiv 2104.07857, sections 5.1 and 6.3.
 *
 * Invariants:
 * - Words of a block: 0 is the master, 1 .. words - 1 the moments that are
 *   used.
 * - In a step, block k is in buffer k % buffers; outside of steps only buffer 0
 *   is used, for block `held`. `dirty`: it is newer than the file.
 * - A pass may have begun before the step. Blocks that were read ahead are then
 *   read again if another one is held.
 * - An item that has storage is newer than its block: a step stores all of them
 *   first, and dsi_offload_release drops what was written to them.
 * SPDX-License-Identifier: MIT */
#include "offload.h"

#include "base/int.h"
#include "base/mem.h"
#include "base/text.h"
#include "swap_buffer.h"

#include <math.h>
#include <unistd.h>

#define WORD        ((int64_t)sizeof(float))
#define ALIGN_WORDS (DSI_AIO_ALIGN / WORD)
#define DEFAULT     ((int64_t)1 << 20) /* elements of a block */

typedef struct Block {
    int64_t begin, end;  /* elements that this rank owns */
    int64_t word_stride; /* elements from the begin of one word to that of the next */
    int64_t at;          /* in the file, bytes */
    int first;           /* of `local_params`: with elements in it */
    ds_tensor *memory;   /* counted; NULL: it is in the file */
} Block;

/* The lazy tensor of a master or a moment, for code that does not know of
 * files. */
typedef struct Item {
    dsi_offload *o;
    int i, word;
    ds_tensor *x; /* counted; NULL: no element is this rank's */
} Item;

struct dsi_offload {
    const dsi_flat *f;
    /* parameters of the layout with elements of this rank, in their order in
     * own buffers */
    int *local_params, n_local;
    ds_optim *optim;
    dsi_offload_opts o;
    int words, word_of[DS_OPTIM_MOMENTS]; /* 0: that moment is not used */
    Block *block;
    int blocks, in_file; /* the first in_file of them */
    int64_t capacity;    /* elements of a buffer */
    dsi_swap_buffer *buffer;
    int buffers;
    int held; /* outside of steps: the block in buffer 0; -1: none */
    bool dirty;
    bool begun;     /* a pass over the blocks: */
    int next, read; /* the next one to update, to read */
    dsi_aio *aio;
    dsi_aio_file file;
    Item *item; /* [f->n][words] */
};

static int64_t owned_elements(const dsi_flat *f, int i)
{
    return f->param[i].end - f->param[i].begin;
}
static int64_t owned_end(const dsi_flat *f, int i)
{
    return f->param[i].owned_at + owned_elements(f, i);
}

/* ---- blocks --------------------------------------------------------------------------------------------- */

static int64_t offload_block_size(const dsi_offload_opts *o, int64_t owned)
{
    return dsi_min(o->buffer_size > 0 ? o->buffer_size : DEFAULT, dsi_max(owned, 1));
}

static int64_t blocks_in_memory(const dsi_offload_opts *o, int64_t blocks)
{
    return (int64_t)floor((double)blocks * o->in_memory + 1e-9);
}

int64_t dsi_offload_needs(const dsi_offload_opts *o, int64_t owned, int words)
{
    int64_t size = offload_block_size(o, owned), blocks = (owned + size - 1) / size,
            memory = blocks_in_memory(o, blocks), file = dsi_max(blocks - memory, 1);
    int64_t each = dsi_round_up(size, ALIGN_WORDS) * words + ALIGN_WORDS;
    return (memory + dsi_min(dsi_max(o->buffer_count, 1), file)) * each * WORD;
}

/* Appends a block of elements begin .. end - 1, behind the last one in the
 * file. */
static void block_add(dsi_offload *o, int64_t begin, int64_t end)
{
    int64_t at = o->blocks ? o->block[o->blocks - 1].at +
                                 o->block[o->blocks - 1].word_stride * o->words * WORD
                           : 0;
    Block b = {.begin = begin,
               .end = end,
               .at = at,
               .word_stride = dsi_round_up(end - begin, ALIGN_WORDS)};
    while (b.first + 1 < o->n_local && owned_end(o->f, o->local_params[b.first]) <= begin)
        b.first++;
    o->capacity = dsi_max(o->capacity, b.word_stride * o->words);
    o->block = dsi_realloc(o->block, (size_t)(o->blocks + 1) * sizeof *o->block);
    o->block[o->blocks++] = b;
}

/* Divides this rank's elements into blocks. If the optimizer needs whole
 * parameters, each is in one block, however large. */
static void cut_blocks(dsi_offload *o)
{
    const dsi_flat *f = o->f;
    int64_t size = offload_block_size(&o->o, f->owned), begin = 0;
    bool whole = dsi_optim_needs_whole(o->optim);
    for (int k = 0; whole && k < o->n_local; k++) {
        int i = o->local_params[k];
        if (f->param[i].owned_at == begin || owned_end(f, i) - begin <= size) continue;
        block_add(o, begin, f->param[i].owned_at);
        begin = f->param[i].owned_at;
    }
    for (; !whole && begin + size < f->owned; begin += size) block_add(o, begin, begin + size);
    block_add(o, begin, f->owned);
    o->in_file = o->blocks - (int)blocks_in_memory(&o->o, o->blocks);
}

/* The elements of parameter i of the layout that are in block b; false: none
 * is. Offsets count from this rank's first element of it. */
static bool block_range(const dsi_offload *o, const Block *b, int i, dsi_range *r)
{
    int64_t at = o->f->param[i].owned_at, from = dsi_max(at, b->begin),
            to = dsi_min(owned_end(o->f, i), b->end);
    *r = (dsi_range){.param = i, .offset = from - at, .length = to - from};
    return from < to;
}

/* Elements r of a word of block b, which is in t. */
static ds_tensor *block_view(const dsi_offload *o, const ds_tensor *t, const Block *b, int word,
                             dsi_range r, ds_dims shape)
{
    int64_t stride[DS_MAX_DIMS], from = o->f->param[r.param].owned_at + r.offset;
    dsi_row_major(shape, stride);
    return dsi_view_of(t, shape, stride,
                       dsi_swap_begin(t) + word * b->word_stride + from - b->begin);
}

static ds_tensor *new_memory(int64_t elements)
{
    return dsi_swap_buffer_new(NULL, DS_F32, elements).t;
}

/* ---- input and output ----------------------------------------------------------------------------------- */

static void block_start(dsi_offload *o, int k, dsi_swap_buffer *u, bool write, int words)
{
    const Block *b = &o->block[k];
    dsi_swap_start(o->aio, &o->file, u, write, b->at, b->word_stride * words * WORD);
}

static ds_status buffers_wait(dsi_offload *o)
{
    ds_status status = DS_OK;
    for (int i = 0; i < o->buffers; i++)
        if (dsi_swap_wait(o->aio, &o->buffer[i]) != DS_OK) status = ds_error_status();
    return status;
}

static dsi_swap_buffer *buffer_of(const dsi_offload *o, int k)
{
    return &o->buffer[k % o->buffers];
}

/* ---- outside of steps: the block in buffer 0 ------------------------------------------------------------ */

static ds_status held_flush(dsi_offload *o)
{
    if (!o->dirty) return DS_OK;
    block_start(o, o->held, &o->buffer[0], true, o->words);
    o->dirty = false;
    return dsi_swap_wait(o->aio, &o->buffer[0]);
}

/* Brings block k into memory and returns the tensor that holds it; may block.
 * NULL with the message. */
static ds_tensor *block_hold(dsi_offload *o, int k)
{
    if (o->block[k].memory) return o->block[k].memory;
    if (o->held == k) return o->buffer[0].t;
    if (held_flush(o) != DS_OK || buffers_wait(o) != DS_OK) return NULL;
    if (o->begun) o->read = o->next;
    o->held = -1;
    block_start(o, k, &o->buffer[0], false, o->words);
    if (dsi_swap_wait(o->aio, &o->buffer[0]) != DS_OK) return NULL;
    o->held = k;
    return o->buffer[0].t;
}

/* Copies the item's elements from its blocks to x, which has its shape, or
 * back. */
static ds_status item_copy(const Item *it, ds_tensor *x, bool to_blocks)
{
    dsi_offload *o = it->o;
    for (int k = 0; k < o->blocks; k++) {
        const Block *b = &o->block[k];
        dsi_range r;
        if (!block_range(o, b, it->i, &r)) continue;
        ds_tensor *t = block_hold(o, k);
        if (!t) return ds_error_status();
        ds_tensor *in_block = block_view(o, t, b, it->word, r, ds_shape(r.length)),
                  *in_item = dsi_flat_range(x, r.offset, r.offset + r.length);
        if (dsi_copy(to_blocks ? in_block : in_item, to_blocks ? in_item : in_block) != DS_OK)
            return ds_error_status();
        if (to_blocks && !b->memory) o->dirty = true;
    }
    return DS_OK;
}

static ds_status item_materialize(void *arg, ds_tensor *x)
{
    const Item *it = arg;
    ds_scope *scope = ds_scope_open();
    ds_tensor *t = dsi_new_on(x->device, DS_F32, x->shape);
    ds_status status = t ? item_copy(it, t, false) : ds_error_status();
    if (status == DS_OK) dsi_tensor_set_data(x, t);
    ds_scope_close(scope);
    return status;
}

static ds_status item_store(const Item *it)
{
    ds_scope *scope = ds_scope_open();
    ds_status status = item_copy(it, it->x, true);
    ds_scope_close(scope);
    if (status == DS_OK) dsi_release_storage(it->x);
    return status;
}

static Item *item_of(const dsi_offload *o, int i, int word)
{
    return &o->item[i * o->words + word];
}

void dsi_offload_release(dsi_offload *o, int i)
{
    int begin = i < 0 ? 0 : i * o->words, end = i < 0 ? o->f->n * o->words : begin + o->words;
    for (int k = begin; k < end; k++)
        if (o->item[k].x) dsi_release_storage(o->item[k].x);
}

ds_status dsi_offload_store(dsi_offload *o, int i)
{
    ds_status status = DS_OK;
    int begin = i < 0 ? 0 : i * o->words, end = i < 0 ? o->f->n * o->words : begin + o->words;
    for (int k = begin; status == DS_OK && k < end; k++)
        if (o->item[k].x && o->item[k].x->storage) status = item_store(&o->item[k]);
    return status;
}

ds_tensor *dsi_offload_shard(const dsi_offload *o, int i) { return item_of(o, i, 0)->x; }

bool dsi_offload_in_memory(const dsi_offload *o, int i)
{
    return item_of(o, i, 0)->x && item_of(o, i, 0)->x->storage;
}

/* dsi_optim_keep: moment k of the optimizer's parameter `index` */
static ds_tensor *item_of_moment(void *arg, int index, int k)
{
    const dsi_offload *o = arg;
    int i = 0;
    while (i < o->f->n && o->f->param[i].index != index) i++;
    if (i < o->f->n && o->word_of[k]) return item_of(o, i, o->word_of[k])->x;
    return dsi_refuse("offload: %s began to use a moment that the file has no place for",
                      ds_optim_name(o->optim));
}

/* ---- the step ------------------------------------------------------------------------------------------- */

/* Lists the pieces of block b whose parameters have a gradient; returns their
 * number. */
static int block_list_pieces(const dsi_offload *o, const Block *b, const ds_tensor *t,
                             dsi_optim_piece *pieces)
{
    const dsi_flat *f = o->f;
    bool whole = dsi_optim_needs_whole(o->optim);
    int n = 0;
    for (int j = b->first; j < o->n_local && f->param[o->local_params[j]].owned_at < b->end; j++) {
        int i = o->local_params[j];
        ds_tensor *x = dsi_offload_shard(o, i);
        dsi_range r;
        if (!block_range(o, b, i, &r) || !ds_grad(x)) continue;
        dsi_optim_piece *p = &pieces[n++];
        ds_dims shape = whole ? x->shape : ds_shape(r.length);
        *p = (dsi_optim_piece){.i = i, .begin = r.offset, .p = block_view(o, t, b, 0, r, shape)};
        for (int k = 0; k < DS_OPTIM_MOMENTS; k++)
            if (o->word_of[k]) p->moment[k] = block_view(o, t, b, o->word_of[k], r, shape);
    }
    return n;
}

/* The masters to the model, where the optimizer has not written them: in
 * float32, and to parameters in files; and parameters whose last piece it was
 * have been updated, by the optimizer too. */
static ds_status piece_finish(const dsi_offload *o, const dsi_optim_piece *p, int i,
                              dsi_offload_model model)
{
    int64_t end = p->begin + dsi_numel(p->p->shape);
    ds_status status = DS_OK;
    bool last = end == owned_elements(o->f, i);
    if (!o->optim->params[o->f->param[i].index].low) {
        ds_tensor *shard = model.shard(model.arg, i, true);
        status = dsi_optim_round(dsi_flat_range(shard, p->begin, end),
                                 dsi_flat_range(p->p, 0, end - p->begin));
    }
    if (status == DS_OK && last) status = model.done(model.arg, i, true);
    if (status == DS_OK && last) status = dsi_optim_count(o->optim, o->f->param[i].index);
    return status;
}

/* Updates the pieces of block b, which is in t, and copies them to the model. */
static ds_status block_update(dsi_offload *o, const Block *b, const ds_tensor *t, double g_scale,
                              dsi_offload_model model)
{
    ds_scope *scope = ds_scope_open();
    dsi_optim_piece *pieces = dsi_alloc((size_t)o->f->n * sizeof *pieces);
    int *of = dsi_alloc((size_t)o->f->n * sizeof *of), n = block_list_pieces(o, b, t, pieces);
    for (int k = 0; k < n; k++) {
        of[k] = pieces[k].i;
        pieces[k].i = o->f->param[of[k]].index;
    }
    ds_status status = dsi_optim_step_pieces(o->optim, pieces, n, g_scale);
    for (int k = 0; status == DS_OK && k < n; k++)
        status = piece_finish(o, &pieces[k], of[k], model);
    dsi_free(pieces);
    dsi_free(of);
    ds_scope_close(scope);
    return status;
}

static bool block_is_ready(const dsi_offload *o, const Block *b, bool (*ready)(void *arg, int i),
                           void *arg)
{
    const dsi_flat *f = o->f;
    for (int j = b->first; j < o->n_local && f->param[o->local_params[j]].owned_at < b->end; j++) {
        dsi_range r;
        if (block_range(o, b, o->local_params[j], &r) && !ready(arg, o->local_params[j]))
            return false;
    }
    return true;
}

/* Buffer 0 is free for a step. */
static ds_status held_release(dsi_offload *o)
{
    ds_status status = dsi_offload_store(o, -1);
    if (status == DS_OK) status = held_flush(o);
    o->held = -1;
    return status;
}

/* Starts to read blocks, in buffers whose blocks are written: at first in all,
 * later one is being written. */
static ds_status blocks_read_ahead(dsi_offload *o)
{
    int writing = o->next > 0 && o->buffers > 2;
    int ahead = o->o.pipeline_read ? o->buffers - 1 - writing : 0;
    ds_status status = DS_OK;
    for (; o->read <= o->next + ahead && o->read < o->in_file; o->read++) {
        status = dsi_swap_wait(o->aio, buffer_of(o, o->read));
        if (status != DS_OK) return status;
        block_start(o, o->read, buffer_of(o, o->read), false, o->words);
    }
    return status;
}

/* One block of the file is in each of: being read, updated, being written. */
ds_status dsi_offload_advance(dsi_offload *o, double g_scale, dsi_offload_model model,
                              bool (*ready)(void *arg, int i), void *arg)
{
    ds_status status = held_release(o);
    for (; status == DS_OK && o->next < o->in_file; o->next++) {
        int k = o->next;
        dsi_swap_buffer *u = buffer_of(o, k);
        status = blocks_read_ahead(o);
        if (status == DS_OK && ready && !block_is_ready(o, &o->block[k], ready, arg)) return DS_OK;
        if (status == DS_OK) status = dsi_swap_wait(o->aio, u);
        if (status == DS_OK) status = block_update(o, &o->block[k], u->t, g_scale, model);
        if (status != DS_OK) break;
        block_start(o, k, u, true, o->words);
        if (!o->o.pipeline_write) status = dsi_swap_wait(o->aio, u);
    }
    return status;
}

ds_status dsi_offload_begin(dsi_offload *o)
{
    ds_status status = held_release(o);
    if (status == DS_OK) status = buffers_wait(o); /* what the last step has written */
    o->next = o->read = 0;
    o->begun = status == DS_OK;
    return status == DS_OK ? blocks_read_ahead(o) : status;
}

/* Blocks that are held outside of a step are in buffer 0. A write that has
 * failed is told by the wait for its buffer, in the step. */
void dsi_offload_continue(dsi_offload *o)
{
    dsi_aio_progress(o->aio);
    while (o->begun && o->held < 0 && !o->next && o->read < dsi_min(o->buffers, o->in_file) &&
           dsi_aio_has_ended(o->aio, &o->buffer[o->read].op)) {
        dsi_swap_wait(o->aio, &o->buffer[o->read]);
        block_start(o, o->read, &o->buffer[o->read], false, o->words);
        o->read++;
    }
}

ds_status dsi_offload_read_ahead(dsi_offload *o)
{
    if (!o->o.pipeline_read || o->begun) return DS_OK;
    ds_status status = held_release(o);
    o->next = o->read = 0;
    o->begun = status == DS_OK;
    dsi_offload_continue(o);
    return status;
}

bool dsi_offload_end(dsi_offload *o)
{
    bool updated = o->begun && o->next > 0;
    if (o->begun) buffers_wait(o);
    o->begun = false;
    return updated;
}

ds_status dsi_offload_step(dsi_offload *o, double g_scale, dsi_offload_model model)
{
    ds_status status = o->begun ? DS_OK : dsi_offload_begin(o);
    if (status == DS_OK) status = dsi_offload_advance(o, g_scale, model, NULL, NULL);
    for (int k = o->in_file; status == DS_OK && k < o->blocks; k++)
        status = block_update(o, &o->block[k], o->block[k].memory, g_scale, model);
    if (status != DS_OK) buffers_wait(o);
    o->begun = false;
    return status;
}

/* ---- life ----------------------------------------------------------------------------------------------- */

/* One word for the master, one for each moment that a parameter group uses. */
static void choose_words(dsi_offload *o)
{
    o->words = 1;
    for (int k = 0; k < DS_OPTIM_MOMENTS; k++) {
        bool used = false;
        for (int g = 0; g < ds_optim_groups(o->optim); g++)
            used = used || dsi_optim_uses(o->optim, g, k);
        o->word_of[k] = used ? o->words++ : 0;
    }
}

static ds_status make_items(dsi_offload *o)
{
    const dsi_flat *f = o->f;
    dsi_device *host = dsi_device_get((ds_device){DS_CPU, 0});
    o->item = dsi_alloc((size_t)(f->n * o->words) * sizeof *o->item);
    for (int i = 0; i < f->n; i++) {
        int64_t n = owned_elements(f, i);
        for (int w = 0; n && w < o->words; w++) {
            Item *it = item_of(o, i, w);
            ds_dims shape = n == f->param[i].n ? f->param[i].x->shape : ds_shape(n);
            ds_scope *scope = ds_scope_open();
            ds_tensor *x = dsi_new_lazy(host, DS_F32, shape, item_materialize, it);
            *it = (Item){o, i, w, dsi_ref(x)};
            ds_scope_close(scope);
            if (!x) return ds_error_status();
        }
    }
    return DS_OK;
}

static ds_status offload_open_file(dsi_offload *o, const char *folder)
{
    const Block *last = &o->block[o->blocks - 1];
    int64_t bytes = o->in_file < o->blocks ? o->block[o->in_file].at
                                           : last->at + last->word_stride * o->words * WORD;
    dsi_text name = dsi_text_of("optimizer_rank%d_%lld_%lx", o->f->rank, (long long)getpid(),
                                (unsigned long)(uintptr_t)o);
    ds_status status = dsi_aio_file_open(&o->file, "offload_optimizer", folder, name.s, bytes);
    dsi_text_free(&name);
    return status;
}

static ds_status offload_make_memory(dsi_offload *o)
{
    for (int i = 0; i < o->buffers; i++) {
        o->buffer[i].t = new_memory(o->capacity);
        if (!o->buffer[i].t) return ds_error_status();
    }
    if (o->o.pin_memory)
        dsi_swap_pin(o->aio, o->buffer, sizeof *o->buffer, o->buffers,
                     (size_t)(o->capacity * WORD));
    for (int k = o->in_file; k < o->blocks; k++) {
        Block *b = &o->block[k];
        b->memory = new_memory(b->word_stride * o->words);
        if (!b->memory) return ds_error_status();
    }
    return DS_OK;
}

/* Masters with the model's values, into t, where all else is 0. */
static ds_status block_fill(const dsi_offload *o, const Block *b, ds_tensor *t,
                            dsi_offload_model model)
{
    const dsi_flat *f = o->f;
    if (!dsi_fill(t, 0)) return ds_error_status();
    for (int j = b->first; j < o->n_local && f->param[o->local_params[j]].owned_at < b->end; j++) {
        int i = o->local_params[j];
        dsi_range r;
        if (!block_range(o, b, i, &r)) continue;
        int64_t end = r.offset + r.length;
        ds_tensor *x = dsi_flat_range(model.shard(model.arg, i, false), r.offset, end);
        if (dsi_copy(block_view(o, t, b, 0, r, ds_shape(r.length)), x) != DS_OK ||
            (end == owned_elements(f, i) && model.done(model.arg, i, false) != DS_OK))
            return ds_error_status();
    }
    return DS_OK;
}

/* Writes the first masters and moments, block by block through the buffers. */
static ds_status fill_blocks(dsi_offload *o, dsi_offload_model model)
{
    ds_status status = DS_OK;
    for (int k = 0; status == DS_OK && k < o->blocks; k++) {
        Block *b = &o->block[k];
        dsi_swap_buffer *u = buffer_of(o, k);
        ds_scope *scope = ds_scope_open();
        if (!b->memory) status = dsi_swap_wait(o->aio, u);
        if (status == DS_OK) status = block_fill(o, b, b->memory ? b->memory : u->t, model);
        if (status == DS_OK && !b->memory)
            block_start(o, k, u, true, o->o.fast_init ? 1 : o->words);
        ds_scope_close(scope);
    }
    return buffers_wait(o) == DS_OK ? status : ds_error_status();
}

dsi_offload *dsi_offload_new(const dsi_flat *f, ds_optim *optim, const char *folder,
                             const dsi_offload_opts *opts, dsi_offload_model model)
{
    dsi_offload *o = dsi_alloc(sizeof *o);
    *o = (dsi_offload){.f = f, .optim = optim, .o = *opts, .held = -1, .file.fd = -1};
    choose_words(o);
    o->local_params = dsi_alloc((size_t)f->n * sizeof *o->local_params);
    for (int i = 0; i < f->n; i++)
        if (owned_elements(f, i)) o->local_params[o->n_local++] = i;
    cut_blocks(o);
    o->buffers = (int)dsi_min(dsi_max(opts->buffer_count, 1), dsi_max(o->in_file, 1));
    o->buffer = dsi_alloc((size_t)o->buffers * sizeof *o->buffer);
    o->aio = dsi_aio_new(&opts->aio);
    dsi_optim_keep(optim, item_of_moment, o);
    if (offload_open_file(o, folder) == DS_OK && offload_make_memory(o) == DS_OK &&
        fill_blocks(o, model) == DS_OK && make_items(o) == DS_OK)
        return o;
    dsi_offload_free(o);
    return NULL;
}

void dsi_offload_free(dsi_offload *o)
{
    if (!o) return;
    buffers_wait(o);
    dsi_optim_keep(o->optim, NULL, NULL);
    for (int k = 0; o->item && k < o->f->n * o->words; k++) {
        if (!o->item[k].x) continue;
        dsi_set_materialize_hook(o->item[k].x, NULL, NULL);
        dsi_unref(o->item[k].x);
    }
    for (int i = 0; i < o->buffers; i++) dsi_unref(o->buffer[i].t);
    for (int k = 0; k < o->blocks; k++) dsi_unref(o->block[k].memory);
    dsi_aio_free(o->aio);
    dsi_aio_file_close(&o->file);
    dsi_free(o->local_params);
    dsi_free(o->item);
    dsi_free(o->buffer);
    dsi_free(o->block);
    dsi_free(o);
}

int64_t dsi_offload_memory(const dsi_offload *o)
{
    int64_t bytes = 0;
    for (int i = 0; i < o->buffers; i++) bytes += (int64_t)o->buffer[i].t->storage->bytes;
    for (int k = o->in_file; k < o->blocks; k++)
        bytes += (int64_t)o->block[k].memory->storage->bytes;
    return bytes;
}

int64_t dsi_offload_file(const dsi_offload *o) { return o->in_file ? o->file.bytes : 0; }
