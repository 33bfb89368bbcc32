/* models/stop_strings.h: texts that end a row.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/models.h>

/* Whether o's stop_strings, if it has some, are texts, and there is a
 * tokenizer; else false, with the message. */
bool dsi_lm_check_stop_strings(const ds_generate_opts *o);
/* Whether the last of a row's n tokens completes a stop string. */
bool dsi_lm_stop_string_ends(const ds_generate_opts *o, const int64_t *ids, int64_t n);
