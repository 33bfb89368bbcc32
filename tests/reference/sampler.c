/* tests/reference/sampler.c: the files of folder sampler: random streams, orders of loaders and samplers,
 * default initial values. All bit for bit, except sums and norms, which no order of summation is named for.
 * SPDX-License-Identifier: MIT */
#include "base/rng.h"
#include "check.h"

#include <dirent.h>
#include <jansson.h>

static json_t *load(const char *id)
{
    const char *root = getenv("DS_REFERENCE");
    char path[4096];
    snprintf(path, sizeof path, "%s/sampler/%s", root ? root : DS_GOLDEN, id);
    json_error_t error;
    json_t *file = json_load_file(path, 0, &error);
    if (!file) fail_msg("%s: %s", path, error.text);
    return file;
}

static const json_t *member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!value) fail_msg("the case has no \"%s\"", key);
    return value;
}

static int64_t int_of(const json_t *object, const char *key)
{
    return json_integer_value(member(object, key));
}

/* ---- random_streams ------------------------------------------------------------------------------ */

static void check_f32(const json_t *want, const float *got, const char *what)
{
    for (size_t i = 0; i < json_array_size(want); i++) {
        float w = (float)json_number_value(json_array_get(want, i));
        if (got[i] != w) fail_msg("%s[%zu] is %.9g, want %.9g", what, i, (double)got[i], (double)w);
    }
}

static void check_f64(const json_t *want, const double *got, const char *what)
{
    for (size_t i = 0; i < json_array_size(want); i++) {
        double w = json_number_value(json_array_get(want, i));
        if (got[i] != w) fail_msg("%s[%zu] is %.17g, want %.17g", what, i, got[i], w);
    }
}

static void check_i64(const json_t *want, const int64_t *got, const char *what)
{
    for (size_t i = 0; i < json_array_size(want); i++) {
        int64_t w = json_integer_value(json_array_get(want, i));
        if (got[i] != w)
            fail_msg("%s[%zu] is %lld, want %lld", what, i, (long long)got[i], (long long)w);
    }
}

static void check_permutation(dsi_rng *g, int64_t n, const json_t *head, const json_t *tail)
{
    int64_t *x = malloc((size_t)(n ? n : 1) * sizeof *x);
    dsi_rng_permutation(g, x, n);
    check_i64(head, x, "randperm");
    if (tail) check_i64(tail, x + n - json_array_size(tail), "randperm's tail");
    free(x);
}

/* Keys name the call: "uniform_-2_3_7" is 7 values of U(-2, 3). */
static bool check_stream(dsi_rng *g, const char *key, const json_t *want)
{
    enum { MOST = 4096 };
    static float x[MOST];
    static double d[MOST];
    static int64_t k[MOST];
    double a, b;
    int n = (int)json_array_size(want), used = 0;
    if (n > MOST) return false;
    if (!strcmp(key, "random_int64")) {
        for (int i = 0; i < n; i++) k[i] = dsi_rng_i64(g);
        check_i64(want, k, key);
    } else if (sscanf(key, "rand_float64_%n", &used), used) {
        dsi_rng_uniform_f64(g, d, n, 0, 1);
        check_f64(want, d, key);
    } else if (sscanf(key, "randn_float64_%n", &used), used) {
        dsi_rng_normal_f64(g, d, n, 0, 1);
        check_f64(want, d, key);
    } else if (sscanf(key, "uniform_%lf_%lf_%n", &a, &b, &used), used) {
        dsi_rng_uniform_f32(g, x, n, a, b);
        check_f32(want, x, key);
    } else if (sscanf(key, "normal_%lf_%lf_%n", &a, &b, &used), used) {
        dsi_rng_normal_f32(g, x, n, a, b);
        check_f32(want, x, key);
    } else if (sscanf(key, "randint_%lf_%lf_%n", &a, &b, &used), used) {
        for (int i = 0; i < n; i++) k[i] = dsi_rng_below(g, (int64_t)a, (int64_t)b);
        check_i64(want, k, key);
    } else if (sscanf(key, "bernoulli_%lf_%n", &a, &used), used) {
        dsi_rng_bernoulli_f32(g, x, n, a);
        check_f32(want, x, key);
    } else if (sscanf(key, "randperm_%d_head_tail%n", &n, &used), used) {
        check_permutation(g, n, json_array_get(want, 0), json_array_get(want, 1));
    } else if (!strcmp(key, "two_rand_3_then_randn_3")) {
        for (size_t i = 0; i < 3; i++) {
            if (i < 2)
                dsi_rng_uniform_f32(g, x, 3, 0, 1);
            else
                dsi_rng_normal_f32(g, x, 3, 0, 1);
            check_f32(json_array_get(want, i), x, key);
        }
    } else if (!strcmp(key, "randn_1_then_rand_3")) {
        dsi_rng_normal_f32(g, x, 1, 0, 1);
        check_f32(json_array_get(want, 0), x, key);
        dsi_rng_uniform_f32(g, x, 3, 0, 1);
        check_f32(json_array_get(want, 1), x, key);
    } else if (!strcmp(key, "randn_1_three_times")) {
        for (int i = 0; i < 3; i++) dsi_rng_normal_f32(g, x + i, 1, 0, 1);
        check_f32(want, x, key);
    } else if (sscanf(key, "rand_%*d%n", &used), used) {
        dsi_rng_uniform_f32(g, x, n, 0, 1);
        check_f32(want, x, key);
    } else if (sscanf(key, "randn_%*d%n", &used), used) {
        dsi_rng_normal_f32(g, x, n, 0, 1);
        check_f32(want, x, key);
    } else {
        return false;
    }
    return true;
}

static void random_streams(void **state)
{
    (void)state;
    json_t *file = load("random_streams.json");
    size_t i;
    const json_t *c;
    json_array_foreach(member(file, "cases"), i, c)
    {
        const char *key;
        json_t *want;
        uint64_t seed = (uint64_t)int_of(c, "seed");
        json_object_foreach((json_t *)c, key, want)
        {
            dsi_rng g;
            dsi_rng_seed(&g, seed);
            if (!strcmp(key, "seed")) continue;
            if (!strcmp(key, "initial_seed")) {
                CHECK_INT((int64_t)g.seed, json_integer_value(want));
            } else if (!strcmp(key, "randperm")) {
                const char *n;
                json_t *order;
                json_object_foreach(want, n, order)
                {
                    dsi_rng_seed(&g, seed);
                    check_permutation(&g, atoll(n), order, NULL);
                }
            } else if (!check_stream(&g, key, want)) {
                fail_msg("no driver for the stream \"%s\"", key);
            }
        }
    }
    json_decref(file);
}

/* ---- every file has its driver ------------------------------------------------------------------- */

static void no_file_is_left_out(void **state)
{
    (void)state;
    static const char *const known[] = {"random_streams.json"};
    const char *root = getenv("DS_REFERENCE");
    char path[4096];
    snprintf(path, sizeof path, "%s/sampler", root ? root : DS_GOLDEN);
    DIR *folder = opendir(path);
    CHECK(folder != NULL);
    for (struct dirent *e; folder && (e = readdir(folder));) {
        if (e->d_name[0] == '.') continue;
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found |= !strcmp(e->d_name, known[i]);
        if (!found) print_message("no driver for %s/%s\n", path, e->d_name);
    }
    closedir(folder);
}

TEST_MAIN(cmocka_unit_test(random_streams), cmocka_unit_test(no_file_is_left_out))
