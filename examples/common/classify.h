/* examples/common/classify.h: what the CIFAR-10 programs share: the network, names, accuracy.
 * SPDX-License-Identifier: MIT */
#ifndef EXAMPLES_CLASSIFY_H
#define EXAMPLES_CLASSIFY_H

#include <deepspeed.h>

/* conv 3-6-16 with 5x5 kernels, each with ReLU and 2x2 max-pooling; fully connected 400-120-84-10. */
ds_module *net_new(void);
/* The same with layers of experts of 84-84 (opts.expert is theirs), one for each of num_experts, in place of the last
 * one, and then 84-10: fc4. In evaluation an expert takes all who come, unless opts.eval_capacity_factor says
 * otherwise: an image that is dropped has no features at all, so nothing to be told by. */
ds_module *net_new_moe(const int *num_experts, int layers, const ds_moe_opts *opts);

/* "truck   cat truck  deer": the class names of labels int64 [n], on one line of stdout. */
void print_names(const char *title, ds_tensor *labels);

typedef struct Accuracy {
    int64_t right[10], of[10];
} Accuracy;

/* Runs net in evaluation mode over all samples of test, each rank of the world over its share, unshuffled:
 * the answer is that of all ranks. Failures stand in ds_error(). */
Accuracy evaluate(ds_module *net, ds_loader *test);

/* Both are cut to whole percents, as the tutorial prints them. */
void print_accuracy(const Accuracy *a);
void print_accuracy_by_class(const Accuracy *a);

#endif
