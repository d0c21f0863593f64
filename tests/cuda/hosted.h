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

/* Returns the injected error of a call, or 0. FSDPTRAIN_HOSTED_FAIL="cudaMalloc 3 2 1": the third cudaMalloc in the
 * process of device 1 fails with code 2; without a device, that of any process. */
int hosted_fails(const char *name, int device);
/* With FSDPTRAIN_HOSTED_COUNTS=FILE: writes how often each call was made so far, as JSON. The last process wins. */
void hosted_tell_counts(void);
/* The device of the calling thread, as its process counts devices; and its number among all devices. */
int hosted_current(void);
int hosted_which(int device);
/* Ends the program with a message. */
void hosted_die(const char *call, const char *what) __attribute__((noreturn));

/* Returns cudaSuccess if a kernel may be launched on `handle` (a cudaStream_t): its device must be the calling
 * thread's. Otherwise a cudaError_t. */
int hosted_start(void *handle);
/* Device of a stream. */
int hosted_stream_device(void *handle);
/* Does work on a stream of the calling thread's device; if the stream is under capture, keeps it for a graph, with a
 * copy of `what` (aligned to 16). */
typedef void (*hosted_work)(const void *what);
void hosted_do(void *handle, hosted_work work, const void *what, size_t nbytes);
/* Ends the program if [p, p + nbytes) begins inside an allocation of a device and ends outside it, or if it must lie on
 * `device` and does not. */
void hosted_reach(const char *call, const void *p, size_t nbytes, int device);
/* Serialises kernels, because the shim has global state. */
void hosted_lock(void);
void hosted_unlock(void);

#ifdef __cplusplus
}
#endif
#endif
