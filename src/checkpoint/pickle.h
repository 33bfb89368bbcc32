/* checkpoint/pickle.h: the pickles that a .pth holds.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_CHECKPOINT_PICKLE_H
#define DSI_CHECKPOINT_PICKLE_H

#include "base/text.h"
#include "stored.h"

/* "torch.float32", and "FloatStorage", as torch has them. */
const char *dsi_torch_dtype(ds_dtype dtype);
const char *dsi_torch_storage(ds_dtype dtype);

/* v as a pickle of protocol 2, its tensors as views of the planned storages. False with the message. */
bool dsi_pickle_write(dsi_text *out, const char *what, const ds_value *v, const dsi_stored *stored);

#endif
