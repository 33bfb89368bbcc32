/* comm/thread_work.c: collectives on memory that all ranks see.
 *
 * Nothing is sent: whoever runs a piece reads it where the ranks have it and
 * writes it where they want it. A collective is `chunks` stretches of n
 * elements, and a stretch is cut into pieces of PIECE elements:
 *
 *     all_reduce, reduce_to, broadcast     1 stretch: x
 *     reduce_scatter, scatter_from         rank q receives stretch q
 *     all_gather, gather_to                stretch q comes from rank q
 *     all_to_all                           stretch q = a size + b is sent from a to b; one piece each
 *     send and recv                        1 stretch, from of[0] to of[1]
 *
 * Reductions read a block of all ranks before they write it anywhere, so they
 * may be in place.
 * SPDX-License-Identifier: MIT */
#include "reduce.h"
#include "thread.h"

#include <stdio.h>
#include <string.h>

#define PIECE 16384 /* elements */

typedef struct stretch {
    dsi_request *const *of;
    int ranks, q;
    int64_t begin, end; /* elements of the stretch */
} stretch;

/* How many equal parts the work has; see the head of this file. */
static int64_t request_stretches(const dsi_request *r, int ranks)
{
    switch (r->what) {
    case DSI_REDUCE_SCATTER:
    case DSI_SCATTER:
    case DSI_ALL_GATHER:
    case DSI_GATHER:
        return ranks;
    case DSI_ALL_TO_ALL:
    case DSI_ALL_TO_ALL_ROWS:
        return (int64_t)ranks * ranks;
    case DSI_BARRIER:
        return 0;
    default:
        return 1;
    }
}

static bool stretch_is_one_piece(const dsi_request *r) /* a stretch is one piece */
{
    return r->what == DSI_ALL_TO_ALL || r->what == DSI_ALL_TO_ALL_ROWS;
}

int64_t dsi_pieces(const dsi_request *any, int ranks)
{
    int64_t each = stretch_is_one_piece(any) ? 1 : (any->n + PIECE - 1) / PIECE;
    return request_stretches(any, ranks) * each;
}

static const char *request_in_at(const dsi_request *r, int64_t i)
{
    return (const char *)r->in + i * (int64_t)ds_dtype_size(r->dtype);
}

static char *request_out_at(const dsi_request *r, int64_t i)
{
    return (char *)r->out + i * (int64_t)ds_dtype_size(r->dtype);
}

static void elements_copy(char *to, const char *from, int64_t n, ds_dtype dtype)
{
    if (n && to != from) memcpy(to, from, (size_t)n * ds_dtype_size(dtype));
}

/* The sum of the stretch, `first` elements on in every rank's input, to out[to]
 * of ranks from .. to-1. */
static void stretch_reduce(const stretch *s, int64_t in_first, int from, int to, double *squares)
{
    const dsi_request *r = s->of[0];
    const void *in[DSI_THREAD_RANKS];
    void *out[DSI_THREAD_RANKS];
    for (int k = 0; k < s->ranks; k++) in[k] = request_in_at(s->of[k], in_first + s->begin);
    for (int k = from; k < to; k++) out[k - from] = request_out_at(s->of[k], s->begin);
    dsi_reduce_ranks(r->dtype, r->op, s->ranks, in, s->end - s->begin, to - from, out, squares);
}

/* The piece of stretch q, which is rank q's input, to the outputs of ranks from
 * .. to-1. */
static void stretch_gather(const stretch *s, int from, int to)
{
    const dsi_request *source = s->of[s->q];
    for (int k = from; k < to; k++)
        elements_copy(request_out_at(s->of[k], s->q * source->n + s->begin),
                      request_in_at(source, s->begin), s->end - s->begin, source->dtype);
}

static int64_t counts_sum(const int64_t *x, int n)
{
    int64_t total = 0;
    for (int i = 0; i < n; i++) total += x[i];
    return total;
}

/* Rows: from whom they come and where they go follows from the counts of both
 * ranks. */
static void stretch_all_to_all(const stretch *s)
{
    int a = s->q / s->ranks, b = s->q % s->ranks;
    const dsi_request *from = s->of[a], *to = s->of[b];
    int64_t n = from->n, source = b * n, place = a * n;
    if (from->what == DSI_ALL_TO_ALL_ROWS) {
        n = from->counts[b];
        source = counts_sum(from->counts, b);
        place = counts_sum(to->counts + s->ranks, a);
    }
    elements_copy(request_out_at(to, place), request_in_at(from, source), n, from->dtype);
}

void dsi_request_add_squares(dsi_request *const *of, int64_t pieces, const double *squares)
{
    bool scatters = of[0]->what == DSI_REDUCE_SCATTER;
    int64_t each = (of[0]->n + PIECE - 1) / PIECE;
    for (int64_t p = 0; p < pieces; p++) *of[scatters ? p / each : 0]->squares += squares[p];
}

/* Any thread may run any piece; two pieces never write the same element. */
void dsi_run_piece(dsi_request *const *of, int ranks, int64_t piece, double *squares)
{
    const dsi_request *any = of[0];
    int64_t each = stretch_is_one_piece(any) ? 1 : (any->n + PIECE - 1) / PIECE;
    int64_t begin = piece % each * PIECE, end = begin + PIECE < any->n ? begin + PIECE : any->n;
    stretch s = {of, ranks, (int)(piece / each), begin, end};
    int64_t count = end - begin;
    switch (any->what) {
    case DSI_ALL_REDUCE:
        stretch_reduce(&s, 0, 0, ranks, squares);
        break;
    case DSI_REDUCE:
        stretch_reduce(&s, 0, any->root, any->root + 1, NULL);
        break;
    case DSI_REDUCE_SCATTER:
        stretch_reduce(&s, s.q * any->n, s.q, s.q + 1, squares);
        break;
    case DSI_ALL_GATHER:
        stretch_gather(&s, 0, ranks);
        break;
    case DSI_GATHER:
        stretch_gather(&s, any->root, any->root + 1);
        break;
    case DSI_SCATTER:
        elements_copy(request_out_at(of[s.q], begin),
                      request_in_at(of[any->root], s.q * any->n + begin), count, any->dtype);
        break;
    case DSI_BROADCAST:
        for (int k = 0; k < ranks; k++)
            elements_copy(request_out_at(of[k], begin), request_in_at(of[any->root], begin), count,
                          any->dtype);
        break;
    case DSI_SEND:
        elements_copy(request_out_at(of[1], begin), request_in_at(any, begin), count, any->dtype);
        break;
    default:
        stretch_all_to_all(&s);
        break;
    }
}

/* ---- agreement -------------------------------------------------------------------------------------- */

/* Everything that decides how work is cut must be equal: pieces are numbered by
 * one rank's request, and computed with all ranks' pointers. Purposes may
 * differ. */
static bool requests_match(const dsi_request *a, const dsi_request *b)
{
    if (a->what == DSI_SEND) return a->dtype == b->dtype && a->n == b->n; /* b: its recv */
    return a->what == b->what && a->dtype == b->dtype && a->n == b->n && a->op == b->op &&
           a->root == b->root;
}

/* Compares all ranks' requests with rank 0's before anything is read: a wrong
 * size would read beyond somebody's memory. */
bool dsi_requests_agree(dsi_request *const *of, int ranks, char *why, size_t room)
{
    for (int r = 1; r < ranks; r++)
        if (!requests_match(of[0], of[r])) {
            int n = snprintf(why, room, "ranks do not agree: rank %d calls %s", of[0]->comm->rank,
                             dsi_request_text(of[0]));
            snprintf(why + n, room - (size_t)n, ", rank %d calls %s", of[r]->comm->rank,
                     dsi_request_text(of[r]));
            return false;
        }
    for (int a = 0; of[0]->counts && a < ranks; a++)
        for (int b = 0; b < ranks; b++) {
            int64_t sent = of[a]->counts[b], expected = of[b]->counts[ranks + a];
            if (sent == expected) continue;
            snprintf(why, room,
                     "all_to_all_rows: rank %d sends %lld elements to rank %d, which expects %lld",
                     a, (long long)sent, b, (long long)expected);
            return false;
        }
    return true;
}
