/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a chosen allocation of the library fail. The test is linked with --wrap for each function that the library
 * allocates with; jansson is set to use them too. Thread-safe, but only one thread gives a reproducible count. */
#ifndef TESTS_FAILING_MALLOC_H
#define TESTS_FAILING_MALLOC_H

void failing_malloc_begin(unsigned fail_at); /* allocation number fail_at (from 0) fails; UINT_MAX: none */
unsigned failing_malloc_end(void);           /* returns the allocations since begin, and stops failing them */

#endif
