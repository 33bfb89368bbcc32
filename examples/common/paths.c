/* examples/common/paths.c: checks of the paths of options.
 * SPDX-License-Identifier: MIT */
#include "paths.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static ds_status path_fail(const char *option, const char *path)
{
    return ds_fail(DS_EIO, "--%s %s: %s", option, path, strerror(errno));
}

ds_status path_check_readable(const char *option, const char *path)
{
    return !path || access(path, R_OK) == 0 ? DS_OK : path_fail(option, path);
}

ds_status path_make_folder(const char *option, const char *path)
{
    if (!path) return DS_OK;
    char *part = strdup(path);
    int error = 0; /* of the first folder that could not be made */
    if (!part) return path_fail(option, path);
    for (char *slash = part; (slash = strchr(slash + 1, '/'));) {
        *slash = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST && !error) error = errno;
        *slash = '/';
    }
    if (mkdir(part, 0777) != 0 && !error) error = errno;
    free(part);
    struct stat st;
    if (stat(path, &st) != 0) {
        errno = error;
        return path_fail(option, path);
    }
    if (!S_ISDIR(st.st_mode))
        return ds_fail(DS_EINVAL, "--%s %s is a file, expected a folder", option, path);
    return access(path, W_OK) == 0 ? DS_OK : path_fail(option, path);
}
