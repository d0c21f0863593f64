/* SPDX-License-Identifier: Apache-2.0 */
/* Removes files that a killed server left over. */
#ifndef UI_LEFTOVERS_H
#define UI_LEFTOVERS_H

#include "ui/ui.h"

/* Removes unfinished uploads and configs of plans. The caller must hold the lock of the state folder. */
void leftovers_remove(const struct ui *ui);

#endif
