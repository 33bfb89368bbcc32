/* tests/checkpoint/shards.c: a state dict in several files and its index; an
 * index that does not fit its files.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"

#include "base/file.h"

#include <unistd.h>

static ds_state *sample(void)
{
    ds_state *state = ds_state_new();
    char name[20];
    for (int i = 0; i < 7; i++) {
        snprintf(name, sizeof name, "layer.%d", i);
        ds_state_set(state, name, ds_full(DS_F32, ds_shape(10 + i), i));
    }
    ds_state_set(state, "large", ds_ones(DS_F64, ds_shape(100)));
    return state;
}

static void same(const ds_state *a, const ds_state *b)
{
    CHECK_INT(ds_state_len(a), ds_state_len(b));
    for (int i = 0; i < ds_state_len(b); i++) {
        CHECK(!strcmp(ds_state_name(a, i), ds_state_name(b, i)));
        ds_tensor *x = ds_state_at(a, i), *y = ds_state_at(b, i);
        CHECK_INT(ds_numel(x), ds_numel(y));
        CHECK(!memcmp(ds_data(x), ds_data(y), (size_t)ds_numel(y) * 4));
    }
}

static void there_and_back(void **unused)
{
    (void)unused;
    static const char *const names[][3] = {
        {"model.safetensors", "model.safetensors.index.json", "model-00002-of-00006.safetensors"},
        {"pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-00005-of-00006.bin"}};
    for (int k = 0; k < 2; k++) {
        folder_make();
        ds_state *state = sample(), *again;
        CHECK_INT(ds_save_sharded(state, folder_path(names[k][0]), 100), DS_OK);
        CHECK(dsi_file_exists(folder_path(names[k][1])) &&
              dsi_file_exists(folder_path(names[k][2])));
        CHECK(!dsi_file_exists(folder_path(names[k][0])));
        for (int i = 0; i < 2; i++) { /* by the path of the whole, and by that of the index */
            again = ds_load(folder_path(names[k][i]));
            CHECK(again != NULL);
            same(again, state);
            ds_state_free(again);
        }
        CHECK_INT(ds_save_sharded(state, folder_path("one.pth"), 1 << 20), DS_OK);
        again = ds_load(folder_path("one.pth"));
        same(again, state);
        ds_state_free(again);
        ds_state_free(state);
        folder_remove();
    }
}

static void write_index(const char *text)
{
    FILE *f = fopen(folder_path("m.safetensors.index.json"), "w");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void refused(void **unused)
{
    (void)unused;
    folder_make();
    ds_state *state = sample();
    CHECK_INT(ds_save(state, folder_path("a.safetensors")), DS_OK);
    const char *path = folder_path("m.safetensors");
    static const char *const bad[][2] = {
        {"{", "is not JSON"},
        {"{}", "there is no \"weight_map\""},
        {"{\"weight_map\": []}", "there is no \"weight_map\""},
        {"{\"weight_map\": {\"x\": \"a.safetensors\"}}", "tensor x is not in a.safetensors"},
        {"{\"weight_map\": {\"large\": \"b.safetensors\"}}", "b.safetensors: No such file"},
        {"{\"weight_map\": {\"large\": \"../a.safetensors\"}}",
         "its file is no name of a file beside it"},
        {"{\"weight_map\": {\"large\": 3}}", "its file is no name"},
        {"{\"weight_map\": {\"large\": \"m.safetensors.index.json\"}}", "is in an index"},
        {"{\"weight_map\": {\"large\": \"a.onnx\"}}", "which format is meant?"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_index(bad[i][0]);
        CHECK(!ds_load(path));
        CHECK_ERROR(bad[i][1]);
    }
    CHECK_INT(ds_save_sharded(state, path, 0), DS_EINVAL);
    CHECK_ERROR("at least 1 byte");
    CHECK_INT(ds_save_sharded(state, folder_path("none/m.safetensors"), 100), DS_EIO);
    CHECK_ERROR("none/m-00001-of-00006.safetensors");
    ds_state_free(state);
    folder_remove();
}

static void a_save_is_checked_before(void **unused)
{
    (void)unused;
    folder_make();
    CHECK_INT(ds_save_check(folder_path("x.txt")), DS_EINVAL);
    CHECK_ERROR("x.txt: which format");
    CHECK_INT(ds_save_check(folder_path("no/x.safetensors")), DS_EIO);
    CHECK_ERROR("no/x.safetensors: No such file or directory");
    CHECK_INT(ds_save_check(NULL), DS_EINVAL);
    CHECK_ERROR("path is NULL");
    CHECK_INT(ds_save_check(folder_path("new.pth")), DS_OK);
    CHECK(access(folder_path("new.pth"), F_OK) != 0);
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(a_save_is_checked_before), cmocka_unit_test(there_and_back),
          cmocka_unit_test(refused))
