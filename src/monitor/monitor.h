/* monitor/monitor.h: what the sinks share.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_MONITOR_MONITOR_H
#define DSI_MONITOR_MONITOR_H

#include <deepspeed/monitor.h>

#include <sys/types.h>

/* output_path/job_name, made and writable; free it with dsi_free. NULL with a
 * message that begins with
 * `who`. */
char *dsi_monitor_folder(const char *who, const char *output_path, const char *job_name);

/* Appends all n bytes to fd, which holds `size` bytes, or none of them. */
ds_status dsi_monitor_append(const char *who, const char *path, int fd, off_t size,
                             const void *data, size_t n);

#endif
