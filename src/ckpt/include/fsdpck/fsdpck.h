/* SPDX-License-Identifier: Apache-2.0 */
/* Includes the whole public interface. */
#ifndef FSDPCK_FSDPCK_H
#define FSDPCK_FSDPCK_H

#include <fsdpck/average.h>
#include <fsdpck/base.h>
#include <fsdpck/check.h>
#include <fsdpck/convert.h>
#include <fsdpck/doctor.h>
#include <fsdpck/export.h>
#include <fsdpck/lock.h>
#include <fsdpck/lora.h>
#include <fsdpck/packed.h>
#include <fsdpck/save.h>
#include <fsdpck/source.h>

#define FSDPCK_FORMAT_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif
FSDPCK_API const char *fsdpck_version(void); /* "0.1.0" */
#ifdef __cplusplus
}
#endif
#endif
