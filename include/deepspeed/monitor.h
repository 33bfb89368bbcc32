/* deepspeed/monitor.h: scalars of a run, by name and step, to TensorBoard, to
 * CSV files, or to your own sink.
 *
 *     ds_monitor *m = ds_monitor_new();
 *     ds_monitor_tensorboard(m, "runs", "cifar10");
 *     ds_monitor_write(m, "Train/Samples/train_loss", loss, samples);
 *     ds_monitor_free(m);
 *
 * The engine makes one on rank 0 from the groups "tensorboard" and
 * "csv_monitor" of its configuration. Sinks are flushed about once a second, by
 * the next write, and by ds_monitor_flush. A sink that fails, on a full disk
 * for instance, is closed: the call that saw the failure returns it, once, and
 * the other sinks continue.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_MONITOR_H
#define DEEPSPEED_MONITOR_H

#include <deepspeed/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_monitor ds_monitor; /* belongs to the thread that made it */

/* A monitor without sinks; frees it, after a last flush. NULL passes. */
DS_API ds_monitor *ds_monitor_new(void);
DS_API void ds_monitor_free(ds_monitor *m);

/* Writes (tag, value, step) to all sinks. tag: UTF-8, not empty; '/' separates
 * groups of charts. step: any integer; the engine counts samples. Fails for
 * another tag (DS_EINVAL), and with the status of a sink that failed and was
 * closed. */
DS_API ds_status ds_monitor_write(ds_monitor *m, const char *tag, double value, int64_t step);

/* Makes everything that was written visible to readers; errors as above. */
DS_API ds_status ds_monitor_flush(ds_monitor *m);

/* ---- sinks ----------------------------------------------------------------------- */

/* Adds TensorBoard's event files: a new file in the folder
 * output_path/job_name, which is made. A path without a leading '/' starts at
 * the current folder; NULL means "" and "DeepSpeedJobName". The format stores
 * float32. Refuses (DS_EIO) a folder that cannot be made or written to. */
DS_API ds_status ds_monitor_tensorboard(ds_monitor *m, const char *output_path,
                                        const char *job_name);

/* Adds CSV files, one for each tag: output_path/job_name/TAG.csv, with '_' in
 * place of '/' and ' '. The header is "step,LAST_PART_OF_TAG", then a line for
 * each value; a later run appends. A name too long for the file system is cut,
 * and ends in a check sum of the tag. Paths and errors as above. */
DS_API ds_status ds_monitor_csv(ds_monitor *m, const char *output_path, const char *job_name);

/* A sink: the struct that the two above are made of. */
typedef struct ds_sink_type {
    const char *name; /* for messages; static */
    size_t self_size; /* bytes of your struct, zeroed for you */
    ds_status (*write)(void *self, const char *tag, double value, int64_t step);
    ds_status (*flush)(void *self); /* or NULL; what was written is visible after it */
    void (*free)(void *self);       /* or NULL; after a last flush, or after a failure */
} ds_sink_type;

/* Adds a sink of that type. Returns your struct, to be filled in; NULL for a
 * type without name or write. type must live as long as m. */
DS_API void *ds_monitor_add(ds_monitor *m, const ds_sink_type *type);

/* How many sinks were added, including those that have failed since. */
DS_API int ds_monitor_sinks(const ds_monitor *m);

#ifdef __cplusplus
}
#endif
#endif
