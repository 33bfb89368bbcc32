/* examples/common/weights.c: weights from the files that programs here and in
 * PyTorch save.
 * SPDX-License-Identifier: MIT */
#include "weights.h"

#include <string.h>

/* Files of torch.save may hold more than a state dict. */
static bool is_torch(const char *path)
{
    const char *end = strrchr(path, '.');
    return end && (!strcmp(end, ".pth") || !strcmp(end, ".pt") || !strcmp(end, ".bin"));
}

ds_state *weights_load(const char *path)
{
    ds_value *v = is_torch(path) ? ds_value_load(path, .objects = true) : NULL;
    if (!v && is_torch(path)) return NULL;
    const ds_value *weights = ds_value_get(v, "model_state_dict");
    if (!weights) weights = ds_value_get(v, "state_dict"); /* of PyTorch's ImageNet example */
    ds_state *state = weights ? ds_state_of_value(weights) : ds_load(path);
    ds_value_free(v);
    if (state) (void)ds_state_strip_prefix(state, "module."); /* of DistributedDataParallel */
    return state;
}
