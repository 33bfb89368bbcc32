/* base/rng.h: mt19937 with the streams of PyTorch's CPU generator
 * (at::CPUGeneratorImpl).
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct dsi_rng {
    uint64_t seed;
    uint32_t state[624];
    int next;        /* words of state already used; 624: twist first */
    bool has_normal; /* the second value of a Box-Muller pair waits */
    double normal;
} dsi_rng;

void dsi_rng_seed(dsi_rng *g, uint64_t seed);
uint32_t dsi_rng_u32(dsi_rng *g);
uint64_t dsi_rng_u64(dsi_rng *g); /* random64(): the second word is the low half */
int64_t dsi_rng_i64(dsi_rng *g);  /* torch.empty((), dtype=int64).random_() */
int64_t dsi_rng_below(dsi_rng *g, int64_t low, int64_t high); /* torch.randint: low <= x < high */

/* n values as Tensor.uniform_(low, high) and normal_(mean, std) draw them;
 * normal_ has its own order from 16 elements on. */
void dsi_rng_uniform_f32(dsi_rng *g, float *x, int64_t n, double low, double high);
void dsi_rng_uniform_f64(dsi_rng *g, double *x, int64_t n, double low, double high);
void dsi_rng_normal_f32(dsi_rng *g, float *x, int64_t n, double mean, double std);
void dsi_rng_normal_f64(dsi_rng *g, double *x, int64_t n, double mean, double std);
void dsi_rng_permutation(dsi_rng *g, int64_t *x, int64_t n); /* torch.randperm */

/* How many of n weights are above 0; -1: *bad is the first that is below 0 or
 * not finite. */
int64_t dsi_rng_weights(const double *w, int64_t n, int64_t *bad);

/* torch.multinomial of n weights, finite, none below 0, some above. narrow: of
 * float32, else of float64.
 *   draw  with replacement: out[d] is the first index whose share of the running
 *         sums reaches a uniform number
 *   race  without, and for one draw: the indices of the largest places, the
 *         largest first, are drawn; a weight of 0 has place -1 */
void dsi_rng_draw(dsi_rng *g, const double *w, int64_t n, bool narrow, int64_t *out, int64_t draws);
void dsi_rng_race(dsi_rng *g, const double *w, int64_t n, bool narrow, double *place);

/* As the bytes of torch.get_rng_state(), and back: false, changing nothing, if
 * they are no such state. */
#define DSI_RNG_STATE_BYTES 5056
void dsi_rng_save(const dsi_rng *g, void *bytes);
bool dsi_rng_load(dsi_rng *g, const void *bytes);

/* The generator of this thread, seeded by ds_seed; at first with PyTorch's
 * default seed 67280421310721. */
dsi_rng *dsi_rng_default(void);
