/* data/resident.h: a data set whose samples are in a GPU's memory, images as
 * bytes; a batch is gathered there, with the values of the host's loader.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tensor/tensor.h"

#include <deepspeed/data.h>

/* The byte form of a data set: its field 0 is a table of its bytes. */
typedef struct dsi_byte_form {
    /* As the type's get, but field[0] receives the bytes, uint8 of the field's
     * shape. */
    ds_status (*get)(void *self, int64_t i, void **field);
    /* [channels, 256]: the float of each byte, which becomes the field's dtype;
     * channels are the outermost dimension of the field. NULL: the field is bytes itself. */
    const float *(*table)(void *self);
} dsi_byte_form;

/* For the constructors of data sets that have one; its samples must not change
 * from epoch to epoch. */
void dsi_dataset_set_byte_form(ds_dataset *d, const dsi_byte_form *form);
const dsi_byte_form *dsi_dataset_byte_form(const ds_dataset *d); /* NULL: none */

/* The shape of field f of a batch of n samples. */
ds_dims dsi_dataset_batch_shape(const ds_dataset *d, int f, int64_t n);

typedef struct dsi_resident dsi_resident;

/* Copies all samples of d, for orders of up to `most` samples, to the device;
 * *out is NULL if they are not to be there: d has no byte form, the device
 * gathers none or has too little memory. d is borrowed. */
ds_status dsi_resident_new(ds_dataset *d, dsi_device *device, int64_t most, dsi_resident **out);
void dsi_resident_free(dsi_resident *r);

/* The order of an epoch, copied to the device: n indices of samples. */
ds_status dsi_resident_set_order(dsi_resident *r, const int64_t *order, int64_t n);

/* Samples `begin` .. begin + n - 1 of that order -> field f [n, ...] in the
 * current scope, for all fields; false with the message. They are lazy tensors:
 * all fields are gathered when one of them is read; ds_step_graph_run has them
 * written to the inputs of its graph instead. */
bool dsi_resident_batch(dsi_resident *r, int64_t begin, int64_t n, ds_tensor **field);

/* The batch ends: a field that its holders have not read yet gets its values. */
ds_status dsi_resident_end_batch(dsi_resident *r);
