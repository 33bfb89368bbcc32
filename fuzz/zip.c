/* fuzz/zip.c: any bytes as a zip archive, and as a .pth that is one: no crash,
 * no leak, nothing read outside; all entries together are not larger than what
 * deflate can make of the input.
 *
 * scripts/fuzz zip 300
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include "base/crc.h"
#include "checkpoint/zip.h"

#include <deepspeed/checkpoint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void archive(const uint8_t *data, size_t n)
{
    dsi_zip z;
    if (!dsi_zip_open(&z, "fuzz", data, n)) {
        must_say();
        return;
    }
    size_t packed = 0;
    for (int i = 0; i < z.n; i++) {
        const dsi_zip_entry_at *e = &z.at[i];
        must(e->data >= data && e->packed <= (size_t)(data + n - e->data));
        must(dsi_zip_find(&z, e->name) == e);
        packed += e->packed;
        uint8_t *bytes = dsi_zip_unpack("fuzz", e);
        if (!bytes) must_say();
        if (!e->deflated)
            must(dsi_zip_check("fuzz", e, dsi_crc32(0, e->data, e->bytes)) == (bytes != NULL));
        free(bytes);
    }
    must(packed <= n);
    dsi_zip_close(&z);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    archive(data, n);
    ds_error_clear();
    ds_value *v = ds_value_load(file_of(data, n));
    if (!v) must_say();
    ds_value_free(v);
    must(!ds_live_tensors());
    return 0;
}
