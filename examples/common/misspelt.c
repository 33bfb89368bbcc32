/* examples/common/misspelt.c: what an unknown option may have meant.
 * SPDX-License-Identifier: MIT */
#include "misspelt.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LONGEST 64 /* of an option's name; longer words are compared in part */

static char normal(char c) { return c == '_' ? '-' : c; }

/* How many letters have to be changed, added or left out to make the option
 * `name` of the n letters of `word`: Levenshtein's distance. */
static int distance(const char *word, int n, const char *name)
{
    int row[LONGEST + 1];
    for (int j = 0; j <= n; j++) row[j] = j;
    for (; *name; name++) {
        int diagonal = row[0]++;
        for (int j = 1; j <= n; j++) {
            int changed = diagonal + (normal(word[j - 1]) != normal(*name));
            diagonal = row[j];
            int least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = changed < least ? changed : least;
        }
    }
    return row[n];
}

typedef struct Search {
    const char *word; /* without "--" */
    int n;            /* its letters before "=" */
    bool known, takes_value;
    const char *nearest;
    int least; /* distance of nearest */
} Search;

static void look_at(Search *s, const char *name, bool takes_value)
{
    int same = 0;
    while (same < s->n && normal(s->word[same]) == normal(name[same])) same++;
    if (same == s->n) { /* also the begin of a name, which getopt accepts */
        s->known = true;
        if (!name[same]) s->takes_value = takes_value;
    }
    int d = distance(s->word, s->n, name);
    if (d >= s->least) return;
    s->least = d;
    s->nearest = name;
}

static void look_in(Search *s, const struct argp *argp)
{
    for (const struct argp_option *o = argp->options; o && (o->name || o->doc || o->key); o++)
        if (o->name) look_at(s, o->name, o->arg != NULL);
    for (const struct argp_child *c = argp->children; c && c->argp; c++) look_in(s, c->argp);
}

/* The number of this process among its ranks, as launchers tell it. */
static bool is_first_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *rank = getenv(names[i]);
        if (rank) return atoi(rank) == 0;
    }
    return true;
}

static void refuse(const Search *s)
{
    if (!is_first_rank()) {
        /* mpirun ends rank 0 when this rank has ended: let it say why */
        nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
        exit(2);
    }
    fprintf(stderr, "%s: there is no option --%.*s", program_invocation_short_name, s->n, s->word);
    if (s->nearest) {
        bool underscores = memchr(s->word, '_', (size_t)s->n) != NULL;
        fprintf(stderr, "; did you mean --");
        for (const char *c = s->nearest; *c; c++)
            fputc(underscores && *c == '-' ? '_' : *c, stderr);
        fprintf(stderr, "?");
    }
    fprintf(stderr, " (--help lists all)\n");
    exit(2);
}

void misspelt_refuse(const struct argp *argp, int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], "--", 2) != 0) continue;
        size_t n = strcspn(argv[i] + 2, "=");
        Search s = {.word = argv[i] + 2, .n = n < LONGEST ? (int)n : LONGEST};
        s.least = s.n / 3 + 2; /* near: a third of the letters, and one */
        look_at(&s, "help", false);
        look_at(&s, "usage", false);
        look_at(&s, "version", false);
        look_in(&s, argp);
        if (!s.known) refuse(&s);
        if (s.takes_value && !s.word[n]) i++;
    }
}
