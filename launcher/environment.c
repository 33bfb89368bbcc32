/* launcher/environment.c: the variables that ranks on other machines get.
 *
 * Variables of this process are selected by the beginning of their names. Lines
 * of .deepspeed_env are NAME=VALUE: the value is all that follows the first =,
 * byte for byte; nothing in it is expanded, and quotes are part of it.
 * SPDX-License-Identifier: MIT */
#include "environment.h"

#include "base/error.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* DeepSpeed's (MLFLOW, PYTHON, MV2, UCX; with GPUs NCCL, LD_LIBRARY, PATH),
 * ours, and those of the MPIs, of their networks, and of numeric libraries. */
static const char *const forwarded[] = {
    "NCCL",   "UCX", "DS_",  "CUDA_", "OMP_", "OMPI_MCA_", "MLFLOW",     "PYTHON", "MV2",
    "MPICH_", "FI_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "LD_LIBRARY", "PATH"};

#define LONGEST_VARIABLE 131072 /* with its name and a zero byte: the kernel's MAX_ARG_STRLEN */

/* The launcher sets the first for each rank; no rank needs the second. */
#define JOIN_SECRET "DS_JOIN_SECRET"
static const char *const withheld[] = {"CUDA_VISIBLE_DEVICES", JOIN_SECRET};

/* Nodes of the AISC platform set these themselves (DeepSpeed's EXCLUDE_ENVS). */
static const char *const withheld_aisc[] = {"NCCL_IB_HCA", "UCX_NET_DEVICES"};

static bool variable_has_name(const char *entry, const char *name, size_t length)
{
    return !strncmp(entry, name, length) && entry[length] == '=';
}

/* A variable that is there already is replaced where it is, so that the order
 * of the rest stays. */
static void environment_set_bytes(argv_list *w, const char *name, size_t length, const char *value,
                                  size_t bytes)
{
    dsi_text entry = dsi_text_of("%.*s=", (int)length, name);
    dsi_text_add_bytes(&entry, value, bytes);
    for (int i = 0; i < w->n; i++)
        if (variable_has_name(w->at[i], name, length)) {
            dsi_free(w->at[i]);
            w->at[i] = entry.s;
            return;
        }
    argv_add(w, "%s", entry.s);
    dsi_text_free(&entry);
}

void environment_set(argv_list *w, const char *name, const char *format, ...)
{
    dsi_text value = {0};
    va_list args;
    va_start(args, format);
    dsi_text_add_args(&value, format, args);
    va_end(args);
    environment_set_bytes(w, name, strlen(name), value.s, value.n);
    dsi_text_free(&value);
}

/* ---- of this process ------------------------------------------------------------------ */

static bool is_among(const char *entry, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (variable_has_name(entry, names[i], strlen(names[i]))) return true;
    return false;
}

/* entry: NAME=VALUE of this process. */
static bool is_forwarded(const char *entry)
{
    if (is_among(entry, withheld, sizeof withheld / sizeof *withheld)) return false;
    if (getenv("AISC_JOB_NAME") &&
        is_among(entry, withheld_aisc, sizeof withheld_aisc / sizeof *withheld_aisc))
        return false;
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
        if (!strncmp(entry, forwarded[i], strlen(forwarded[i]))) return true;
    return false;
}

/* ---- .deepspeed_env ------------------------------------------------------------------- */

static bool is_name(const char *s, size_t n)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_",
                      digits[] = "0123456789";
    for (size_t i = 0; i < n; i++)
        if (!s[i] || (!strchr(letters, s[i]) && (!i || !strchr(digits, s[i])))) return false;
    return n > 0;
}

ds_status environment_parse(argv_list *w, const char *path, const char *text, size_t bytes)
{
    const char *end = text + bytes;
    int number = 0;
    for (const char *line = text, *next; line < end; line = next + 1) {
        next = memchr(line, '\n', (size_t)(end - line));
        if (!next) next = end;
        number++;
        const char *last = next > line && next[-1] == '\r' ? next - 1 : next, *name = line;
        while (name < last && (*name == ' ' || *name == '\t')) name++;
        if (name == last || *name == '#') continue;
        const char *equals = memchr(name, '=', (size_t)(last - name));
        if (!equals)
            return dsi_fail(DS_EINVAL, "%s:%d: a line without =: expected NAME=VALUE", path,
                            number);
        const char *name_end = equals;
        while (name_end > name && (name_end[-1] == ' ' || name_end[-1] == '\t')) name_end--;
        if (!is_name(name, (size_t)(name_end - name)))
            return dsi_fail(DS_EINVAL,
                            "%s:%d: the text before = is no variable name: "
                            "expected NAME=VALUE",
                            path, number);
        size_t length = (size_t)(last - equals - 1);
        if (memchr(equals, 0, length + 1))
            return dsi_fail(DS_EINVAL, "%s:%d: a zero byte, which no variable can hold", path,
                            number);
        if ((size_t)(last - name) >= LONGEST_VARIABLE)
            return dsi_fail(DS_EINVAL, "%s:%d: %zu bytes: expected fewer than %d, as Linux takes",
                            path, number, (size_t)(last - name), LONGEST_VARIABLE);
        environment_set_bytes(w, name, (size_t)(name_end - name), equals + 1, length);
    }
    return DS_OK;
}

static ds_status environment_read_file(argv_list *w, const char *path)
{
    size_t bytes;
    char *text = dsi_file_read(path, &bytes);
    if (!text) return DS_EIO;
    ds_status status = environment_parse(w, path, text, bytes);
    dsi_free(text);
    return status;
}

/* DS_ENV_FILE may be an absolute path; else its name, or .deepspeed_env, is
 * looked for in the home folder and then in the working folder, and both are
 * read. A file named by DS_ENV_FILE must exist in one of them. */
static ds_status environment_read_files(argv_list *w)
{
    const char *named = getenv("DS_ENV_FILE"), *home = getenv("HOME");
    const char *name = named && *named ? named : ".deepspeed_env";
    bool absolute = *name == '/', found = false;
    const char *folders[] = {home && *home ? home : ".", "."};
    ds_status status = DS_OK;
    for (int i = absolute || !home || !*home; i < 2 && status == DS_OK; i++) {
        dsi_text path = dsi_text_of("%s%s%s", absolute ? "" : folders[i], absolute ? "" : "/",
                                    name);
        if (dsi_file_exists(path.s)) {
            found = true;
            status = environment_read_file(w, path.s);
        }
        dsi_text_free(&path);
    }
    if (status == DS_OK && named && *named && !found)
        return dsi_fail(DS_EINVAL, "DS_ENV_FILE=%s: there is no such file%s", named,
                        absolute ? "" : " in the home folder or in this one");
    return status;
}

ds_status environment_collect(argv_list *w)
{
    for (char **e = environ; e && *e; e++) {
        const char *equals = strchr(*e, '=');
        if (equals && is_forwarded(*e))
            environment_set_bytes(w, *e, (size_t)(equals - *e), equals + 1, strlen(equals + 1));
    }
    ds_status status = environment_read_files(w);
    for (int i = 0; i < w->n; i++) /* a file may have it */
        if (variable_has_name(w->at[i], JOIN_SECRET, strlen(JOIN_SECRET))) {
            dsi_free(w->at[i]);
            memmove(w->at + i, w->at + i + 1, (size_t)(w->n - i) * sizeof *w->at);
            w->n--;
        }
    return status;
}
