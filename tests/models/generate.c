/* tests/models/generate.c: a repetition penalty beside padding on the left, as
 * transformers 5.23 has it: padding does not count.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#define ROWS   3
#define LENGTH 14
#define NEW    16

/* Greedy tokens of transformers; the next logit is at least 0.024 lower. 193 is
 * padding, and the third token of row 0. */
static void penalty_with_padding(void **state)
{
    (void)state;
    static const int64_t prompt[ROWS][LENGTH] = {
        {193, 193, 193, 193, 193, 193, 193, 193, 193, 36, 6, 66, 4, 144},
        {193, 193, 193, 193, 193, 158, 63, 200, 133, 179, 4, 229, 81, 21},
        {165, 115, 233, 70, 5, 125, 127, 215, 33, 201, 158, 54, 78, 76}};
    static const int64_t want[ROWS][NEW] = {
        {144, 13, 193, 3, 126, 198, 160, 214, 138, 60, 111, 222, 23, 247, 80, 10},
        {126, 160, 45, 20, 111, 14, 198, 144, 3, 73, 230, 247, 23, 222, 74, 153},
        {160, 20, 55, 10, 214, 105, 80, 111, 222, 237, 138, 126, 28, 35, 59, 23}};
    ds_scope *scope = ds_scope_open();
    ds_module *m = ds_pretrained_load(DS_GOLDEN "/lm/models/gpt2-tied");
    ds_tensor *ids = ds_from_data(DS_I64, ds_shape(ROWS, LENGTH), prompt);
    int64_t real[ROWS * LENGTH];
    for (int64_t i = 0; i < ROWS * LENGTH; i++) real[i] = prompt[i / LENGTH][i % LENGTH] != 193;
    ds_tensor *mask = ds_from_data(DS_I64, ds_shape(ROWS, LENGTH), real);
    ds_tensor *y = ds_generate(m, ids, NEW, .attention_mask = mask, .pad_token_id = 193,
                               .repetition_penalty = 1.7);
    CHECK(y != NULL);
    CHECK_INT(ds_size(y, 1), NEW);
    const int64_t *got = ds_data(y);
    for (int64_t i = 0; i < ROWS * NEW; i++) CHECK_INT(got[i], want[i / NEW][i % NEW]);
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(penalty_with_padding))
