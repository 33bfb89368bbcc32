/* transfer.c: PyTorch's tutorial "Transfer Learning for Computer Vision":
 * trains ResNet-18 on a folder of images, from the weights of torchvision.
 *
 *     ./transfer hymenoptera_data --weights resnet18-f37072fd.pth
 *
 * The folder has train/<class> and val/<class>. The network's names are
 * torchvision's, so its files of weights fit, and PyTorch reads what is saved.
 * SPDX-License-Identifier: MIT */
#include <deepspeed.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- torchvision.models.resnet18 --------------------------------------------------------------------- */

static ds_tensor *block_forward(void *self, ds_tensor *x)
{
    ds_tensor *y = ds_relu(ds_call_child(self, "bn1", ds_call_child(self, "conv1", x)));
    y = ds_call_child(self, "bn2", ds_call_child(self, "conv2", y));
    return ds_relu(ds_add(y, ds_call_child(self, "downsample", x)));
}

static void block(ds_module *layer, int in, int out, int stride)
{
    ds_module *m = ds_module_make(layer, NULL, "BasicBlock", .forward = block_forward);
    ds_nn_conv2d(m, "conv1", in, out, 3, .stride = stride, .padding = 1, .no_bias = true);
    ds_nn_batch_norm2d(m, "bn1", out);
    ds_nn_conv2d(m, "conv2", out, out, 3, .padding = 1, .no_bias = true);
    ds_nn_batch_norm2d(m, "bn2", out);
    ds_module *down = ds_nn_sequential(m, "downsample"); /* an empty one returns x */
    if (stride == 1 && in == out) return;
    ds_nn_conv2d(down, NULL, in, out, 1, .stride = stride, .no_bias = true);
    ds_nn_batch_norm2d(down, NULL, out);
}

static const char *const layers[] = {"layer1", "layer2", "layer3", "layer4"};

static ds_tensor *resnet_forward(void *self, ds_tensor *x) /* [N,3,H,W] -> [N,classes] */
{
    x = ds_relu(ds_call_child(self, "bn1", ds_call_child(self, "conv1", x)));
    x = ds_max_pool2d(x, 3, .stride = 2, .padding = 1);
    for (int i = 0; i < 4; i++) x = ds_call_child(self, layers[i], x);
    return ds_call_child(self, "fc", ds_flatten(ds_adaptive_avg_pool2d(x, 1, 1), 1));
}

static ds_module *resnet18(int64_t classes)
{
    ds_module *m = ds_module_make(NULL, "resnet18", "ResNet", .forward = resnet_forward);
    ds_nn_conv2d(m, "conv1", 3, 64, 7, .stride = 2, .padding = 3, .no_bias = true);
    ds_nn_batch_norm2d(m, "bn1", 64);
    for (int i = 0, in = 64; i < 4; i++, in = 64 << (i - 1)) {
        ds_module *layer = ds_nn_sequential(m, layers[i]);
        block(layer, in, 64 << i, i ? 2 : 1);
        block(layer, 64 << i, 64 << i, 1);
    }
    ds_nn_linear(m, "fc", 512, classes);
    return m;
}

/* Copies the weights of a .pth file; the last layer stays as it is if the file
 * has another number of classes. */
static bool load_weights(ds_module *net, const char *path)
{
    ds_state *file = ds_load(path), *used = ds_state_new(), *missing = NULL;
    int64_t classes = ds_size(ds_parameter(net, "fc.weight"), 0);
    for (int i = 0; i < ds_state_len(file); i++) {
        ds_tensor *x = ds_state_at(file, i);
        bool last = !strncmp(ds_state_name(file, i), "fc.", 3);
        if (!last || ds_size(x, 0) == classes) ds_state_set(used, ds_state_name(file, i), x);
    }
    bool ok = file && ds_module_load_partial(net, used, &missing, NULL) == DS_OK;
    for (int i = 0; ok && i < ds_state_len(missing); i++)
        if (strncmp(ds_state_name(missing, i), "fc.", 3)) {
            ds_fail(DS_EFORMAT, "%s has no %s: expected weights of torchvision's resnet18", path,
                    ds_state_name(missing, i));
            ok = false;
        }
    ds_state_free(missing);
    ds_state_free(used);
    ds_state_free(file);
    return ok;
}

/* ---- the program ---------------------------------------------------------------------------------------- */

typedef struct Options {
    const char *folder, *weights, *save, *device;
    int epochs, batch_size, workers, threads;
    bool freeze;
} Options;

static const char usage[] = "Usage: transfer FOLDER [OPTION...]\n"
                            "Train ResNet-18 on the images of FOLDER/train/<class>,\n"
                            "test it on those of FOLDER/val/<class>.\n\n"
                            "  --weights FILE      start from torchvision's, a .pth file\n"
                            "  --freeze            train only the last layer\n"
                            "  --epochs N          passes over the images (25)\n"
                            "  --batch-size N      images in a batch (4)\n"
                            "  --workers N         threads that decode images (4)\n"
                            "  --threads N         threads of the kernels (1)\n"
                            "  --device NAME       cpu, cuda or cuda:N (cpu)\n"
                            "  --save FILE         where the best weights go\n"
                            "                      (best_model_params.pth)\n";

static bool read_number(const char *text, int least, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);
    *out = (int)value;
    return end != text && !*end && value >= least && value <= 1000000;
}

static bool read_options(int argc, char **argv, Options *o)
{
    enum { HELP, WEIGHTS, FREEZE, EPOCHS, BATCH_SIZE, WORKERS, THREADS, DEVICE, SAVE };
    static const struct option options[] = {{"help", no_argument, 0, HELP},
                                            {"weights", required_argument, 0, WEIGHTS},
                                            {"freeze", no_argument, 0, FREEZE},
                                            {"epochs", required_argument, 0, EPOCHS},
                                            {"workers", required_argument, 0, WORKERS},
                                            {"batch-size", required_argument, 0, BATCH_SIZE},
                                            {"threads", required_argument, 0, THREADS},
                                            {"device", required_argument, 0, DEVICE},
                                            {"save", required_argument, 0, SAVE},
                                            {0}};
    bool ok = true;
    int index = 0;
    for (int key; ok && (key = getopt_long(argc, argv, "", options, &index)) != -1;) {
        if (key == HELP) {
            fputs(usage, stdout);
            exit(0);
        }
        if (key == WEIGHTS) o->weights = optarg;
        if (key == FREEZE) o->freeze = true;
        if (key == DEVICE) o->device = optarg;
        if (key == SAVE) o->save = optarg;
        int *number = key == EPOCHS       ? &o->epochs
                      : key == BATCH_SIZE ? &o->batch_size
                      : key == WORKERS    ? &o->workers
                      : key == THREADS    ? &o->threads
                                          : NULL;
        if (number && !read_number(optarg, key != WORKERS, number)) {
            fprintf(stderr, "transfer: --%s %s: expected a whole number\n", options[index].name,
                    optarg);
            return false;
        }
        ok = key != '?';
    }
    o->folder = optind == argc - 1 ? argv[optind] : NULL;
    if (!ok || !o->folder) fputs(usage, stderr);
    return ok && o->folder;
}

/* The tutorial's transforms, with the means of ImageNet. */
static ds_loader *loader_of(const Options *o, bool train, int64_t *classes)
{
    static const float mean[] = {0.485f, 0.456f, 0.406f}, std[] = {0.229f, 0.224f, 0.225f};
    char folder[4096];
    snprintf(folder, sizeof folder, "%s/%s", o->folder, train ? "train" : "val");
    ds_dataset *d = ds_image_folder(folder, 224,
                                    .fit = train ? DS_RANDOM_RESIZED_CROP : DS_CENTER_CROP);
    int64_t n = d ? ds_image_folder_classes(d) : 0;
    if (!train && d && n != *classes)
        ds_fail(DS_EFORMAT, "%s has %lld classes, train has %lld", folder, (long long)n,
                (long long)*classes);
    *classes = n;
    if (train) d = ds_transform_random_flip(d, 0.5, 0);
    d = ds_transform_normalize(ds_transform_to_float(d), 3, mean, std);
    return ds_loader_new(d, o->batch_size, .shuffle = true, .workers = o->workers);
}

/* One pass over the images, with updates if sgd is not NULL; prints their mean
 * loss and the share that was classified correctly, which it returns. */
static double run_epoch(ds_module *net, ds_loader *loader, ds_optim *sgd)
{
    double loss_sum = 0, right = 0;
    int64_t seen = 0;
    ds_batch b;
    ds_module_train(net, sgd != NULL);
    bool was = ds_set_grad(sgd != NULL);
    while (ds_loader_next(loader, &b)) {
        ds_tensor *out = ds_call(net, b.x), *loss = ds_cross_entropy(out, b.y);
        if (sgd) {
            ds_optim_zero_grad(sgd);
            ds_backward(loss);
            ds_optim_step(sgd);
        }
        loss_sum += ds_item(loss) * (double)b.size;
        right += ds_item(ds_sum(ds_eq(ds_argmax(out, 1), b.y)));
        seen += b.size;
    }
    ds_set_grad(was);
    right /= (double)(seen ? seen : 1);
    if (!ds_error())
        printf("%s Loss: %.4f Acc: %.4f\n", sgd ? "train" : "val",
               loss_sum / (double)(seen ? seen : 1), right);
    return right;
}

static double train(const Options *o, ds_module *net, ds_loader *images, ds_loader *val)
{
    ds_optim *sgd = ds_optim_sgd(net, 0.001, .momentum = 0.9);
    ds_schedule *schedule = ds_schedule_by_name(sgd, "StepLR",
                                                "{\"step_size\": 7, \"gamma\": 0.1}");
    double best = -1;
    for (int epoch = 0; epoch < o->epochs && !ds_error(); epoch++) {
        printf("Epoch %d/%d\n----------\n", epoch, o->epochs - 1);
        run_epoch(net, images, sgd);
        ds_schedule_step(schedule);
        double right = run_epoch(net, val, NULL);
        printf("\n");
        fflush(stdout);
        if (right <= best || ds_error()) continue;
        best = right;
        ds_state *state = ds_module_state(net);
        if (ds_save(state, o->save) != DS_OK) best = -1; /* the loop ends */
        ds_state_free(state);
    }
    ds_schedule_free(schedule);
    ds_optim_free(sgd);
    return best;
}

int main(int argc, char **argv)
{
    Options o = {.device = "cpu",
                 .save = "best_model_params.pth",
                 .epochs = 25,
                 .batch_size = 4,
                 .workers = 4,
                 .threads = 1};
    if (!read_options(argc, argv, &o)) return 2;
    time_t begin = time(NULL);
    ds_device device;
    int64_t classes = 0;
    ds_set_threads(o.threads);
    bool can_save = ds_save_check(o.save) == DS_OK; /* asked now, not after an epoch */
    if (ds_device_parse(o.device, &device) == DS_OK) ds_set_device(device);
    ds_loader *images = loader_of(&o, true, &classes), *val = loader_of(&o, false, &classes);
    ds_module *net = can_save && !ds_error() ? resnet18(classes) : NULL;
    if (net && o.weights) load_weights(net, o.weights);
    for (int i = 0; net && o.freeze && i < ds_module_params(net); i++) {
        const char *name;
        ds_tensor *p = ds_module_param_at(net, i, &name);
        ds_require_grad(p, !strncmp(name, "fc.", 3));
    }
    double best = net ? train(&o, net, images, val) : 0;
    ds_module_free(net);
    ds_loader_free(images);
    ds_loader_free(val);
    if (ds_error()) {
        ds_perror("transfer");
        return 1;
    }
    int seconds = (int)(time(NULL) - begin);
    printf("Training complete in %dm %ds\nBest val Acc: %f\n", seconds / 60, seconds % 60, best);
    return 0;
}
