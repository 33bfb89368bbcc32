/* data/cifar10_obtain.h: CIFAR-10 for a folder that has none.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DATA_CIFAR10_OBTAIN_H
#define DSI_DATA_CIFAR10_OBTAIN_H

#include "fetch.h"

#define DSI_CIFAR10_HOME "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"

/* Downloads and unpacks the archive into folder. One process does, others wait
 * and find it there. */
dsi_fetched dsi_cifar10_download(const char *folder, const char *url, bool quiet);

/* The folder of the built-in sample, for dsi_free, or NULL: one that was
 * installed, or folder/cifar-10-sample, into which it is unpacked unless it is
 * there. */
char *dsi_cifar10_sample(const char *folder, bool quiet);

const char *dsi_cifar10_url(const char *url); /* url, $DS_CIFAR10_URL, or the home page's */

#endif
