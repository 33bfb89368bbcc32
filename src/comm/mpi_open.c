/* comm/mpi_open.c: finds the plugin of an MPI library (see mpi.h).
 *
 * Looked for beside the program or the library that this is in (a build
 * folder), in the folder deepspeed of the libraries near it (an installed tree,
 * wherever it was moved), and where it was to be installed.
 * SPDX-License-Identifier: MIT */
#include "mpi_open.h"

#include "base/error.h"
#include "base/library.h"
#include "base/text.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

/* Of the files that are there the first; all that were looked for go into
 * `looked`. */
static void *open_first(const char *const *folders, int n, const char *name, dsi_text *looked,
                        dsi_text *why)
{
    void *library = NULL;
    for (int i = 0; i < n && !library; i++) {
        dsi_text path = dsi_text_of("%s/libdeepspeed_%s.so", folders[i], name);
        dsi_text_add(looked, "%s%s", i ? ", " : "", folders[i]);
        if (access(path.s, R_OK) == 0) {
            /* global: Open MPI's components look for symbols of its library
             * there */
            library = dlopen(path.s, RTLD_NOW | RTLD_GLOBAL);
            if (!library) dsi_text_add(why, "; %s", dlerror());
        }
        dsi_text_free(&path);
    }
    return library;
}

/* Looks beside the library, below it, and where the package installs plugins;
 * the message lists all of these folders. The plugin is never closed: MPI
 * registers functions that run at exit. */
const dsi_mpi *dsi_mpi_open(const char *name)
{
    char *own = dsi_own_folder();
    const char *base = own ? own : ".";
    dsi_text of_library = dsi_text_of("%s/deepspeed", base),
             of_program = dsi_text_of("%s/../%s/deepspeed", base, DSI_LIBDIR), looked = {0},
             why = {0};
    const char *folders[] = {base, of_library.s, of_program.s, DSI_PLUGIN_DIR};
    void *library = open_first(folders, 4, name, &looked, &why);
    const dsi_mpi *mpi = library ? dlsym(library, DSI_MPI_SYMBOL) : NULL;
    if (!library)
        dsi_fail(DS_ECOMM,
                 "init_distributed: started by a launcher of %s, but there is no "
                 "libdeepspeed_%s.so in %s%s; install the package deepspeed-%s, or build the "
                 "library where lib%s-dev is installed",
                 name, name, looked.s, why.s ? why.s : "", name, name);
    else if (!mpi || mpi->version != DSI_MPI_VERSION) {
        dsi_fail(DS_ECOMM, "init_distributed: libdeepspeed_%s.so is of another version", name);
        mpi = NULL;
    }
    free(own);
    dsi_text_free(&of_library);
    dsi_text_free(&of_program);
    dsi_text_free(&looked);
    dsi_text_free(&why);
    return mpi;
}
