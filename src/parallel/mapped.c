/* parallel/mapped.c: tensors in mapped files (mapped.h). The mapping alone keeps
 * the file: its descriptor is closed at once, so that their number has no limit.
 * SPDX-License-Identifier: MIT */
#include "mapped.h"

#include "base/aio.h"
#include "base/int.h"
#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct Mapped {
    void *p;
    size_t bytes;
} Mapped;

static void mapped_free(void *owner)
{
    Mapped *m = owner;
    munmap(m->p, m->bytes);
    dsi_free(m);
}

ds_tensor *dsi_mapped_new(const char *who, const char *folder, int rank, ds_dtype dtype, int64_t n)
{
    const int64_t behind = 64; /* bytes that dsi_from_blob asks for */
    int64_t bytes = dsi_round_up(n * (int64_t)ds_dtype_size(dtype) + behind, DSI_AIO_ALIGN);
    dsi_text name = dsi_text_of("mapped_rank%d_%lld_%s", rank, (long long)getpid(), who);
    dsi_aio_file f;
    ds_status status = dsi_aio_file_open(&f, who, folder, name.s, bytes);
    dsi_text_free(&name);
    if (status != DS_OK) return NULL;
    void *p = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, f.fd, 0);
    int error = errno;
    close(f.fd); /* not dsi_aio_file_close: other ranks make files in that folder */
    dsi_free(f.path);
    if (p == MAP_FAILED)
        return dsi_refuse("%s: a mapping of %lld bytes in %s: %s", who, (long long)bytes, folder,
                          strerror(error));
    Mapped *m = dsi_alloc(sizeof *m);
    *m = (Mapped){p, (size_t)bytes};
    return dsi_from_blob(dtype, n, p, mapped_free, m);
}

void dsi_mapped_release_pages(const ds_tensor *x)
{
    if (!x || !x->storage || x->storage->release != mapped_free) return;
    const Mapped *m = x->storage->owner;
    madvise(m->p, m->bytes, MADV_DONTNEED);
}
