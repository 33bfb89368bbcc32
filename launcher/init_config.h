/* launcher/init_config.h: deepspeed --init_config.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"

/* Writes a configuration with comments for what the options say; returns the
 * exit status. Nothing is written if a number does not fit or the file exists. */
int init_config(const options *o);
