/* data/image_list.c: the image files of a folder of classes (image_list.h).
 *
 * The order is that of Python's sorted(os.walk(class)): folders by their whole
 * paths, in each of them files by name.
 * SPDX-License-Identifier: MIT */
#include "image_list.h"

#include "base/error.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DEEPEST 64 /* folders within folders; more is a link to a folder above */

static void names_free(dsi_names *names)
{
    for (int i = 0; i < names->n; i++) dsi_free(names->at[i]);
    dsi_list_free(names);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_sort(dsi_names *names)
{
    if (names->n) qsort(names->at, (size_t)names->n, sizeof *names->at, by_bytes);
}

static bool ends_with_one_of(const char *name, const char *const *ends)
{
    const char *dot = strrchr(name, '.');
    for (; dot && *ends; ends++)
        if (!strcasecmp(dot, *ends)) return true;
    return false;
}

static bool is_image(const char *name)
{
    static const char *const read[] = {".jpg", ".jpeg", ".png", NULL};
    return ends_with_one_of(name, read);
}

/* The other kinds that torchvision takes for images. */
static bool is_other_image(const char *name)
{
    static const char *const other[] = {".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", NULL};
    return ends_with_one_of(name, other);
}

/* Adds the names of folders and of other things in `path`, unsorted; either may
 * be NULL. False with the message. */
static bool read_folder(const char *path, dsi_names *folders, dsi_names *files)
{
    DIR *d = opendir(path);
    if (!d) return dsi_fail(DS_EIO, "image_folder: %s: %s", path, strerror(errno)) == DS_OK;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        bool folder = e->d_type == DT_DIR;
        if (e->d_type == DT_UNKNOWN || e->d_type == DT_LNK) {
            dsi_text whole = dsi_text_of("%s/%s", path, e->d_name);
            folder = dsi_is_folder(whole.s);
            dsi_text_free(&whole);
        }
        dsi_names *to = folder ? folders : files;
        if (to) dsi_list_add(to, dsi_strdup(e->d_name));
    }
    closedir(d);
    return true;
}

/* Adds `folder`, a path below root, and all folders in it to `folders`. */
static bool walk(const char *root, const char *folder, int depth, dsi_names *folders)
{
    if (depth > DEEPEST)
        return dsi_invalid(
            "image_folder: %s/%s: %d folders deep: is one of them a link to a folder "
            "above?",
            root, folder, depth);
    dsi_list_add(folders, dsi_strdup(folder));
    dsi_names in = {0};
    dsi_text path = dsi_text_of("%s/%s", root, folder);
    bool ok = read_folder(path.s, &in, NULL);
    for (int i = 0; ok && i < in.n; i++) {
        dsi_text below = dsi_text_of("%s/%s", folder, in.at[i]);
        ok = walk(root, below.s, depth + 1, folders);
        dsi_text_free(&below);
    }
    dsi_text_free(&path);
    names_free(&in);
    return ok;
}

typedef struct places {
    DSI_LIST(size_t)
} places;

/* Adds the images that are directly in `folder`. */
static bool add_images(dsi_image_list *list, const char *folder, places *at)
{
    dsi_names files = {0};
    dsi_text path = dsi_text_of("%s/%s", list->root, folder);
    bool ok = read_folder(path.s, NULL, &files);
    names_sort(&files);
    for (int i = 0; ok && i < files.n; i++) {
        if (is_other_image(files.at[i]))
            ok = dsi_fail(DS_EFORMAT, "image_folder: %s/%s: only JPEG and PNG are read; convert it",
                          path.s, files.at[i]) == DS_OK;
        if (!is_image(files.at[i])) continue;
        dsi_list_add(at, list->paths.n);
        dsi_text_add(&list->paths, "%s/%s", folder, files.at[i]);
        dsi_text_add_bytes(&list->paths, "", 1);
    }
    dsi_text_free(&path);
    names_free(&files);
    return ok;
}

static bool add_class(dsi_image_list *list, int label, places *at)
{
    dsi_names folders = {0};
    int before = at->n;
    bool ok = walk(list->root, list->classes.at[label], 1, &folders);
    names_sort(&folders);
    for (int i = 0; ok && i < folders.n; i++) ok = add_images(list, folders.at[i], at);
    names_free(&folders);
    if (!ok) return false;
    if (at->n == before)
        return dsi_fail(DS_EFORMAT,
                        "image_folder: %s/%s: no image (.jpg, .jpeg, .png) in the "
                        "folder of this class",
                        list->root, list->classes.at[label]) == DS_OK;
    list->n = at->n;
    list->label = dsi_realloc(list->label, (size_t)at->n * sizeof *list->label);
    for (int i = before; i < at->n; i++) list->label[i] = label;
    return true;
}

bool dsi_image_list_make(const char *root, dsi_image_list *out)
{
    places at = {0};
    *out = (dsi_image_list){.root = dsi_strdup(root)};
    bool ok = read_folder(root, &out->classes, NULL);
    if (ok && !out->classes.n)
        ok = dsi_fail(DS_EFORMAT, "image_folder: %s: no folder in it, expected one for each class",
                      root) == DS_OK;
    names_sort(&out->classes);
    for (int i = 0; ok && i < out->classes.n; i++) ok = add_class(out, i, &at);
    out->at = at.at;
    if (!ok) dsi_image_list_free(out);
    return ok;
}

void dsi_image_list_free(dsi_image_list *list)
{
    dsi_free(list->root);
    names_free(&list->classes);
    dsi_text_free(&list->paths);
    dsi_free(list->at);
    dsi_free(list->label);
    *list = (dsi_image_list){0};
}
