/* SPDX-License-Identifier: Apache-2.0 */
/* The rate of a disk, as fsdp.offload uses it: large pieces, past the page cache where the file system can. */
#ifndef TRAIN_PRICE_DISK_H
#define TRAIN_PRICE_DISK_H

/* Bytes in a second that are read and written in turn, in a file of the folder that has no name; 0 if that cannot be
 * measured. Takes about 0.1 seconds. */
double disk_rate(const char *folder);

#endif
