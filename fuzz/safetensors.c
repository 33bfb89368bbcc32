/* fuzz/safetensors.c: any bytes as a .safetensors file: no crash, no leak,
 * nothing read outside.
 *
 * scripts/fuzz safetensors 300
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include <deepspeed/checkpoint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    ds_state *state = ds_safetensors_load(file_of(data, n));
    if (!state) must_say();
    size_t bytes = 0;
    for (int i = 0; i < ds_state_len(state); i++) {
        const ds_tensor *x = ds_state_at(state, i);
        touch(x);
        bytes += (size_t)ds_numel(x) * ds_dtype_size(ds_dtype_of(x));
    }
    must(bytes <= n);
    ds_state_free(state);
    must(!ds_live_tensors());
    return 0;
}
