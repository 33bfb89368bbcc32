/* tests/data/dataset.c: datasets: custom ones, parts, tensors; refused
 * arguments; ownership.
 * SPDX-License-Identifier: MIT */
#include "check.h"

/* Sample i is the number 10 i; data sets alive are counted. */
typedef struct tens {
    int64_t n, epoch;
} tens;

static int alive;

static int64_t tens_len(void *self) { return ((tens *)self)->n; }

static ds_status tens_get(void *self, int64_t i, void **field)
{
    *(int64_t *)field[0] = 10 * i + 1000 * ((tens *)self)->epoch;
    return DS_OK;
}

static void tens_epoch(void *self, int64_t epoch) { ((tens *)self)->epoch = epoch; }

static void tens_free(void *self)
{
    (void)self;
    alive--;
}

static const ds_dataset_type tens_type = {"Tens", sizeof(tens), tens_len, tens_get, tens_free};

static ds_dataset *tens_new(int64_t n)
{
    ds_dataset *d = ds_dataset_new(&tens_type, 1, (ds_field[]){{DS_I64, {0}, "ten"}});
    ((tens *)ds_dataset_self(d))->n = n;
    ds_dataset_on_epoch(d, tens_epoch);
    alive++;
    return d;
}

static int64_t value(ds_dataset *d, int64_t i)
{
    int64_t x = -1;
    CHECK_INT(ds_dataset_get(d, i, (void *[]){&x}), DS_OK);
    return x;
}

static void own_data_sets_work(void **state)
{
    (void)state;
    char name[] = "ten";
    ds_field field = {DS_I64, {0}, name};
    ds_dataset *d = ds_dataset_new(&tens_type, 1, &field);
    alive++;
    name[0] = 'x'; /* names are copied */
    assert_string_equal(ds_dataset_field(d, 0)->name, "ten");
    assert_string_equal(ds_dataset_name(d), "Tens");
    CHECK_INT(ds_dataset_len(d), 0); /* self is zeroed */
    ((tens *)ds_dataset_self(d))->n = 3;
    CHECK_INT(ds_dataset_len(d), 3);
    CHECK_INT(ds_dataset_fields(d), 1);
    CHECK(!ds_dataset_field(d, 1) && !ds_dataset_field(d, -1));
    CHECK_INT(value(d, 2), 20);
    int64_t x;
    CHECK_INT(ds_dataset_get(d, 3, (void *[]){&x}), DS_EINVAL);
    CHECK_ERROR("Tens: there is no sample 3: it has 3");
    CHECK_INT(ds_dataset_get(d, -1, (void *[]){&x}), DS_EINVAL);
    CHECK_ERROR("no sample -1");
    ds_dataset_free(d);
    CHECK_INT(alive, 0);
}

static void wrong_types_are_refused(void **state)
{
    (void)state;
    ds_field good = {DS_F32, {0}, NULL}, bad = good;
    ds_dataset_type no_get = tens_type;
    no_get.get = NULL;
    CHECK(!ds_dataset_new(NULL, 1, &good));
    CHECK_ERROR("needs len and get");
    CHECK(!ds_dataset_new(&no_get, 1, &good));
    CHECK_ERROR("needs len and get");
    CHECK(!ds_dataset_new(&tens_type, 0, &good));
    CHECK_ERROR("0 fields");
    CHECK(!ds_dataset_new(&tens_type, DS_MAX_FIELDS + 1, &good));
    CHECK_ERROR("9 fields");
    CHECK(!ds_dataset_new(&tens_type, 1, NULL));
    CHECK_ERROR("fields");
    bad.dtype = (ds_dtype)77;
    CHECK(!ds_dataset_new(&tens_type, 1, &bad));
    CHECK_ERROR("dtype number 77");
    bad = (ds_field){DS_F32, {DS_MAX_DIMS, {1}}, NULL};
    CHECK(!ds_dataset_new(&tens_type, 1, &bad));
    CHECK_ERROR("8 dimensions");
    bad = (ds_field){DS_F32, {2, {3, -1}}, NULL};
    CHECK(!ds_dataset_new(&tens_type, 1, &bad));
    CHECK_ERROR("negative");
}

static void null_is_passed(void **state)
{
    (void)state;
    ds_dataset_free(NULL);
    CHECK(!ds_dataset_self(NULL) && !ds_dataset_len(NULL) && !ds_dataset_fields(NULL));
    CHECK(!ds_dataset_field(NULL, 0));
    ds_dataset_set_epoch(NULL, 1);
    CHECK(ds_dataset_get(NULL, 0, NULL) != DS_OK);
    CHECK_ERROR("NULL");
    CHECK(!ds_subset(NULL, 0, 1));
    CHECK_ERROR("NULL");
}

static void parts_are_clipped(void **state)
{
    (void)state;
    static const int64_t cases[][4] = {/* begin, n, len, first */
                                       {0, 10, 10, 0}, {3, 4, 4, 30},        {8, 5, 2, 80},
                                       {9, 1, 1, 90},  {10, 3, 0, 0},        {99, 3, 0, 0},
                                       {0, 0, 0, 0},   {1, INT64_MAX, 9, 10}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        ds_dataset *d = ds_subset(tens_new(10), cases[k][0], cases[k][1]);
        CHECK_INT(ds_dataset_len(d), cases[k][2]);
        if (cases[k][2]) CHECK_INT(value(d, 0), cases[k][3]);
        int64_t x;
        CHECK_INT(ds_dataset_get(d, cases[k][2], (void *[]){&x}), DS_EINVAL);
        ds_error_clear();
        ds_dataset_free(d);
    }
    CHECK(!ds_subset(tens_new(10), -1, 3));
    CHECK_ERROR("begin -1");
    CHECK(!ds_subset(tens_new(10), 0, -3));
    CHECK_ERROR("n -3");
    CHECK_INT(alive, 0);
}

static void parts_by_index(void **state)
{
    (void)state;
    int64_t index[] = {7, 2, 2};
    ds_dataset *d = ds_subset_of(tens_new(10), index, 3);
    index[0] = 0; /* it was copied */
    CHECK_INT(ds_dataset_len(d), 3);
    CHECK(value(d, 0) == 70 && value(d, 1) == 20 && value(d, 2) == 20);
    ds_dataset_set_epoch(d, 2);
    CHECK_INT(value(d, 0), 2070);
    ds_dataset_free(d);
    index[1] = 10;
    CHECK(!ds_subset_of(tens_new(10), index, 3));
    CHECK_ERROR("subset_of: index 1 is 10: ");
    CHECK(!ds_subset_of(tens_new(10), NULL, 3));
    CHECK_ERROR("subset_of: 3 indices");
    CHECK(!ds_subset_of(NULL, index, 1));
    CHECK_ERROR("subset_of");
    CHECK_INT(alive, 0);
}

/* The samples are those of PyTorch 2.15 after manual_seed(3). */
static void random_parts(void **state)
{
    (void)state;
    static const int order[] = {6, 0, 3, 7, 8, 5, 1, 9, 2, 4};
    static const struct {
        int n;
        double lengths[3];
        int sizes[3];
    } cases[] = {{2, {7, 3}, {7, 3}}, {3, {0.5, 0.3, 0.2}, {5, 3, 2}}, {2, {0.35, 0.65}, {4, 6}}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        ds_dataset *part[3];
        ds_seed(3);
        CHECK(ds_random_split(tens_new(10), cases[k].lengths, cases[k].n, part));
        for (int p = 0, at = 0; p < cases[k].n; p++) {
            CHECK_INT(alive, 1);
            CHECK_INT(ds_dataset_len(part[p]), cases[k].sizes[p]);
            ds_dataset_set_epoch(part[p], 2); /* not passed on */
            for (int i = 0; i < cases[k].sizes[p]; i++)
                CHECK_INT(value(part[p], i), 10 * order[at++]);
            ds_dataset_free(part[p]);
        }
        CHECK_INT(alive, 0);
    }
}

static void refused_parts(void **state)
{
    (void)state;
    ds_dataset *part[2];
    CHECK(!ds_random_split(tens_new(10), (double[]){7, 4}, 2, part));
    CHECK_ERROR("random_split: the 2 lengths are 11 in all: expected 10, the samples that there");
    CHECK(!ds_random_split(tens_new(10), (double[]){0.5, 0.4}, 2, part));
    CHECK_ERROR("random_split: length 0 is 0.5: expected a number of samples, or shares that add");
    CHECK(!ds_random_split(tens_new(10), (double[]){11, -1}, 2, part));
    CHECK_ERROR("random_split: length 1 is -1: expected 0 or more");
    CHECK(!ds_random_split(tens_new(10), (double[]){10}, 0, part));
    CHECK_ERROR("random_split: 0 parts: expected at least 1");
    CHECK(!ds_random_split(tens_new(10), NULL, 2, part));
    CHECK_ERROR("random_split");
    CHECK_INT(alive, 0);
}

static void sets_in_a_row(void **state)
{
    (void)state;
    ds_dataset *d = ds_concat_dataset(
        (ds_dataset *[]){tens_new(2), ds_subset(tens_new(3), 9, 1), tens_new(3)}, 3);
    CHECK_INT(ds_dataset_len(d), 5);
    CHECK(value(d, 0) == 0 && value(d, 1) == 10 && value(d, 2) == 0 && value(d, 4) == 20);
    int64_t x;
    CHECK_INT(ds_dataset_get(d, 5, (void *[]){&x}), DS_EINVAL);
    CHECK_ERROR("ConcatDataset: there is no sample 5: it has 5");
    ds_dataset_set_epoch(d, 2);
    CHECK_INT(value(d, 4), 2020);
    ds_dataset_free(d);
    ds_scope *s = ds_scope_open();
    ds_tensor *rows = ds_zeros(DS_F32, ds_shape(2, 3));
    CHECK(!ds_concat_dataset((ds_dataset *[]){tens_new(2), ds_tensor_dataset(&rows, 1)}, 2));
    CHECK_ERROR("concat_dataset: field 0 of set 1 is float32 [3], of set 0 int64 []");
    ds_scope_close(s);
    CHECK(!ds_concat_dataset((ds_dataset *[]){tens_new(2), NULL}, 2));
    CHECK_ERROR("concat_dataset");
    CHECK(!ds_concat_dataset(NULL, 2));
    CHECK_ERROR("concat_dataset: an operand is NULL");
    CHECK(!ds_concat_dataset(NULL, 0));
    CHECK_ERROR("concat_dataset: 0 data sets: expected at least 1");
    CHECK_INT(alive, 0);
}

static void epochs_reach_the_innermost(void **state)
{
    (void)state;
    ds_dataset *d = ds_subset(ds_subset(tens_new(10), 2, 8), 1, 3);
    CHECK_INT(value(d, 0), 30);
    ds_dataset_set_epoch(d, 2);
    CHECK_INT(value(d, 0), 2030);
    ds_dataset_free(d);
    CHECK_INT(alive, 0);
}

static void tensors_become_rows(void **state)
{
    (void)state;
    ds_tensor *x = ds_arange(DS_F32, 0, 12, 1), *y = ds_arange(DS_I64, 5, 8, 1);
    x = ds_reshape(x, ds_shape(3, 2, 2));
    ds_dataset *d = ds_tensor_dataset((ds_tensor *[]){x, y}, 2);
    CHECK_INT(ds_dataset_len(d), 3);
    CHECK_INT(ds_dataset_fields(d), 2);
    const ds_field *f = ds_dataset_field(d, 0);
    CHECK(f->dtype == DS_F32 && f->shape.n == 2 && f->shape.d[0] == 2 && f->shape.d[1] == 2);
    CHECK_INT(ds_dataset_field(d, 1)->shape.n, 0);
    ((float *)ds_data_mut(x))[8] = 99; /* the data set has its own copy */
    float row[4];
    int64_t label;
    CHECK_INT(ds_dataset_get(d, 2, (void *[]){row, &label}), DS_OK);
    CHECK(row[0] == 8 && row[3] == 11 && label == 7);
    ds_dataset_free(d);
}

static void views_are_copied_in_their_order(void **state)
{
    (void)state;
    ds_tensor *x = ds_transpose(ds_reshape(ds_arange(DS_F32, 0, 6, 1), ds_shape(2, 3)), 0, 1);
    ds_dataset *d = ds_tensor_dataset(&x, 1);
    float row[2];
    CHECK_INT(ds_dataset_get(d, 1, (void *[]){row}), DS_OK);
    CHECK(row[0] == 1 && row[1] == 4);
    ds_dataset_free(d);
}

static void wrong_tensors_are_refused(void **state)
{
    (void)state;
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(3, 2)), *y = ds_zeros(DS_F32, ds_shape(4));
    ds_tensor *s = ds_scalar(DS_F32, 1);
    CHECK(!ds_tensor_dataset((ds_tensor *[]){x, y}, 2));
    CHECK_ERROR("tensor 1 has 4 rows, tensor 0 has 3");
    CHECK(!ds_tensor_dataset(&s, 1));
    CHECK_ERROR("tensor 0 is []: expected a dimension of samples");
    CHECK(!ds_tensor_dataset(&x, 0));
    CHECK_ERROR("0 tensors");
    CHECK(!ds_tensor_dataset(NULL, 1));
    ds_error_clear();
    CHECK(!ds_tensor_dataset((ds_tensor *[]){x, NULL}, 2));
    CHECK_ERROR("NULL");
}

TEST_MAIN(cmocka_unit_test(own_data_sets_work), cmocka_unit_test(wrong_types_are_refused),
          cmocka_unit_test(null_is_passed), cmocka_unit_test(parts_are_clipped),
          cmocka_unit_test(parts_by_index), cmocka_unit_test(random_parts),
          cmocka_unit_test(refused_parts), cmocka_unit_test(sets_in_a_row),
          cmocka_unit_test(epochs_reach_the_innermost), cmocka_unit_test(tensors_become_rows),
          cmocka_unit_test(views_are_copied_in_their_order),
          cmocka_unit_test(wrong_tensors_are_refused))
