/* launcher/runners/shared.c: what several runners need.
 * SPDX-License-Identifier: MIT */
#include "environment.h"
#include "program.h"
#include "runners.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

bool runner_is_installed(const char *program)
{
    char *path = program_on_path(program);
    dsi_free(path);
    return path != NULL;
}

/* Is the program on PATH of MPICH's family? false too if there is none. */
static bool is_hydra(const char *program)
{
    char *path = program_on_path(program), target[PATH_MAX] = "";
    const char *name = path && realpath(path, target) ? strrchr(target, '/') : NULL;
    bool hydra = name && (strstr(name, "hydra") || strstr(name, "mpich"));
    dsi_free(path);
    return hydra;
}

char *runner_first_on_path(const char *const *names, bool hydra)
{
    for (; *names; names++)
        if (runner_is_installed(*names) && is_hydra(*names) == hydra) return dsi_strdup(*names);
    return NULL;
}

/* Options of the runners have one form with = and one without. */
bool runner_has_argument(const launch_plan *p, const char *name)
{
    size_t n = strlen(name);
    for (char **a = p->launcher_args; a && *a; a++)
        if (!strncmp(*a, name, n) && ((*a)[n] == 0 || (*a)[n] == '=')) return true;
    return false;
}

char *runner_host_list(const launch_plan *p, char *(*name)(int i))
{
    dsi_text list = dsi_text_of("%s", "");
    for (int i = 0; i < p->n_hosts; i++) {
        char *other = name ? name(i) : NULL;
        if (p->hosts[i].n_slots)
            dsi_text_add(&list, "%s%s:%d", list.n ? "," : "", other ? other : p->hosts[i].name,
                         p->hosts[i].n_slots);
        dsi_free(other);
    }
    return list.s;
}

/* ---- hydra: the mpiexec of MPICH and MVAPICH --------------------------------- */

/* Hydra would send its whole environment to other hosts. -genvlist, which takes
 * names alone, loses empty values. */
static void hydra_add_exports(argv_list *argv, const launch_plan *p)
{
    static const char *const own[] = {"PDSH_", "HYDRA_"};
    argv_add(argv, "-genvnone");
    argv_add(argv, "-disable-auto-cleanup");
    for (char **e = p->environment; e && *e; e++) {
        if (!strncmp(*e, own[0], 5) || !strncmp(*e, own[1], 6)) continue;
        size_t n = strcspn(*e, "=");
        argv_add(argv, "-genv");
        argv_add(argv, "%.*s", (int)n, *e);
        argv_add(argv, "%s", *e + n + 1);
    }
}

void runner_add_hydra(argv_list *argv, const launch_plan *p, const char *const *genv)
{
    argv_add(argv, "%s", p->runner_program);
    if (!runner_has_argument(p, "-launcher"))
        argv_add_words(argv, "-launcher", p->remote ? "ssh" : "fork");
    if (p->remote) {
        char *list = runner_host_list(p, NULL);
        argv_add_words(argv, "-hosts", list);
        dsi_free(list);
    }
    if (p->remote && !runner_has_argument(p, "-genvall")) hydra_add_exports(argv, p);
    for (; genv && *genv; genv += 2) argv_add_words(argv, "-genv", genv[0], genv[1]);
    argv_add(argv, "-n");
    argv_add(argv, "%d", p->world_size);
    argv_add_all(argv, p->launcher_args);
}

void runner_add_hydra_environment(argv_list *environment, const launch_plan *p)
{
    if (p->remote && p->o.ssh_port > 0)
        environment_set(environment, "HYDRA_LAUNCHER_EXTRA_ARGS", "-p %d", p->o.ssh_port);
}
