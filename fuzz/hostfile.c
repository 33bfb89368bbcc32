/* fuzz/hostfile.c: any text as a hostfile, a filter, a .deepspeed_env,
 * --launcher_args and a list of Slurm's: no crash, no hang, no leak; a refusal
 * is one line; and what is accepted reads back as the same.
 *
 * The first byte: bit 0 --exclude rather than --include, bits 1-2 --num_nodes,
 * bits 3-4 --num_gpus. The rest is divided by bytes 1 into hostfile, filter,
 * environment, words, Slurm's list. scripts/fuzz hostfile 300
 * SPDX-License-Identifier: MIT */
#include "argv.h"
#include "environment.h"
#include "select.h"

#include "base/error.h"

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool x)
{
    if (!x) abort();
}

/* A refusal has a message of one line. */
static bool is_good(ds_status status)
{
    must(status == DS_OK || (ds_error() && !strpbrk(ds_error(), "\n\r")));
    ds_error_clear();
    return status == DS_OK;
}

/* Ranks get the hosts that were chosen. */
static void check_hosts(const ds_hosts *h)
{
    ds_hosts w = {0};
    int size = hosts_count_slots(h);
    char *info = hosts_encode(h->at, h->n);
    if (size > 0) {
        must(hosts_decode(&w, info) && hosts_count_slots(&w) == size && w.n == h->n);
        for (int i = 0; i < h->n; i++) {
            must(!strcmp(w.at[i].name, h->at[i].name) && w.at[i].n_slots == h->at[i].n_slots);
            for (int k = 0; k < h->at[i].n_slots; k++) {
                must(w.at[i].slots[k] == h->at[i].slots[k]);
                must(!k || h->at[i].slots[k] > h->at[i].slots[k - 1]);
            }
        }
        hosts_free(&w);
    }
    dsi_free(info);
}

static void hostfile(unsigned how, const char *text, size_t n, const char *filter)
{
    static const int counts[] = {-1, 0, 1, 3};
    ds_hosts h = {0};
    if (is_good(hosts_parse(&h, "hosts", text, n))) {
        must(h.n > 0);
        /* 65536 slots are fine, but a hundred such hosts are slow under a
         * fuzzer */
        bool large = false;
        for (int i = 0; i < h.n; i++) large = large || h.at[i].n_slots > 100;
        if (!large && is_good(select_hosts(&h, how & 1 ? NULL : filter, how & 1 ? filter : NULL))) {
            select_counts(&h, counts[how >> 1 & 3], counts[how >> 3 & 3]);
            check_hosts(&h);
        }
    }
    hosts_free(&h);
}

static void variables(const char *text, size_t n)
{
    argv_list w = {0};
    bool good = is_good(environment_parse(&w, "env", text, n));
    for (int i = 0; i < w.n; i++) {
        const char *equals = strchr(w.at[i], '=');
        must(equals && equals > w.at[i] && !strchr(w.at[i], '\n'));
        for (int k = 0; k < i; k++)
            must(strncmp(w.at[i], w.at[k], (size_t)(equals - w.at[i] + 1)) != 0);
    }
    must(good || n);
    argv_list_free(&w);
}

/* Words that are quoted and split again are the same; as JSON they are read by
 * a reader of JSON. */
static void command_line(const char *text)
{
    argv_list w = {0}, again = {0};
    dsi_text line = {0};
    bool good = is_good(argv_split(&w, "--launcher_args", text));
    for (int i = 0; good && i < w.n; i++) {
        dsi_text json = {0};
        text_add_shell(&line, w.at[i]);
        dsi_text_add(&line, " ");
        text_add_json(&json, w.at[i]);
        json_t *back = json_loads(json.s, JSON_DECODE_ANY, NULL);
        must(!dsi_is_utf8(w.at[i], strlen(w.at[i])) ||
             (back && !strcmp(json_string_value(back), w.at[i])));
        json_decref(back);
        dsi_text_free(&json);
    }
    if (good) must(argv_split(&again, "again", line.s ? line.s : "") == DS_OK && again.n == w.n);
    for (int i = 0; good && i < w.n; i++) must(!strcmp(w.at[i], again.at[i]));
    dsi_text_free(&line);
    argv_list_free(&w);
    argv_list_free(&again);
}

static void slurm(const char *list)
{
    ds_hosts h = {0};
    char *number = strpbrk(list, "0123456789") ? strstr(list, "-") : NULL;
    if (number && strspn(number + 1, "0123456789") > 3)
        return; /* a million hosts: fine, but slow */
    is_good(hosts_expand(&h, "list", list, 1));
    hosts_free(&h);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    enum { PARTS = 5 };
    if (!n) return 0;
    char *text = dsi_alloc(n), *part[PARTS] = {0}, *s = text, *end = text + n - 1;
    size_t length[PARTS] = {0};
    memcpy(text, data + 1, n - 1);
    for (int i = 0; i < PARTS; i++) {
        char *stop = memchr(s, 1, (size_t)(end - s));
        part[i] = s;
        length[i] = (size_t)((stop ? stop : end) - s);
        if (stop) *stop = 0;
        s = stop ? stop + 1 : end;
    }
    hostfile(data[0], part[0], length[0], part[1]);
    variables(part[2], length[2]);
    command_line(part[3]);
    slurm(part[4]);
    dsi_free(text);
    return 0;
}
