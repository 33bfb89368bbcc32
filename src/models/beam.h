/* models/beam.h: beam search and beam sampling: which rows of a step continue,
 * and which sequences are the best so far.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/models.h>

typedef struct dsi_beams dsi_beams;

/* A row of a batch takes what another has, from column `from` on; before it
 * both have the same tokens. No row is the source of one copy and the target of
 * another. */
typedef struct dsi_row_copy {
    int64_t to, source, from;
} dsi_row_copy;

/* The rows of a step: ids [prompts beams,columns], of which those below `at`
 * are filled, the first `prompt` of them by the prompts; pads [prompts beams]:
 * padding on the left. */
typedef struct dsi_beam_rows {
    int64_t *ids, room, prompt, at;
    const int64_t *pads;
} dsi_beam_rows;

/* Whether o's options of beams and of returned sequences are valid for a model
 * of that vocabulary; false with the message. */
bool dsi_beams_check(const ds_generate_opts *o, int64_t vocab);
/* A search for each of `prompts` prompts; o is borrowed. */
dsi_beams *dsi_beams_new(const ds_generate_opts *o, int64_t prompts, int64_t vocab);
void dsi_beams_free(dsi_beams *b);
/* How many of the most probable tokens of each row are enough for a step; 0:
 * all are needed, since options change their order. */
int64_t dsi_beams_enough(const dsi_beams *b);
/* Logarithms of probabilities [prompts beams,n], by falling values, and their
 * tokens; ids NULL: of all n = V tokens, by id. */
typedef struct dsi_beam_scores {
    const float *log_probs;
    const int64_t *ids;
    int64_t n;
} dsi_beam_scores;
/* Appends a token to each row, at column rows.at. copies [prompts beams]
 * receives the rows that became of others, done already in ids, but not in a
 * cache; *n: how many. false: the search has ended. */
bool dsi_beams_step(dsi_beams *b, dsi_beam_scores scores, dsi_beam_rows rows, dsi_row_copy *copies,
                    int64_t *n);
/* A sequence that ended, the i-th best of a prompt: its new tokens, borrowed. */
typedef struct dsi_beam_sequence {
    int64_t *ids, n;
    float score; /* sum of the logarithms / n^length_penalty */
    bool ended;  /* false: none, of -1e9 */
} dsi_beam_sequence;
const dsi_beam_sequence *dsi_beams_best(const dsi_beams *b, int64_t prompt, int64_t i);
