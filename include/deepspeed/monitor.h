/* deepspeed/monitor.h: numbers of a run, by name and step, to TensorBoard, to CSV files, to a sink of
 * one's own.
 *
 *     ds_monitor *m = ds_monitor_new();
 *     ds_monitor_tensorboard(m, "runs", "cifar10");
 *     ds_monitor_write(m, "Train/Samples/train_loss", loss, samples);
 *     ds_monitor_free(m);
 *
 * The engine makes one on rank 0 from the groups "tensorboard" and "csv_monitor" of its configuration.
 * What is written can be seen a second later at most (at the next write), after ds_monitor_flush at once.
 * A sink that fails, on a full disk say, is closed; the call that met it returns the failure, once, and
 * the other sinks go on: a program that goes on training loses nothing but that sink.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_MONITOR_H
#define DEEPSPEED_MONITOR_H

#include <deepspeed/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_monitor ds_monitor; /* belongs to the thread that made it */

DS_API ds_monitor *ds_monitor_new(void);
DS_API void ds_monitor_free(ds_monitor *m); /* flushes first */

/* Value of tag at a step (the engine counts samples; any integer will do). tag is UTF-8; '/' parts
 * groups of charts. */
DS_API ds_status ds_monitor_write(ds_monitor *m, const char *tag, double value, int64_t step);
DS_API ds_status ds_monitor_flush(ds_monitor *m);

/* ---- sinks ------------------------------------------------------------------------------------------ */

/* Events for TensorBoard, in a new file in the folder output_path/job_name, which is made. Paths without
 * a leading '/' start at the current folder; NULL stands for "" and "DeepSpeedJobName". Values are
 * float32 in its format. Refuses a folder that cannot be made or written to. */
DS_API ds_status ds_monitor_tensorboard(ds_monitor *m, const char *output_path,
                                        const char *job_name);

/* One file a tag, output_path/job_name/<tag with '_' for '/' and ' '>.csv, with the header
 * "step,<last part of the tag>" and lines of both numbers; a later run appends. A name longer than file
 * systems take is cut, and ends with a check sum of the whole tag. */
DS_API ds_status ds_monitor_csv(ds_monitor *m, const char *output_path, const char *job_name);

/* A sink of one's own: the struct that the two above are made of. */
typedef struct ds_sink_type {
    const char *name; /* for messages */
    size_t self_size; /* bytes of your struct, zeroed for you */
    ds_status (*write)(void *self, const char *tag, double value, int64_t step);
    ds_status (*flush)(void *self); /* optional: afterwards all that was written can be seen */
    void (*free)(void *self);       /* optional: after a last flush, or a failure */
} ds_sink_type;

/* Returns your struct, to be filled in; NULL, with the message, for a type without name or write. */
DS_API void *ds_monitor_add(ds_monitor *m, const ds_sink_type *type);
/* How many were added, with those that have failed since. */
DS_API int ds_monitor_sinks(const ds_monitor *m);

#ifdef __cplusplus
}
#endif
#endif
