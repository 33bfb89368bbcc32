/* monitor/monitor.h: what the sinks share.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/monitor.h>

#include <sys/types.h>

/* Makes the folder output_path/job_name (NULL or "" as output_path: the current
 * folder; NULL as job_name: DeepSpeed's default) and checks that it is
 * writable. Returns its path, for dsi_free; NULL with a message that begins
 * with `who`. */
char *dsi_monitor_folder(const char *who, const char *output_path, const char *job_name);

/* Appends all n bytes to fd, whose file has `size` bytes, or none of them: a
 * failed write is undone by truncation. `who` and path begin the message. */
ds_status dsi_monitor_append(const char *who, const char *path, int fd, off_t size,
                             const void *data, size_t n);
