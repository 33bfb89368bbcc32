/* launcher/oom.h: has the kernel killed a process for want of memory?
 * SPDX-License-Identifier: MIT */
#pragma once

/* How often the kernel has killed a process of this process's control group
 * (memory, version 1 or 2), or, where the group keeps no count, of this
 * machine. root: "", or in tests a folder with a stand-in for /proc and
 * /sys/fs/cgroup. 0 where nothing can be read. */
long oom_count_kills(const char *root);
