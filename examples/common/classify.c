/* examples/common/classify.c: shared by the CIFAR-10 programs: network, class
 * names,
 * accuracy.
 * SPDX-License-Identifier: MIT */
#include "classify.h"

#include <stdio.h>
#include <string.h>

typedef struct Net {
    ds_module *conv1, *conv2, *fc1, *fc2;
    ds_module *experts; /* a list of layers; or NULL */
    ds_module *last;
} Net;

static ds_tensor *net_forward(void *self, ds_tensor *x)
{
    Net *net = self;
    x = ds_max_pool2d(ds_relu(ds_call(net->conv1, x)), 2);
    x = ds_max_pool2d(ds_relu(ds_call(net->conv2, x)), 2);
    x = ds_flatten(x, 1);
    x = ds_relu(ds_call(net->fc1, x));
    x = ds_relu(ds_call(net->fc2, x));
    for (int i = 0; i < ds_module_children(net->experts); i++)
        x = ds_call(ds_module_child(net->experts, i), x);
    return ds_call(net->last, x);
}

/* The layers up to fc2. */
static ds_module *features(void)
{
    static const ds_module_type type = {"Net", sizeof(Net), .forward = net_forward};
    ds_module *m = ds_module_new(NULL, "net", &type);
    Net *net = ds_self(m);
    net->conv1 = ds_nn_conv2d(m, "conv1", 3, 6, 5);
    net->conv2 = ds_nn_conv2d(m, "conv2", 6, 16, 5);
    net->fc1 = ds_nn_linear(m, "fc1", 16 * 5 * 5, 120);
    net->fc2 = ds_nn_linear(m, "fc2", 120, 84);
    return m;
}

ds_module *net_new(void)
{
    ds_module *m = features();
    Net *net = ds_self(m);
    net->last = ds_nn_linear(m, "fc3", 84, 10);
    return m;
}

static ds_module *expert(ds_module *parent, const char *name, void *arg)
{
    (void)arg;
    return ds_nn_linear(parent, name, 84, 84);
}

ds_module *net_new_moe(const int *num_experts, int layers, const ds_moe_opts *opts)
{
    ds_module *m = features();
    Net *net = ds_self(m);
    net->experts = ds_nn_module_list(m, "moe_layer_list");
    for (int i = 0; i < layers; i++) {
        char name[16];
        ds_moe_opts o = *opts;
        o.expert = expert;
        o.num_experts = num_experts[i];
        if (o.eval_capacity_factor == 0) o.eval_capacity_factor = num_experts[i]; /* for all */
        snprintf(name, sizeof name, "%d", i);
        ds_nn_moe_with(net->experts, name, 84, o);
    }
    net->last = ds_nn_linear(m, "fc4", 84, 10);
    return m;
}

void print_names(const char *title, ds_tensor *labels)
{
    const int64_t *label = ds_data(labels);
    if (!label) return;
    fputs(title, stdout);
    for (int64_t i = 0; i < ds_numel(labels); i++)
        printf("%s%5s", i ? " " : "", ds_cifar10_class((int)label[i]));
    putchar('\n');
}

static void sum_over_ranks(Accuracy *a)
{
    int64_t counts[20];
    if (ds_comm_size(ds_world()) == 1) return;
    ds_scope *scope = ds_scope_open();
    memcpy(counts, a->right, sizeof a->right);
    memcpy(counts + 10, a->of, sizeof a->of);
    ds_tensor *sum = ds_from_data(DS_I64, ds_shape(20), counts);
    const int64_t *all = ds_all_reduce(ds_world(), sum, DS_REDUCE_SUM) == DS_OK ? ds_data(sum)
                                                                                : NULL;
    if (all) {
        memcpy(a->right, all, sizeof a->right);
        memcpy(a->of, all + 10, sizeof a->of);
    }
    ds_scope_close(scope);
}

/* Every rank runs the same number of batches. Images that occur twice to fill
 * them are counted once. */
static void count_share(ds_module *net, ds_loader *test, Accuracy *a)
{
    int64_t all = ds_dataset_len(ds_loader_dataset(test)), ranks = ds_comm_size(ds_world());
    /* of the image, in the order of a DistributedSampler */
    int64_t number = ds_comm_rank(ds_world());
    ds_batch b;
    while (ds_loader_next(test, &b)) {
        const int64_t *label = ds_data(b.y);
        const int64_t *guess = ds_data(ds_argmax(ds_call(net, b.x), 1));
        for (int64_t i = 0; label && guess && i < b.size; i++, number += ranks) {
            if (number >= all) continue;
            a->of[label[i]]++;
            a->right[label[i]] += guess[i] == label[i];
        }
    }
}

Accuracy evaluate(ds_module *net, ds_loader *test)
{
    Accuracy a = {{0}, {0}};
    bool was = ds_set_grad(false), trained = ds_module_training(net);
    ds_module_train(net, false);
    count_share(net, test, &a);
    if (!ds_error()) sum_over_ranks(&a);
    ds_module_train(net, trained);
    ds_set_grad(was);
    return a;
}

static int percent(int64_t right, int64_t of) { return of ? (int)(100 * right / of) : 0; }

static void accuracy_sum(const Accuracy *a, int64_t *right, int64_t *of)
{
    *right = *of = 0;
    for (int c = 0; c < 10; c++) {
        *right += a->right[c];
        *of += a->of[c];
    }
}

double accuracy_total(const Accuracy *a)
{
    int64_t right, of;
    accuracy_sum(a, &right, &of);
    return of ? (double)right / (double)of : 0;
}

void print_epoch_accuracy(int64_t epoch, const Accuracy *a)
{
    printf("epoch %lld: %.2f %% of the test images\n", (long long)epoch, 100 * accuracy_total(a));
    fflush(stdout);
}

void print_accuracy(const Accuracy *a)
{
    int64_t right, of;
    accuracy_sum(a, &right, &of);
    printf("Accuracy of the network on the %lld test images: %d %%\n", (long long)of,
           percent(right, of));
}

void print_accuracy_by_class(const Accuracy *a)
{
    for (int c = 0; c < 10; c++)
        printf("Accuracy of %5s : %2d %%\n", ds_cifar10_class(c), percent(a->right[c], a->of[c]));
}
