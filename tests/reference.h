/* tests/reference.h: drivers over the values of PyTorch and DeepSpeed.
 *
 * A family is a folder of JSON files, one a case or a list of cases; "tensors"
 * in one names a safetensors file beside it. A driver reads ALL files of its
 * family, so that other values of the same kind, found through $DS_REFERENCE,
 * meet the same checks:
 *
 *     static void run(Reference *r) { ... reference_close(r, "output", y, NULL); }
 *     static void ops(void **state) { (void)state; CHECK_INT(reference_each("ops", run), 0); }
 *
 * A failure is one line on stderr: case, tensor, worst element, both values.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/checkpoint.h>

#include <jansson.h>

typedef struct Reference {
    const char *id; /* "conv2d-03" */
    json_t *json;
    ds_state *tensors; /* of the file that "tensors" names; NULL if there is none */
    char folder[512];  /* for the other files of the family */
    int failures;      /* lines printed for this case */
    bool skipped;
    bool elsewhere; /* another program runs this case: not counted */
} Reference;

/* Runs every case of $DS_REFERENCE/family in the order of file names, each in a
 * scope of its own, and prints a summary; of tests/golden/family, if that
 * folder has no such family. Returns the number of failed cases; an empty
 * folder, a missing $DS_REFERENCE, or a file that cannot be read, counts as
 * one. */
int reference_each(const char *family, void (*run)(Reference *r));

/* The case did not pass, or cannot run for that reason: one line. */
void reference_fail(Reference *r, const char *format, ...) DS_PRINTF(2, 3);
void reference_skip(Reference *r, const char *format, ...) DS_PRINTF(2, 3);

/* got beside the case's tensor of that name, within the case's own "atol" and
 * "rtol" for the name; bit for bit if it has none. NaN meets NaN. Shapes and
 * dtypes must agree. */
bool reference_close(Reference *r, const char *name, ds_tensor *got);
/* The same with everything given. */
bool reference_within(Reference *r, const char *what, ds_tensor *got, ds_tensor *want, double atol,
                      double rtol);
bool reference_number_within(Reference *r, const char *what, double got, double want, double atol,
                             double rtol);

/* A tensor of the case, or NULL without a failure. It is on the default device,
 * as all that these functions make (DS_TEST_DEVICE). */
ds_tensor *reference_tensor(const Reference *r, const char *name);
/* Another safetensors file of the folder; NULL, with a failure of the case, if
 * it cannot be read. */
ds_state *reference_load(Reference *r, const char *file);

/* ---- JSON: an absent value is what the last argument says -------------------------------------------- */

/* Numbers, true as 1, and "nan", "inf", "-inf". */
double reference_number(const json_t *value, double absent);
double reference_double(const json_t *object, const char *key, double absent);
int64_t reference_int(const json_t *object, const char *key, int64_t absent);
bool reference_bool(const json_t *object, const char *key, bool absent);
const char *reference_text(const json_t *object, const char *key, const char *absent);
/* [1, 2, 3], or 5 as [5]; n = 0 if absent. */
ds_dims reference_dims(const json_t *object, const char *key);
/* int64 [n] of a list, or [n, m] of a list of lists. */
ds_tensor *reference_integers(const json_t *list);
