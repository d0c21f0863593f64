/* SPDX-License-Identifier: Apache-2.0 */
/* Files that a server leaves which is killed. */
#ifndef UI_LEFTOVERS_H
#define UI_LEFTOVERS_H

#include "ui/ui.h"

/* Removes uploads that no server receives, and configs that no plan reads. For a server that holds the state folder. */
void leftovers_remove(const struct ui *ui);

#endif
