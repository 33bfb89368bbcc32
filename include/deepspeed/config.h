/* deepspeed/config.h: looking at a ds_config.json without training.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_CONFIG_H
#define DEEPSPEED_CONFIG_H

#include <deepspeed/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What config, the path of a file, JSON text or base64 of it, means to an engine of world_size ranks.
 * *resolved becomes the whole configuration as JSON, every key with its value, batch sizes worked out;
 * *warnings a line for each thing that works but should be known, or "". Either may be NULL; free() both.
 * Fails with a message that names every key that cannot be, with its line; the options of the optimizer and
 * of the schedule are looked at too. This thread's generator stays as it is. */
DS_API ds_status ds_config_check(const char *config, int world_size, char **resolved,
                                 char **warnings);

#ifdef __cplusplus
}
#endif
#endif
