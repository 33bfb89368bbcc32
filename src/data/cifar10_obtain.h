/* data/cifar10_obtain.h: CIFAR-10 for a folder that has none.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "fetch.h"

#define DSI_CIFAR10_HOME "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"

/* Downloads and unpacks the archive into folder (url: see dsi_cifar10_url).
 * Blocks. If several processes call it, one downloads; the others wait and find
 * the files. Fails with a message unless it returns DSI_FETCHED. */
dsi_fetched dsi_cifar10_download(const char *folder, const char *url, bool quiet);

/* Returns the folder of the built-in sample, for dsi_free: an installed one, or
 * folder/cifar-10-sample, unpacked first if it is not there. NULL with the
 * message. */
char *dsi_cifar10_sample(const char *folder, bool quiet);

const char *dsi_cifar10_url(const char *url); /* url, $DS_CIFAR10_URL, or the home page's */
