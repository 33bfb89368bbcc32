/* examples/common/classify.h: shared by the CIFAR-10 programs: network, class
 * names,
 * accuracy.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed.h>

/* conv 3-6-16 with 5x5 kernels, each with ReLU and 2x2 max-pooling; fully
 * connected 400-120-84-10. */
ds_module *net_new(void);
/* The same network with MoE layers instead of the last layer, one for each of
 * num_experts, with experts of 84-84, then a last layer of 84-10, fc4. opts
 * apply to all layers. In evaluation an expert accepts all images, unless
 * opts.eval_capacity_factor is set: a dropped image would have no features. */
ds_module *net_new_moe(const int *num_experts, int layers, const ds_moe_opts *opts);

/* "truck   cat truck  deer": the class names of labels int64 [n], on one line of stdout. */
void print_names(const char *title, ds_tensor *labels);

typedef struct Accuracy {
    int64_t right[10], of[10];
} Accuracy;

/* Runs net in evaluation mode over the samples of test, in file order. Each
 * rank of the world runs its part, and all ranks return the total. A failure
 * sets ds_error(). */
Accuracy evaluate(ds_module *net, ds_loader *test);

double accuracy_total(const Accuracy *a); /* 0 to 1 */
/* "epoch 3: 52.40 % of the test images" */
void print_epoch_accuracy(int64_t epoch, const Accuracy *a);
/* Both print percents rounded down, as the tutorial does. */
void print_accuracy(const Accuracy *a);
void print_accuracy_by_class(const Accuracy *a);
