/* data/image_list.h: the image files of a folder of classes.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "base/text.h"

typedef struct dsi_names {
    DSI_LIST(char *) /* owned */
} dsi_names;

/* Sample i is the file root/<dsi_image_path>, of class label[i]. */
typedef struct dsi_image_list {
    char *root;
    dsi_names classes; /* sorted */
    dsi_text paths;    /* below root, one after the other, each with its final 0 */
    int64_t n;
    size_t *at;     /* [n]: where a path begins */
    int32_t *label; /* [n] */
} dsi_image_list;

/* Lists the .jpg, .jpeg and .png files in each folder of root and in folders
 * in that, links followed, in ImageFolder's order;
 * what begins with a dot is left out. False with the message: no folder, no
 * class, a class without an image, an image of a kind that is not read. */
bool dsi_image_list_make(const char *root, dsi_image_list *out);
void dsi_image_list_free(dsi_image_list *list);

static inline const char *dsi_image_path(const dsi_image_list *list, int64_t i)
{
    return list->paths.s + list->at[i];
}
