/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime, cuBLASLt and NCCL in host memory, as far as the CUDA backend uses them, so that their wrappers run
 * without a GPU and failures can be injected. Every call completes before it returns; the shim runs the kernels. Calls
 * that NVIDIA's libraries reject return the same error; calls with undefined behaviour end the program with a message.
 * Environment variables configure the device: FSDPTRAIN_HOSTED_FREE, its bytes (8 GiB); FSDPTRAIN_HOSTED_MAJOR, its
 * compute capability (9); FSDPTRAIN_HOSTED_SEEN=own or =first makes only that device visible to a process that mpirun
 * started; FSDPTRAIN_HOSTED_REFUSE=1 removes the kernels for products that are not aligned to 16 bytes. */
#ifndef CUDA_HOSTED_H
#define CUDA_HOSTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HOSTED_DEVICES = 2 };

/* FSDPTRAIN_HOSTED_FAIL="cudaMalloc 3 2 1": the third call of that name that device 1's process makes fails with code
 * 2; without a device any process's. What the call is to answer; 0: it is to do its work. */
int hosted_fails(const char *name, int device);
/* With FSDPTRAIN_HOSTED_COUNTS=FILE: how often each call was made so far, as JSON; the process that says it last. */
void hosted_tell_counts(void);
/* The device of the calling thread, among those that its process sees; and which of all it is. */
int hosted_current(void);
int hosted_which(int device);
/* Ends the program with a word. */
void hosted_die(const char *call, const char *what) __attribute__((noreturn));

/* `handle`: a cudaStream_t. Whether a kernel may be started on it, as it may where its device is the calling thread's:
 * a cudaError_t. */
int hosted_start(void *handle);
/* Which device a stream is of. */
int hosted_stream_device(void *handle);
/* Work on a stream of the calling thread's device: done, or kept for a graph, with a copy of `what` (aligned to 16),
 * where the stream is captured. */
typedef void (*hosted_work)(const void *what);
void hosted_do(void *handle, hosted_work work, const void *what, size_t nbytes);
/* Ends the program where [p, p + nbytes) begins in an allocation of a device and ends outside it, or where it has to be
 * one of this device's and is none. */
void hosted_reach(const char *call, const void *p, size_t nbytes, int device);
/* One kernel at a time: the shim has one place for the thread that runs. */
void hosted_lock(void);
void hosted_unlock(void);

#ifdef __cplusplus
}
#endif
#endif
