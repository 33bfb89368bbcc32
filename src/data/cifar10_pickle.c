/* data/cifar10_pickle.c: the python layout of CIFAR-10, read without Python.
 *
 * A batch is a dict, which holds a list and an array of NumPy:
 *
 *     {"labels": [6, 9, ...], "data": uint8 [10000,3072], "filenames": [...], "batch_label": "..."}
 *
 * The pickle is read by the machine of checkpoint/pickle_read.c (Note [Pickles]
 * in checkpoint/pickle.h), which calls no function of Python, knows only the
 * four names that NumPy writes for an array here, and takes at most MAX_BYTES
 * for values. The array's bytes stay in the file: pixels are read from there,
 * sample by sample.
 * SPDX-License-Identifier: MIT */
#include "cifar10.h"

#include "checkpoint/pickle.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MAX_BYTES ((size_t)3 << 19) /* a batch of 10,000 samples takes 1.1 MB */

/* Takes "data" and "labels" from the batch, whose file is mapped at p. As the
 * array's bytes were not copied, their place in the mapping is their place in
 * the file. */
static ds_status batch_fields(const ds_value *batch, const uint8_t *p, dsi_cifar10_file *f)
{
    const ds_value *data = ds_value_get(batch, "data"), *labels = ds_value_get(batch, "labels");
    ds_tensor *x = ds_value_kind_of(data) == DS_VALUE_TENSOR ? data->tensor.x : NULL;
    bool matrix = x && x->dtype == DS_U8 && x->shape.n == 2 && dsi_is_contiguous(x);
    if (!matrix || x->shape.d[0] != f->n || x->shape.d[1] != DSI_CIFAR10_PIXELS)
        return dsi_fail(DS_EFORMAT, "cifar10: %s: \"data\" is %s %s, expected uint8 [%lld, 3072]",
                        f->path, x ? ds_dtype_name(x->dtype) : "not an array",
                        x ? dsi_shape_text(x->shape) : "of NumPy", (long long)f->n);
    int64_t n = ds_value_kind_of(labels) == DS_VALUE_LIST ? ds_value_len(labels) : 0;
    if (n != f->n)
        return dsi_fail(DS_EFORMAT,
                        "cifar10: %s: \"labels\" has %lld values, expected a list of %lld", f->path,
                        (long long)n, (long long)f->n);
    for (int64_t i = 0; i < n; i++) {
        int64_t label = -1;
        const ds_value *v = ds_value_at(labels, i);
        if (ds_value_kind_of(v) == DS_VALUE_INT) label = v->i;
        if (label < 0 || label > 9)
            return dsi_fail(DS_EFORMAT, "cifar10: %s: record %lld has label %lld, expected 0 to 9",
                            f->path, (long long)i, (long long)label);
        f->labels[i] = (uint8_t)label;
    }
    f->pixels_at = (const uint8_t *)ds_data(x) - p;
    f->stride = DSI_CIFAR10_PIXELS;
    return DS_OK;
}

/* Reads the pickle in p[0 .. bytes-1], which must end with the file. */
static ds_status read_batch(const uint8_t *p, size_t bytes, dsi_cifar10_file *f)
{
    static const char *const names[] = {"numpy.core.multiarray._reconstruct",
                                        "numpy._core.multiarray._reconstruct", "numpy.ndarray",
                                        "numpy.dtype", NULL};
    /* The opcode PROTO, with which every pickle since protocol 2 begins. */
    if (*p != 0x80)
        return dsi_fail(DS_EFORMAT, "cifar10: %s: this is no pickle of protocol 2 to 5", f->path);
    dsi_text what = dsi_text_of("cifar10: %s", f->path);
    dsi_unpickler u = {.what = what.s,
                       .p = p,
                       .bytes = bytes,
                       .names = names,
                       .max_bytes = MAX_BYTES,
                       .in_place = true};
    ds_value *batch = dsi_unpickle(&u);
    ds_status status = batch ? DS_OK : DS_EFORMAT;
    if (batch && u.at != u.bytes)
        status = dsi_fail(DS_EFORMAT, "%s: the file continues after the pickle's end", u.what);
    if (batch && ds_value_kind_of(batch) != DS_VALUE_DICT)
        status = dsi_fail(DS_EFORMAT, "%s: the pickle is of class %s, expected a dict", u.what,
                          ds_value_class(batch));
    if (status == DS_OK) status = batch_fields(batch, p, f);
    ds_value_free(batch);
    dsi_unpickler_free(&u);
    dsi_text_free(&what);
    return status;
}

/* The mapping lasts only for this call: afterwards pixels are read by pread. */
ds_status dsi_cifar10_parse(dsi_cifar10_file *f)
{
    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return dsi_fail(DS_EIO, "cifar10: %s: %s", f->path, strerror(errno));
    if (!st.st_size)
        return dsi_fail(DS_EFORMAT, "cifar10: %s: the file is empty, expected a pickle", f->path);
    size_t bytes = (size_t)st.st_size;
    uint8_t *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, f->fd, 0);
    if (p == MAP_FAILED)
        return dsi_fail(DS_EIO, "cifar10: %s: cannot be mapped: %s", f->path, strerror(errno));
    ds_status status = read_batch(p, bytes, f);
    munmap(p, bytes);
    return status;
}
