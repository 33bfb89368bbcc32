/* launcher/info.c: lines in the form of DeepSpeed's logger.
 * SPDX-License-Identifier: MIT */
#include "info.h"

#include <string.h>
#include <time.h>

void info_begin_at(dsi_text *t, const char *file, int line, const char *function)
{
    struct timespec now;
    struct tm day;
    char date[32];
    const char *slash = strrchr(file, '/');
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &day);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &day);
    dsi_text_add(t, "[%s,%03d] [INFO] [%s:%d:%s] ", date, (int)(now.tv_nsec / 1000000),
                 slash ? slash + 1 : file, line, function);
}
