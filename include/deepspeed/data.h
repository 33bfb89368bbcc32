/* deepspeed/data.h: data sets, transforms, the loader, CIFAR-10.
 *
 * A data set says the shape of one sample and writes sample i where it is told; the loader owns the
 * batch and hands out row addresses. So nothing collates and nothing is copied twice.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_DATA_H
#define DEEPSPEED_DATA_H

#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_dataset ds_dataset;
typedef struct ds_loader ds_loader;

/* ---- data sets ------------------------------------------------------------------------------------ */

#define DS_MAX_FIELDS 8

typedef struct ds_field { /* one tensor of a sample: its dtype and shape without the batch */
    ds_dtype dtype;
    ds_dims shape;
    const char *name;
} ds_field;

typedef struct ds_dataset_type {
    const char *name;
    size_t self_size;
    int64_t (*len)(void *self);
    /* Writes field f of sample i to field[f]. Called from loader threads, several at once. */
    ds_status (*get)(void *self, int64_t i, void **field);
    void (*free)(void *self); /* optional */
} ds_dataset_type;

DS_API ds_dataset *ds_dataset_new(const ds_dataset_type *type, int n_fields,
                                  const ds_field *fields);
DS_API void ds_dataset_free(ds_dataset *d);
DS_API void *ds_dataset_self(ds_dataset *d);
DS_API const char *ds_dataset_name(const ds_dataset *d); /* its type's */
DS_API int64_t ds_dataset_len(ds_dataset *d);
DS_API int ds_dataset_fields(const ds_dataset *d);
DS_API const ds_field *ds_dataset_field(const ds_dataset *d, int f);
DS_API ds_status ds_dataset_get(ds_dataset *d, int64_t i, void **field);

/* For what differs from epoch to epoch: on_epoch is called when one begins, never while a thread is in
 * get. A data set over another one passes it on by ds_dataset_set_epoch; the loader begins it. */
DS_API void ds_dataset_on_epoch(ds_dataset *d, void (*on_epoch)(void *self, int64_t epoch));
DS_API void ds_dataset_set_epoch(ds_dataset *d, int64_t epoch);

/* Takes d: samples begin .. begin + n - 1 of it, no more than there are. */
DS_API ds_dataset *ds_subset(ds_dataset *d, int64_t begin, int64_t n);

/* n tensors with the same first dimension; sample i is row i of each. Copies what they hold. */
DS_API ds_dataset *ds_tensor_dataset(ds_tensor **x, int n);

/* ---- transforms: data sets over a data set; each takes d and changes field 0, an image [C,H,W] ----- */

DS_API ds_dataset *ds_transform_to_float(ds_dataset *d); /* uint8 -> float32, x / 255 */
/* (x - mean[c]) / std[c]; n values: one for all channels, or one each. */
DS_API ds_dataset *ds_transform_normalize(ds_dataset *d, int n, const float *mean,
                                          const float *std);
/* padding zeros on every side, then a random H x W window; the draw depends on (seed, epoch, i) alone. */
DS_API ds_dataset *ds_transform_random_crop(ds_dataset *d, int64_t h, int64_t w, int padding,
                                            uint64_t seed);
/* left-right */
DS_API ds_dataset *ds_transform_random_flip(ds_dataset *d, double p, uint64_t seed);
/* Every floating-point field as float32, float64, float16 or bfloat16, rounded to nearest; the others stay. */
DS_API ds_dataset *ds_transform_cast(ds_dataset *d, ds_dtype dtype);

/* ---- the loader ------------------------------------------------------------------------------------ */

typedef struct ds_loader_opts {
    int64_t batch_size;
    bool shuffle;   /* a new order each epoch, PyTorch's for the same ds_seed */
    bool drop_last; /* no short batch at the end */
    int workers;    /* threads that prefetch; 0: batches are made in ds_loader_next */
    int prefetch;   /* batches ahead of use, in all; 0: 2 for each worker */
    /* Distributed: rank of ranks in the order of torch's DistributedSampler, which depends on seed and
     * epoch alone; ranks 0: all samples in the loader's own order. */
    int rank, ranks;
    uint64_t seed; /* the DistributedSampler's */
    bool
        drop_uneven; /* its drop_last: what is no turn of all ranks is left out; else the first samples make it up */
    /* Distributed, not in the DistributedSampler's order: the epoch is cut into batches as they are, of which rank
     * r has numbers r, r + ranks, .., and is repeated until it is whole ones of so many samples (drop_last: the
     * rest is left out). The samples of such a global batch, and of its parts, do not depend on ranks. 0: off. */
    int64_t global_batch;
} ds_loader_opts;

typedef struct ds_batch {
    ds_tensor *x; /* field 0: [size, ...] */
    ds_tensor *y; /* field 1, or NULL */
    ds_tensor *field[DS_MAX_FIELDS];
    int64_t size;         /* samples in this batch */
    const int64_t *index; /* [size] their numbers in the data set; until the turn ends */
} ds_batch;

/* Takes data. */
#define ds_loader_new(data, ...) \
    ds_loader_new_with(data, (ds_loader_opts){.batch_size = __VA_ARGS__})
DS_API ds_loader *ds_loader_new_with(ds_dataset *data, ds_loader_opts opts);
DS_API void ds_loader_free(ds_loader *l);

/* The next batch; false at the end of an epoch (the next call begins the next one) and on failure:
 * of this thread in the turn before, or of a sample's get, which ds_error() then names. A turn is a
 * scope: what was computed since the last call ends here, and so does the batch, but for what was
 * kept (ds_keep(b.x)). */
DS_API bool ds_loader_next(ds_loader *l, ds_batch *out);
/* leave the epoch early: ends the turn, discards the rest */
DS_API void ds_loader_stop(ds_loader *l);
DS_API int64_t ds_loader_len(const ds_loader *l); /* batches in an epoch */
DS_API int64_t ds_loader_epoch(const ds_loader *l);
DS_API void ds_loader_set_epoch(ds_loader *l, int64_t epoch); /* as DistributedSampler.set_epoch */
DS_API ds_dataset *ds_loader_dataset(ds_loader *l);           /* borrowed */

/* Where the loader stands, to go on from there in another run: the next batch is the same. */
typedef struct ds_loader_position {
    int64_t epoch, batch; /* batches of this epoch already handed out */
    uint64_t seed;        /* of this epoch's order */
} ds_loader_position;
/* fixes the order of an epoch about to begin */
DS_API ds_loader_position ds_loader_tell(ds_loader *l);
DS_API ds_status ds_loader_seek(ds_loader *l, ds_loader_position position);

/* ---- CIFAR-10 -------------------------------------------------------------------------------------- */

typedef enum ds_split { DS_TRAIN = 0, DS_TEST } ds_split;

typedef struct ds_cifar10_opts {
    const char *url; /* NULL: $DS_CIFAR10_URL or its home page; file:// works */
    bool download;   /* fetch cifar-10-binary.tar.gz if the folder has no CIFAR-10, and unpack it */
    bool quiet;      /* print nothing */
    bool raw;        /* samples as uint8 [3,32,32]; else float32 (x/255 - 0.5)/0.5 */
    /* not the full set but the built-in sample: as installed, or unpacked to folder/cifar-10-sample */
    bool sample;
    /* The sample instead of the full set if the folder has none and, with .download, the network or
     * the home page does not give it. Damaged data, a full disk or a mirror that answers with
     * something else stay failures. */
    bool fallback_sample;
} ds_cifar10_opts;

/* CIFAR-10 (Krizhevsky 2009) in folder: cifar-10-batches-bin or cifar-10-batches-py, whichever is
 * there, checked by sizes, structure and labels; what is damaged is refused by file and record, never
 * fetched over. Samples: image [3,32,32], label int64 []; read from disk one by one, so that the set
 * takes 50 kB of memory. Says "Files already downloaded and verified" to stdout, as torchvision does,
 * and what is not the full set, progress, and waiting for another process's download to stderr.
 * ds_cifar10 downloads (and does nothing of the other options).
 *
 * A download goes on where an earlier one broke off, and its md5 is checked; an archive that lies in
 * the folder already is used. For a mirror whose archive is another one, $DS_CIFAR10_MD5 says its md5,
 * or "any". $DS_CIFAR10_SAMPLE: where the archive of the sample is, if not where it was installed. */
DS_API ds_dataset *ds_cifar10(const char *folder, ds_split split);
DS_API ds_dataset *ds_cifar10_with(const char *folder, ds_split split, ds_cifar10_opts opts);
DS_API const char *ds_cifar10_class(int label); /* "plane", "car", ... as the tutorial names them */

/* n images float [n,3,h,w] in [-1, 1] as one grid of rows of `columns` with a border of 2 -> PNG (torchvision.utils.make_grid). */
DS_API DS_MUST_CHECK ds_status ds_save_image_grid(ds_tensor *images, int columns, const char *path);

#ifdef __cplusplus
}
#endif
#endif
