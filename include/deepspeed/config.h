/* deepspeed/config.h: a ds_config.json without training.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_CONFIG_H
#define DEEPSPEED_CONFIG_H

#include <deepspeed/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Checks a configuration as an engine of world_size ranks would read it, with
 * the options of its optimizer and schedule (deepspeed --check_config).
 *
 * config: path of a ds_config.json, its JSON text, or base64 of that.
 * world_size: ranks, at least 1. resolved: NULL, or receives the whole
 * configuration as JSON, every key with its
 *     value and batch sizes derived; NULL on failure. The caller free()s it.
 * warnings: NULL, or receives a line for each thing that works but may not be
 *     meant, or ""; NULL on failure. The caller free()s it.
 * Returns DS_OK, or a failure whose message names every wrong key with its
 * line: DS_EINVAL for keys and values, DS_EFORMAT for text that is no JSON,
 * DS_EIO for a file that cannot be read. This thread's generator stays as it
 * is. */
DS_API ds_status ds_config_check(const char *config, int world_size, char **resolved,
                                 char **warnings);

#ifdef __cplusplus
}
#endif
#endif
