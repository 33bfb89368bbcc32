/* data/image_folder.c: torchvision.datasets.ImageFolder: a folder of images for
 * each class, made one size.
 *
 * Samples have torchvision's order: classes by name, in a class folders by
 * path, in a folder files by name, all by their bytes. Only the paths are kept;
 * a get reads and decodes its file.
 *
 * Invariants: all is made by the constructor; gets, on several threads, read
 * it. paths holds n texts, relative to root, of which path i begins at at[i].
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/file.h"
#include "base/list.h"
#include "base/text.h"
#include "chance.h"
#include "image_list.h"
#include "picture.h"
#include "resize.h"

#include <deepspeed/data.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct image_folder {
    dsi_image_list list;
    ds_image_folder_opts o; /* without zeros that stand for a default */
    dsi_chance chance;
} image_folder;

/* The part of a picture that a sample shows, in pixels. */
typedef struct box {
    int64_t top, left, h, w;
} box;

static int64_t folder_len(void *self) { return ((image_folder *)self)->list.n; }

/* RandomResizedCrop.get_params: ten attempts at a box with a random share of
 * the area and a random ratio of its edges; then the largest box in the middle
 * that has a ratio of the range. */
static box random_box(const image_folder *d, int64_t i, int64_t h, int64_t w)
{
    const ds_image_folder_opts *o = &d->o;
    uint64_t draw = dsi_chance_first(&d->chance, i, 3);
    double least = log(o->ratio[0]), most = log(o->ratio[1]);
    for (int attempt = 0; attempt < 10; attempt++) {
        double share = o->scale[0] + dsi_chance_unit(draw) * (o->scale[1] - o->scale[0]);
        draw = dsi_chance_next(draw);
        double ratio = exp(least + dsi_chance_unit(draw) * (most - least));
        double area = share * (double)h * (double)w;
        double box_w = rint(sqrt(area * ratio)), box_h = rint(sqrt(area / ratio));
        draw = dsi_chance_next(draw);
        if (!(box_w >= 1 && box_w <= (double)w && box_h >= 1 && box_h <= (double)h)) continue;
        box b = {.h = (int64_t)box_h, .w = (int64_t)box_w};
        b.top = dsi_chance_below(draw, h - b.h + 1);
        b.left = dsi_chance_below(dsi_chance_next(draw), w - b.w + 1);
        return b;
    }
    double ratio = (double)w / (double)h;
    box b = {.h = h, .w = w};
    if (ratio < o->ratio[0]) b.h = (int64_t)rint((double)w / o->ratio[0]);
    if (ratio > o->ratio[1]) b.w = (int64_t)rint((double)h * o->ratio[1]);
    if (b.h < 1) b.h = 1;
    if (b.w < 1) b.w = 1;
    b.top = (h - b.h) / 2;
    b.left = (w - b.w) / 2;
    return b;
}

/* The box and the sizes of picture p for sample i. Resize makes the shorter
 * edge o->resize long and cuts the other one to a whole number; CenterCrop
 * rounds halves to even. */
static dsi_resize plan_resize(const image_folder *d, int64_t i, const dsi_picture *p)
{
    const ds_image_folder_opts *o = &d->o;
    dsi_resize r = {.in = p->rgb, .row = 3 * p->w, .h = p->h, .w = p->w};
    r.to_h = r.out_h = o->height;
    r.to_w = r.out_w = o->width;
    r.bicubic = o->bicubic;
    if (o->fit == DS_CENTER_CROP) {
        bool tall = p->w <= p->h;
        int64_t edge = tall ? p->w : p->h, other = tall ? p->h : p->w;
        int64_t scaled = (int64_t)((double)(o->resize * other) / (double)edge);
        r.to_h = tall ? scaled : o->resize;
        r.to_w = tall ? o->resize : scaled;
        r.top = (int64_t)rint((double)(r.to_h - o->height) / 2);
        r.left = (int64_t)rint((double)(r.to_w - o->width) / 2);
    } else if (o->fit == DS_RANDOM_RESIZED_CROP) {
        box b = random_box(d, i, p->h, p->w);
        r.in += b.top * r.row + b.left * 3;
        r.h = b.h;
        r.w = b.w;
    }
    return r;
}

static ds_status folder_get(void *self, int64_t i, void **field)
{
    const image_folder *d = self;
    dsi_picture picture;
    dsi_text path = dsi_text_of("%s/%s", d->list.root, dsi_image_path(&d->list, i));
    ds_status status = dsi_picture_read(path.s, &picture);
    if (status == DS_OK) {
        dsi_resize r = plan_resize(d, i, &picture);
        status = dsi_resize_run(&r, field[0]);
        *(int64_t *)field[1] = d->list.label[i];
    }
    free(picture.rgb);
    dsi_text_free(&path);
    return status;
}

static void folder_epoch(void *self, int64_t epoch)
{
    ((image_folder *)self)->chance.epoch = epoch;
}

static void folder_free(void *self) { dsi_image_list_free(&((image_folder *)self)->list); }

/* Puts defaults for zeros and checks the rest; false with the message. */
static bool folder_options(ds_image_folder_opts *o)
{
    if (!o->width) o->width = o->height;
    if (o->height < 1 || o->width < 1 || o->height > DSI_RESIZE_MOST || o->width > DSI_RESIZE_MOST)
        return dsi_invalid("image_folder: images of %lld x %lld pixels, expected 1 to %d in each "
                           "direction",
                           (long long)o->height, (long long)o->width, DSI_RESIZE_MOST);
    if ((unsigned)o->fit > DS_RANDOM_RESIZED_CROP)
        return dsi_invalid("image_folder: there is no ds_image_fit number %d", (int)o->fit);
    int64_t longer = o->height > o->width ? o->height : o->width;
    if (!o->resize) o->resize = longer * 256 / 224;
    if (o->resize < longer || o->resize > 2 * DSI_RESIZE_MOST)
        return dsi_invalid("image_folder: resize is %lld, expected %lld, the crop's longer edge, "
                           "to %d",
                           (long long)o->resize, (long long)longer, 2 * DSI_RESIZE_MOST);
    if (!o->scale[0] && !o->scale[1]) o->scale[0] = 0.08, o->scale[1] = 1;
    if (!(o->scale[0] > 0 && o->scale[0] <= o->scale[1] && o->scale[1] <= 1))
        return dsi_invalid("image_folder: scale is %g to %g, expected numbers above 0 up to 1, the "
                           "lower one first",
                           o->scale[0], o->scale[1]);
    if (!o->ratio[0] && !o->ratio[1]) o->ratio[0] = 3. / 4, o->ratio[1] = 4. / 3;
    if (!(o->ratio[0] > 0 && o->ratio[0] <= o->ratio[1] && o->ratio[1] <= 1e6))
        return dsi_invalid("image_folder: ratio is %g to %g, expected numbers above 0, the lower "
                           "one first",
                           o->ratio[0], o->ratio[1]);
    return true;
}

static const char folder_name[] = "ImageFolder"; /* an array: no user's string has its address */

ds_dataset *ds_image_folder_with(const char *root, ds_image_folder_opts opts)
{
    static const ds_dataset_type type = {folder_name, sizeof(image_folder), folder_len, folder_get,
                                         folder_free};
    dsi_image_list list;
    if (!root) return dsi_refuse("image_folder: the folder is NULL");
    if (!folder_options(&opts) || !dsi_image_list_make(root, &list)) return NULL;
    ds_field field[2] = {{DS_U8, ds_shape(3, opts.height, opts.width), "image"},
                         {DS_I64, {0}, "label"}};
    ds_dataset *d = ds_dataset_new(&type, 2, field);
    *(image_folder *)ds_dataset_self(d) = (image_folder){list, opts, {opts.seed, 0}};
    ds_dataset_on_epoch(d, folder_epoch);
    return d;
}

/* d as an image folder; NULL with the message. */
static const image_folder *folder_of(ds_dataset *d, const char *who)
{
    if (!d) return dsi_null_operand(who);
    if (ds_dataset_name(d) == folder_name) return ds_dataset_self(d);
    return dsi_refuse(
        "%s: %s: expected what ds_image_folder has returned, not a data set around it", who,
        ds_dataset_name(d));
}

int64_t ds_image_folder_classes(ds_dataset *d)
{
    const image_folder *f = folder_of(d, "image_folder_classes");
    return f ? f->list.classes.n : 0;
}

const char *ds_image_folder_class(ds_dataset *d, int64_t label)
{
    const image_folder *f = folder_of(d, "image_folder_class");
    return f && label >= 0 && label < f->list.classes.n ? f->list.classes.at[label] : NULL;
}

const char *ds_image_folder_path(ds_dataset *d, int64_t i)
{
    const image_folder *f = folder_of(d, "image_folder_path");
    return f && i >= 0 && i < f->list.n ? dsi_image_path(&f->list, i) : NULL;
}
