/* base/progress.c: the file of DEEPSPEED_PROGRESS.
 * SPDX-License-Identifier: MIT */
#include "progress.h"

#include "clock.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* The descriptor stays open, so that its number is not given to another file,
 * and is closed in programs that this one executes: these may find the variable
 * with another file under that number, or none. */
dsi_progress *dsi_progress_open(void)
{
    const char *text = getenv(DSI_PROGRESS_VARIABLE);
    struct stat s;
    char *end;
    long fd = text && *text ? strtol(text, &end, 10) : -1;
    if (fd < 3 || *end || fstat((int)fd, &s) || s.st_size != sizeof(dsi_progress)) return NULL;
    dsi_progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
    if (p == MAP_FAILED) return NULL;
    if (p->magic != DSI_PROGRESS_MAGIC) {
        munmap(p, sizeof *p);
        return NULL;
    }
    fcntl((int)fd, F_SETFD, FD_CLOEXEC);
    return p;
}

void dsi_progress_close(dsi_progress *p)
{
    if (p) munmap(p, sizeof *p);
}

void dsi_progress_ready(dsi_progress *p, int64_t step)
{
    if (!p) return;
    p->first = p->step = step;
    p->ready = dsi_now();
}

void dsi_progress_step(dsi_progress *p, int64_t step)
{
    if (p) atomic_store_explicit(&p->step, step, memory_order_relaxed);
}

void dsi_progress_saved(dsi_progress *p, int64_t step)
{
    if (!p) return;
    p->saved = step;
    p->saved_at = dsi_now();
}
