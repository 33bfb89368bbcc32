/* deepspeed/data.h: data sets, transforms, the loader, CIFAR-10, image folders.
 *
 * A data set has samples of one or more fields, each a tensor of fixed shape;
 * its get writes sample i to memory that the loader owns, a row of the batch,
 * so that nothing is collated or copied twice.
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

/* One tensor of a sample: dtype, shape without the batch ({0}: a scalar, such
 * as a label), and a name for messages, which is copied. */
typedef struct ds_field {
    ds_dtype dtype;
    ds_dims shape;
    const char *name;
} ds_field;

/* A data set of your own (torch.utils.data.Dataset). */
typedef struct ds_dataset_type {
    const char *name; /* for messages; static */
    size_t self_size; /* bytes of your struct, zeroed for you */
    int64_t (*len)(void *self);
    /* Writes field f of sample i to field[f]: the field's elements, row-major.
     * Loader threads call it, several at the same time. */
    ds_status (*get)(void *self, int64_t i, void **field);
    void (*free)(void *self); /* or NULL */
} ds_dataset_type;

/* A data set of that type with 1 to DS_MAX_FIELDS fields, which are copied.
 * Fill in ds_dataset_self. Refuses (NULL) a type without len or get, and shapes
 * of negative size. */
DS_API ds_dataset *ds_dataset_new(const ds_dataset_type *type, int n_fields,
                                  const ds_field *fields);
DS_API void ds_dataset_free(ds_dataset *d);              /* NULL passes */
DS_API void *ds_dataset_self(ds_dataset *d);             /* your struct */
DS_API const char *ds_dataset_name(const ds_dataset *d); /* its type's */

/* The number of samples; of fields; field f, borrowed, 0 <= f <
 * ds_dataset_fields. */
DS_API int64_t ds_dataset_len(ds_dataset *d);
DS_API int ds_dataset_fields(const ds_dataset *d);
DS_API const ds_field *ds_dataset_field(const ds_dataset *d, int f);

/* Writes sample i, 0 <= i < ds_dataset_len, to field[0 .. fields - 1], as the
 * type's get. Refuses another i. */
DS_API ds_status ds_dataset_get(ds_dataset *d, int64_t i, void **field);

/* Sets a function that is called when an epoch starts, never while a thread is
 * in get: for what differs from epoch to epoch, such as random transforms. The
 * loader calls ds_dataset_set_epoch; a data set that wraps another one passes
 * it on. */
DS_API void ds_dataset_on_epoch(ds_dataset *d, void (*on_epoch)(void *self, int64_t epoch));
DS_API void ds_dataset_set_epoch(ds_dataset *d, int64_t epoch);

/* torch.utils.data.Subset: the n samples of d from begin on, at most those that
 * there are. Takes d. */
DS_API ds_dataset *ds_subset(ds_dataset *d, int64_t begin, int64_t n);
/* The same of the n samples that index, which is copied, names. */
DS_API ds_dataset *ds_subset_of(ds_dataset *d, const int64_t *index, int64_t n);

/* torch.utils.data.random_split: out[i] has lengths[i] samples of d, each
 * sample is in one of the n parts: PyTorch's for the same ds_seed. Lengths are
 * whole numbers that add up to d's, or shares that add up to 1. Takes d, which
 * is freed with its last part. Its random transforms stay in epoch 0: put them
 * around the parts. False, with the message, if the lengths do not fit. */
DS_API bool ds_random_split(ds_dataset *d, const double *lengths, int n, ds_dataset **out);

/* torch.utils.data.ConcatDataset: the samples of n data sets with the same
 * fields, one set after the other. Takes them. */
DS_API ds_dataset *ds_concat_dataset(ds_dataset **d, int n);

/* torch.utils.data.TensorDataset of n tensors with the same first dimension:
 * sample i is row i of each. Copies their elements. */
DS_API ds_dataset *ds_tensor_dataset(ds_tensor **x, int n);

/* ---- tokens of language models ----------------------------------------------------- */

struct ds_tokenizer;

typedef struct ds_tokens_pack_opts {
    const char *const *files; /* n_files paths */
    int n_files;
    const char *end_token;    /* put behind each document; NULL: none */
    int64_t *tokens;          /* if not NULL: receives their number */
    const char *chat_folder;  /* of the template of chats, for rows with messages
                                 (ds_chat_template_load); NULL: these are refused */
    bool assistant_only_loss; /* only what the template has in {% generation %} blocks counts */
} ds_tokens_pack_opts;

/* Tokenizes text into the file `out`, once, for ds_token_dataset. A path that
 * ends in .jsonl or .json has a document on each line: {"text": ...}, or
 * {"prompt": ..., "completion": ...}, of which the prompt's tokens are labels
 * that do not count; any other file is one document. Conversations are those of
 * TRL's SFTTrainer: {"messages": [...]}, or lists of messages as prompt and
 * completion, with "tools" and "chat_template_kwargs"; their tokens are those
 * of apply_chat_template, without end_token. DS_EFORMAT names a line that is
 * none of these. */
#define ds_tokens_pack(tokenizer, out, ...) \
    ds_tokens_pack_with(tokenizer, out, (ds_tokens_pack_opts){.files = __VA_ARGS__})
DS_API ds_status ds_tokens_pack_with(struct ds_tokenizer *t, const char *out,
                                     ds_tokens_pack_opts opts);

/* The windows of `window` tokens of such a file, one after the other; a rest is
 * left out, and so are windows of which no label counts, whose loss would be
 * NaN. Fields: ids int64 [window], labels int64 [window], the same ids, -100
 * where they do not count: the inputs of a language model. The file is mapped.
 * Refuses (NULL) a file that is damaged, shorter than a window, or without one
 * that counts. */
DS_API ds_dataset *ds_token_dataset(const char *path, int64_t window);

/* ---- folders of images ------------------------------------------------------------ */

/* How images of any size become height x width. */
typedef enum ds_image_fit {
    DS_RESIZE = 0,         /* Resize((height, width)): the whole image, whatever its shape */
    DS_CENTER_CROP,        /* Resize(resize), CenterCrop((height, width)) */
    DS_RANDOM_RESIZED_CROP /* RandomResizedCrop((height, width), scale, ratio) */
} ds_image_fit;

typedef struct ds_image_folder_opts {
    int64_t height, width; /* pixels of the samples; width 0: as many as height */
    ds_image_fit fit;
    int64_t resize;  /* of DS_CENTER_CROP: pixels of the shorter edge before the crop, at least
                        those of the crop's longer one; 0: 256 for a crop of 224 */
    double scale[2]; /* of a random crop: least and largest share of the area; 0: 0.08, 1 */
    double ratio[2]; /* of a random crop: least and largest width / height; 0: 3/4, 4/3 */
    bool bicubic;    /* else bilinear; both with antialias, as torchvision's of PIL images */
    uint64_t seed;   /* a random crop depends on (seed, epoch, i) alone */
} ds_image_folder_opts;

/* torchvision.datasets.ImageFolder: the JPEG and PNG files of root/<class> and
 * of folders in it, in torchvision's order; label i is the i-th class by name.
 * Names that begin with a dot are left out. Fields: image uint8
 * [3,height,width], with Pillow's values; label int64 []. A get reads and
 * decodes one file: use workers. Only paths are kept in memory.
 *
 *     ds_dataset *d = ds_image_folder("train", 224, .fit = DS_RANDOM_RESIZED_CROP);
 *     d = ds_transform_normalize(ds_transform_to_float(d), 3, mean, std);
 *
 * JPEG needs libturbojpeg, which is opened by the first such file. Refuses
 * (NULL) a folder without folders, a class without images, and files of kinds
 * that ImageFolder reads and this does not (.bmp, .ppm, .pgm, .tif, .webp). A
 * file that is damaged or cut short is an error of its get, with its path. */
#define ds_image_folder(root, ...) \
    ds_image_folder_with(root, (ds_image_folder_opts){.height = __VA_ARGS__})
DS_API ds_dataset *ds_image_folder_with(const char *root, ds_image_folder_opts opts);

/* Of such a data set, before transforms take it: the number of classes
 * (len(dataset.classes)); the name of a label; the path of sample i below root.
 * Names are borrowed, and live as long as it; NULL: there is no such one. */
DS_API int64_t ds_image_folder_classes(ds_dataset *d);
DS_API const char *ds_image_folder_class(ds_dataset *d, int64_t label);
DS_API const char *ds_image_folder_path(ds_dataset *d, int64_t i);

/* ---- transforms (torchvision.transforms) -------------------------------------------- */

/* Each returns a data set that takes d and changes field 0, an image [C,H,W].
 * NULL, and d is freed, if it refuses the field. */

/* ToTensor: uint8 -> float32, x / 255. */
DS_API ds_dataset *ds_transform_to_float(ds_dataset *d);

/* Normalize: (x - mean[c]) / std[c]; mean and std have n values, which are
 * copied: one for all channels (n = 1) or one for each. Refuses a std of 0. */
DS_API ds_dataset *ds_transform_normalize(ds_dataset *d, int n, const float *mean,
                                          const float *std);

/* Resize((h, w)) of uint8 [3,H,W], bilinear or bicubic with antialias: the
 * bytes of torchvision's for PIL images. h and w are 1 to 16384. */
DS_API ds_dataset *ds_transform_resize(ds_dataset *d, int64_t h, int64_t w, bool bicubic);

/* RandomCrop(size=(h, w), padding): a random window of the image with `padding`
 * zeros on each side, which depends on (seed, epoch, i) alone. */
DS_API ds_dataset *ds_transform_random_crop(ds_dataset *d, int64_t h, int64_t w, int padding,
                                            uint64_t seed);

/* RandomHorizontalFlip: left and right change places with probability p, 0 to
 * 1, which depends on (seed, epoch, i) alone. */
DS_API ds_dataset *ds_transform_random_flip(ds_dataset *d, double p, uint64_t seed);

/* Each floating-point field as float32, float64, float16 or bfloat16, rounded
 * to nearest; other fields stay. */
DS_API ds_dataset *ds_transform_cast(ds_dataset *d, ds_dtype dtype);

/* ---- the loader ------------------------------------------------------------------------------------ */

typedef struct ds_loader_opts {
    int64_t batch_size; /* samples, 1 or more */
    bool shuffle;       /* a new order in each epoch, PyTorch's for the same ds_seed */
    bool drop_last;     /* leave out a smaller batch at the end */
    /* torch.utils.data.WeightedRandomSampler: an epoch's samples are drawn with
     * these weights, one for each sample of the data set, which are copied;
     * finite, none below 0. NULL: none. Not with shuffle. no_replacement: none
     * is drawn twice. The draws are PyTorch's for a generator that is seeded as
     * shuffle seeds its own. */
    const double *weights;
    bool no_replacement;
    int64_t draws;      /* num_samples of it and of RandomSampler (shuffle): the samples of an
                           epoch, of all ranks together; 0: as many as the data set has */
    int workers;        /* threads that fill batches; 0: ds_loader_next does */
    int prefetch;       /* batches that they fill ahead, in all; 0: 2 for each worker */
    bool no_pin_memory; /* pin_memory=False; see ds_loader_new */
    /* torch.utils.data.DistributedSampler for rank `rank` of `ranks`: its order
     * depends on seed and epoch alone. ranks 0: all samples, in the loader's
     * own order. */
    int rank, ranks;
    uint64_t seed;
    bool drop_uneven; /* its drop_last: all ranks have as many samples; else the first repeat */
    /* Samples of a global batch, for another order of ranks; 0: off. The
     * epoch's batches are numbered, and rank r has r, r + ranks, ...; its
     * samples repeat until they are whole global batches (drop_last: the rest
     * is left out). So the samples of a global batch do not depend on the
     * number of ranks. */
    int64_t global_batch;
} ds_loader_opts;

typedef struct ds_batch {
    ds_tensor *x; /* field 0: [size, ...] */
    ds_tensor *y; /* field 1, or NULL */
    ds_tensor *field[DS_MAX_FIELDS];
    int64_t size;         /* samples in this batch */
    const int64_t *index; /* [size] their indices in the data set, until the next call */
} ds_batch;

/* torch.utils.data.DataLoader. Takes data, also when it refuses (NULL). Tensors
 * of batches are on ds_current_device(). Freeing frees data and closes the
 * scope of the latest batch; NULL passes.
 *
 * On a GPU, batches of 64 KiB or more that the host makes are copied while the
 * GPU computes, the one after the latest too if workers have it ready: that
 * takes memory of the GPU for one batch more, and pinned host memory for all
 * that are ahead. If there is not so much of either, or with .no_pin_memory,
 * they are copied between steps. */
#define ds_loader_new(data, ...) \
    ds_loader_new_with(data, (ds_loader_opts){.batch_size = __VA_ARGS__})
DS_API ds_loader *ds_loader_new_with(ds_dataset *data, ds_loader_opts opts);
DS_API void ds_loader_free(ds_loader *l);

/* The next batch, in *out. False at the end of an epoch (the next call starts
 * another one), and if something has failed: a call on this thread since the
 * last batch, or a sample's get, which ds_error() names. May wait for workers.
 * Each batch has a scope, which this call closes: it frees the batch before and
 * all that was computed since, except what was kept (ds_keep(b.x)). */
DS_API bool ds_loader_next(ds_loader *l, ds_batch *out);

/* Ends the epoch early: frees the latest batch; the next call starts an epoch. */
DS_API void ds_loader_stop(ds_loader *l);

/* Batches in an epoch of this rank; the epoch, counted from 0. */
DS_API int64_t ds_loader_len(const ds_loader *l);
DS_API int64_t ds_loader_epoch(const ds_loader *l);

/* DistributedSampler.set_epoch: the number of the epoch that starts next. */
DS_API void ds_loader_set_epoch(ds_loader *l, int64_t epoch);
DS_API ds_dataset *ds_loader_dataset(ds_loader *l); /* borrowed */

/* The position of a loader: with it another run gets the same next batch. */
typedef struct ds_loader_position {
    int64_t epoch, batch; /* batches of this epoch that were handed out */
    uint64_t seed;        /* of this epoch's order */
} ds_loader_position;

/* ds_loader_tell returns the position; if an epoch is about to start, it draws
 * that epoch's order. ds_loader_seek sets it; refuses one beyond the epoch. */
DS_API ds_loader_position ds_loader_tell(ds_loader *l);
DS_API ds_status ds_loader_seek(ds_loader *l, ds_loader_position position);

/* ---- CIFAR-10 -------------------------------------------------------------------------------------- */

typedef enum ds_split { DS_TRAIN = 0, DS_TEST } ds_split;

typedef struct ds_cifar10_opts {
    const char *url; /* NULL: $DS_CIFAR10_URL, or its home page; file:// works */
    bool download;   /* if the folder has no CIFAR-10, get cifar-10-binary.tar.gz and unpack it */
    bool quiet;      /* print nothing */
    bool raw;        /* samples are uint8 [3,32,32]; else float32 (x/255 - 0.5)/0.5 */
    bool sample;     /* the built-in sample, installed or unpacked to folder/cifar-10-sample */
    /* The sample if the folder has no CIFAR-10 and, with .download, network and
     * home page do not give it. Damaged data, a full disk and a bad answer of a
     * mirror are failures all the same. */
    bool fallback_sample;
} ds_cifar10_opts;

/* torchvision.datasets.CIFAR10 (Krizhevsky 2009): cifar-10-batches-bin or
 * cifar-10-batches-py in folder, of which sizes, structure and labels are
 * checked; a damaged file is refused with its record, and never downloaded
 * over. Samples: image [3,32,32], label int64 [], 0 to 9. They are read from
 * disk one by one, so that the set takes 50 kB of memory. Prints torchvision's
 * "Files already downloaded and verified" to stdout; to stderr progress, a wait
 * for another process's download, and that a set is a sample. ds_cifar10 is
 * .download = true.
 *
 * A download continues where an earlier one stopped, and its md5 is checked; an
 * archive that is in the folder is used. $DS_CIFAR10_MD5 is the md5 of a
 * mirror's archive, or "any"; $DS_CIFAR10_SAMPLE is the path of the sample's
 * archive. */
DS_API ds_dataset *ds_cifar10(const char *folder, ds_split split);
DS_API ds_dataset *ds_cifar10_with(const char *folder, ds_split split, ds_cifar10_opts opts);

/* The name of label 0 to 9, as in the tutorial: "plane", "car", ...; else NULL. */
DS_API const char *ds_cifar10_class(int label);

typedef struct ds_image_grid_opts {
    const char *path;
    int scale; /* pixels of the file for one of an image, in each direction; 0: 1 */
    /* Texts below the images, [n] each, borrowed; NULL, also as an element:
     * none. Predictions are green where they equal the label, else red. ASCII;
     * letters that are wider than the image are cut. */
    const char *const *labels, *const *predictions;
} ds_image_grid_opts;

/* torchvision.utils.make_grid and save_image: writes n images, float32
 * [n,3,h,w] or [n,1,h,w] with values in [-1, 1], to a PNG file, `columns` (1 or
 * more) side by side, with a border of 2 pixels:
 * ds_save_image_grid(x, 8, "x.png", .scale = 4, .labels = names). The path ends
 * with ".png". DS_EINVAL: another shape, scale or name; DS_EIO: the file. */
#define ds_save_image_grid(images, columns, ...) \
    ds_save_image_grid_with(images, columns, (ds_image_grid_opts){.path = __VA_ARGS__})
DS_API DS_MUST_CHECK ds_status ds_save_image_grid_with(ds_tensor *images, int columns,
                                                       ds_image_grid_opts opts);

#ifdef __cplusplus
}
#endif
#endif
