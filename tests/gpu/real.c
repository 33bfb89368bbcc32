/* tests/gpu/real.c: the GPU of this machine, if it has one and the build is
 * with CUDA.
 * SPDX-License-Identifier: MIT */
#include "gpu/real.h"

int main(void)
{
    if (!ds_device_count(DS_CUDA)) {
        printf("skipped: %s\n", dsi_device_why_none(DS_CUDA));
        return 77;
    }
    const struct CMUnitTest tests[] = {GPU_TESTS};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
