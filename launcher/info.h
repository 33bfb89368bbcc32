/* launcher/info.h: lines in the form of DeepSpeed's logger:
 *
 *     [2026-11-21 12:05:41,123] [INFO] [announce.c:30:plan_announce] text
 *
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/text.h"

/* Adds the part before the text. */
#define info_begin(t) info_begin_at(t, __FILE__, __LINE__, __func__)
void info_begin_at(dsi_text *t, const char *file, int line, const char *function);
