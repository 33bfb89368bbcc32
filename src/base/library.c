/* base/library.c: shared libraries of others, opened when they are first needed
 * (library.h).
 * SPDX-License-Identifier: MIT */
#include "library.h"

#include "error.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

bool dsi_library_open(const char *who, const char *const *sonames, const char *package,
                      const char *const *names, int n, void *to)
{
    void *library = NULL;
    for (int i = 0; sonames[i] && !library; i++) library = dlopen(sonames[i], RTLD_NOW);
    if (!library) {
        const char *why = dlerror();
        return dsi_refuse_with(DS_EIO, "%s: %s cannot be opened (%s); install the package %s", who,
                               sonames[0], why ? why : "?", package);
    }
    for (int i = 0; i < n; i++) {
        void *f = dlsym(library, names[i]);
        if (!f)
            return dsi_refuse_with(DS_EIO, "%s: %s has no %s; install a newer package %s", who,
                                   sonames[0], names[i], package);
        /* C has no cast from data to functions */
        memcpy((char *)to + (size_t)i * sizeof f, &f, sizeof f);
    }
    return true;
}

char *dsi_own_folder(void)
{
    static const char here = 0;
    Dl_info info;
    char *path = NULL;
    if (dladdr(&here, &info) && info.dli_fname && strchr(info.dli_fname, '/'))
        path = realpath(info.dli_fname, NULL);
    if (!path) path = realpath("/proc/self/exe", NULL); /* a program found by PATH */
    if (path) *strrchr(path, '/') = 0;
    return path;
}
